"""bidr plan: what an index will take, and which settings reach a recall."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

from bidr.cli.shown import OptionalData, OptionalFile, OptionalFolder, OptionalNumber, Shown, Verb
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
    bytes_per_doc: OptionalNumber = None
    """Bytes of a document's code; by default 16, or the most below that divide the dimensions."""
    stored: Literal["fp16", "int8"] = "fp16"
    """How vectors lie on disk."""
    stored_dims: int | None = None
    """How many first dimensions of the vectors lie there (bidr build --dims); by default all."""
    candidates: int = 200
    """Vectors that are read for a query."""
    id_bytes: float = 12
    """Mean size of an id."""
    text_bytes: float = 1_000
    """Mean size of a document's title and text; 0: the index has no texts."""
    lexical: bool = False
    """The words of the texts are indexed too; without --data guessed, for English texts of --text-bytes."""
    data: OptionalData = None
    """A data set that stands for the documents: read once, for the sizes of ids, texts and words (and --docs)."""
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
        if (self.docs is None and self.data is None) == (self.recall is None):
            raise ConfigError(
                "give --docs or --data (what will an index take?) or --recall (which settings reach it?), one of them"
            )
        return self._sizes() if self.recall is None else self._settings(self.recall)

    def _sizes(self) -> Shown:
        from bidr.cli.planned import as_text
        from bidr.index.budget import parse_bytes
        from bidr.plan import Corpus, parse_count, plan

        docs = {} if self.docs is None else {"docs": parse_count("docs", self.docs)}
        how = {"ram": parse_bytes("ram", self.ram), "code_bytes": self._size(self.dim), "stored": self.stored}
        used = {"candidates": self.candidates, "cores": self.cores, "live": self.live, "dim": self.dim}
        value = plan(Corpus(**{**self._texts(), **docs, **how, **used}, stored_dims=self.stored_dims))
        return Shown(as_text(value), value)

    def _size(self, dim: int) -> int:
        from bidr.codes.plain import planned_bytes

        return planned_bytes(dim) if self.bytes_per_doc is None else self.bytes_per_doc

    def _texts(self) -> dict[str, Any]:
        """Ids, texts and words: as they are in --data, else as they are said to be."""
        from bidr.index.lexical.sizes import guessed
        from bidr.plan import look_through
        from bidr.text import load

        if self.data is None:
            sizes = {"id_bytes": self.id_bytes, "text_bytes": self.text_bytes or None}
            return sizes | ({"words": guessed(self.text_bytes)} if self.lexical else {})
        if (self.id_bytes, self.text_bytes) != (Plan.id_bytes, Plan.text_bytes):
            raise ConfigError("--data says how large ids and texts are; leave --id-bytes and --text-bytes out")
        found = look_through(load(self.data).corpus)
        sizes = {"id_bytes": found.id_bytes, "text_bytes": found.text_bytes, "docs": found.documents}
        return sizes | ({"words": found.words} if self.lexical else {})

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
            measured = on_sample(documents, questions, recall, self.k, self._size(documents.dim), self.sample)
        cheapest = measured.cheapest
        settings = [setting._asdict() for setting in measured.settings]
        value = {**measured._asdict(), "settings": settings, "cheapest": cheapest._asdict() if cheapest else None}
        return Shown(settings_text(measured), value)
