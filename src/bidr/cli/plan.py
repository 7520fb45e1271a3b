"""bidr plan: what an index will take, and which settings reach a recall."""

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from bidr.cli.shown import OptionalFile, OptionalFolder, Shown, Verb
from bidr.errors import ConfigError

OptionalText = Annotated[str | None, tyro.conf.arg(metavar="N", help_behavior_hint="(optional)")]
OptionalShare = Annotated[float | None, tyro.conf.arg(metavar="SHARE", help_behavior_hint="(optional)")]


@dataclass(frozen=True, kw_only=True)
class Plan(Verb):
    """Say what an index will take in RAM, disk, reads, time and machines; or which settings reach a recall.

    bidr plan --docs 1e9 --dim 768 --ram 64GiB computes; bidr plan --recall .95 with vectors or an index measures.
    """

    docs: OptionalText = None
    """How many documents, such as 1e9."""
    dim: int = 768
    """Dimensions of their vectors."""
    ram: str = "64GiB"
    """RAM of one machine."""
    bytes_per_doc: int = 16
    """Bytes of a document's code."""
    stored: Literal["fp16", "int8"] = "fp16"
    """How vectors lie on disk."""
    candidates: int = 200
    """Vectors that are read for a query."""
    id_bytes: float = 12
    """Mean size of an id."""
    text_bytes: float = 1_000
    """Mean size of a document's title and text; 0: the index has no texts."""
    cores: int = 16
    """Cores that build."""
    live: bool = True
    """Documents will be deleted and replaced."""
    recall: OptionalShare = None
    """Measure which settings find this share of the exact answers, such as .95."""
    k: int = 100
    """How many answers the recall is of."""
    vectors: OptionalFile = None
    """With --recall: vectors of documents (.npy), of which a sample is indexed to measure on."""
    index: OptionalFolder = None
    """With --recall: an index to measure on instead."""
    query_vectors: OptionalFile = None
    """With --recall: vectors of questions (.npy)."""
    sample: int = 50_000
    """Most documents of --vectors to measure on."""
    metric: Literal["cosine", "ip"] = "cosine"
    """What ranks the vectors of --vectors."""

    def run(self) -> Shown:
        if (self.docs is None) == (self.recall is None):
            raise ConfigError(
                "give --docs (what will an index take?) or --recall (which settings reach it?), one of them"
            )
        return self._sizes(self.docs) if self.docs is not None else self._settings(self.recall or 0.0)

    def _sizes(self, docs: str) -> Shown:
        from bidr.cli.planned import as_text
        from bidr.index.budget import parse_bytes
        from bidr.plan import Corpus, parse_count, plan

        value = plan(
            Corpus(
                docs=parse_count("docs", docs),
                dim=self.dim,
                ram=parse_bytes("ram", self.ram),
                code_bytes=self.bytes_per_doc,
                stored=self.stored,
                candidates=self.candidates,
                id_bytes=self.id_bytes,
                text_bytes=self.text_bytes or None,
                cores=self.cores,
                live=self.live,
            )
        )
        return Shown(as_text(value), value)

    def _settings(self, recall: float) -> Shown:
        from bidr.cli.planned import settings_text
        from bidr.codes.vectors import open_vectors
        from bidr.settings import check_goal, on_index, on_sample

        check_goal(recall, self.k)
        if self.query_vectors is None or (self.vectors is None) == (self.index is None):
            raise ConfigError(
                "--recall is measured: give --query-vectors, and --vectors (documents) or --index, one of these two"
            )
        if self.index is not None:
            measured = on_index(self.index, self.query_vectors, recall, self.k)
        else:
            documents, questions = (
                open_vectors(path, str(path), self.metric) for path in (self.vectors, self.query_vectors) if path
            )
            measured = on_sample(documents, questions, recall, self.k, self.bytes_per_doc, self.sample)
        cheapest = measured.cheapest
        settings = [setting._asdict() for setting in measured.settings]
        value = {**measured._asdict(), "settings": settings, "cheapest": cheapest._asdict() if cheapest else None}
        return Shown(settings_text(measured), value)
