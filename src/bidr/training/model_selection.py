"""Method 'auto': train contenders, measure them on dev at equal RAM, keep the best."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bidr.index.lexical.size_estimate import RESIDENT_BYTES_PER_DOC
from bidr.index.live.lexical_search import MemoryLexicalSearcher
from bidr.models.corpus_encoding import encode_rows
from bidr.models.trainable_encoder import Encoder
from bidr.quantization.codebooks import Codebooks
from bidr.quantization.exact_search import search_codes
from bidr.training import stages
from bidr.training.additive_stage import learn_additive_codes
from bidr.training.config import CodesName, SamplerName, VectorsName
from bidr.training.contenders import Choice, Contender, choose_contender
from bidr.training.fusion import (
    LEXICAL_ONLY,
    Fusion,
    RankedCandidates,
    Recalls,
    build_lexical_searcher,
    choose_fusion,
    collect_candidates,
    measure_recalls,
    measure_spread,
    round_weight,
)
from bidr.training.losses.objectives import CODEBOOKS
from bidr.training.run_context import TrainingRun, save_encoder_atomically
from bidr.utils.array_types import Codes, Floats
from bidr.utils.files import read_json, write_json
from bidr.utils.progress import say

MAX_WEIGHT = 1_000.0
"""Largest weight that a server accepts."""
DAMAGED = "delete the run's folder `work` to start over"


class EncoderPair(NamedTuple):
    """Stages whose encoders encode documents and queries."""

    documents: str
    queries: str


class CodedPair(NamedTuple):
    """Stages whose encoders encode documents and queries for the codes, and the stage of the codebooks."""

    documents: str
    queries: str
    codebooks: Path


class SelectedParts(NamedTuple):
    """The stages that the chosen model is made of."""

    vectors: EncoderPair
    codes: CodedPair
    choice: Choice


def select_model(run: TrainingRun) -> SelectedParts:
    """Train all contenders and choose one on dev."""
    run = run.with_config(replace(run.config, conventional=replace(run.config.conventional, codes="opq")))
    config, selection = run.config.choice, _Selection(run)
    names = list(dict.fromkeys(("warmup", *config.vectors)))
    pairs: list[tuple[VectorsName, CodesName]] = []
    for vectors in names:
        codes: list[CodesName] = [name for name in ("opq", "contrastive") if name in config.codes]
        codes = ["opq", *codes] if vectors == "warmup" else codes
        pairs += [(vectors, name) for name in dict.fromkeys(codes) if (vectors, name) != ("unified", "opq")]
    for vectors, name in pairs:
        selection.measure(vectors, name)
    if "distilled" in config.codes:
        coded = [row for row in selection.contenders if row.vectors != "unified"]
        selection.measure(choose_contender(coded, 0).contender.vectors, "distilled")
    choice = choose_contender(selection.contenders, config.small_dev)
    chosen = choice.contender
    return SelectedParts(
        selection.train_vectors(chosen.vectors), selection.train_codes(chosen.vectors, chosen.codes), choice
    )


class _Selection:
    """Trains and measures contenders. Measures of finished ones are kept in the run's folder."""

    def __init__(self, run: TrainingRun) -> None:
        self.run, self.contenders = run, list[Contender]()
        self.folder = run.folder / run.get_stage_name("choice")
        self._lexical: MemoryLexicalSearcher | None = None
        self._encoded: tuple[str, Floats] | None = None
        self._codes = dict[Path, Codes]()

    def train_vectors(self, name: VectorsName) -> EncoderPair:
        """Train the stages of ranking vectors."""
        run = self.run
        if name == "unified":
            stages.unify(run, run.config.dense.sampler)
            sampler: SamplerName = run.config.dense.sampler
            return EncoderPair(run.get_stage_name(f"dense-{sampler}"), run.get_stage_name(f"unify-{sampler}"))
        if name == "averaged":
            stage = self._average()
        elif name in ("warmup", "conventional"):
            (stages.train_warmup if name == "warmup" else stages.train_conventional)(run)
            stage = run.get_stage_name(name)
        else:
            stages.train_dense(run, name)
            stage = run.get_stage_name(f"dense-{name}")
        return EncoderPair(stage, stage)

    def _average(self) -> str:
        """Average the weights of the other vectors' encoders, all trained from the warm-up on."""
        run = self.run
        names = [name for name in dict.fromkeys(("warmup", *run.config.choice.vectors)) if name not in _DERIVED]
        members = [self.train_vectors(name).documents for name in names]
        stage = run.get_stage_name("averaged")

        def save() -> None:
            if not (run.folder / stage / "encoder").exists():
                (run.folder / stage).mkdir(parents=True, exist_ok=True)
                save_encoder_atomically(average_encoders(run, members), run.folder / stage / "encoder")

        run.group.run_on_rank_zero(save)
        return stage

    def train_codes(self, vectors: VectorsName, codes: CodesName) -> CodedPair:
        """Train the stages of codes."""
        run, pair = self.run, self.train_vectors(vectors)
        if codes == "contrastive":
            coded = stages.train_sparse(run)
            queries = pair.queries if vectors == "unified" else coded.name
            return CodedPair(coded.name, queries, run.folder / coded.name / CODEBOOKS)
        suffix = "" if vectors == "conventional" else f"-{vectors}"
        stage = run.get_stage_name(("fitted" if codes == "opq" else "distilled") + suffix)
        encoder = run.load_stage_encoder(pair.documents)
        if codes == "distilled":
            learn_additive_codes(run, encoder, stage)
        else:
            stages.fit_codes_of(run, encoder, stage)
        return CodedPair(pair.documents, pair.queries, run.folder / stage / CODEBOOKS)

    def measure(self, vectors: VectorsName, codes: CodesName) -> None:
        """Train vectors and codes and add their contenders: without fusion, with the best, and BM25 alone once."""
        pair, coded = self.train_vectors(vectors), self.train_codes(vectors, codes)
        path = self.folder / f"{vectors}+{codes}.json"

        def make() -> list[Contender]:
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                rows = list(self._measure(vectors, codes, pair, coded))
                write_json(path, {"contenders": [[*row[:2], list(row.fusion), *row[3:]] for row in rows]})
            return [_parse_contender(row) for row in read_json(path, DAMAGED)["contenders"]]

        rows = self.run.group.run_on_rank_zero(make)
        self.contenders += rows
        best = max(rows, key=lambda row: row.score)
        say(f"{vectors} vectors, {codes} codes: dev R@10 {rows[0].r10:.4f}, with BM25 {best.r10:.4f}")

    def _measure(
        self, vectors: VectorsName, codes: CodesName, pair: EncoderPair, coded: CodedPair
    ) -> Iterator[Contender]:
        run, config = self.run, self.run.config
        candidates = self._collect(pair, coded)
        positives, depth = run.validator.pairs, min(config.candidates, len(run.validator.rows))

        def make(fusion: Fusion, recalls: Recalls) -> Contender:
            ram = config.books * (config.codewords.bit_length() - 1) / 8
            means = (float(values.mean()) for values in recalls)
            bytes_per_doc = ram + (RESIDENT_BYTES_PER_DOC if fusion.lexical else 0.0)
            two_encoders, criterion = coded.queries != pair.queries, tuple(recalls.criterion.tolist())
            return Contender._make([vectors, codes, fusion, two_encoders, *means, bytes_per_doc, criterion])

        yield make(Fusion(), measure_recalls(candidates, positives, Fusion(), depth))
        if config.choice.lexical:
            yield make(*choose_fusion(candidates, positives, config.choice.lexical, depth))
            if (vectors, codes) == ("warmup", "opq"):
                weight = round_weight(min(MAX_WEIGHT, LEXICAL_ONLY * measure_spread(candidates)))
                fusion = Fusion(max(config.choice.lexical), weight)
                yield make(fusion, measure_recalls(candidates, positives, fusion, depth))

    def _collect(self, pair: EncoderPair, coded: CodedPair) -> RankedCandidates:
        run, validator, lexical = self.run, self.run.validator, self.run.config.choice.lexical
        codebooks, codes = Codebooks.load(coded.codebooks), self._encode_codes(coded)
        vectors = self._encode_documents(pair.documents).astype(np.float16)
        code_queries, queries = (
            validator.encode_queries(run.load_stage_encoder(stage)) for stage in (coded.queries, pair.queries)
        )
        by_codes = search_codes(code_queries, codebooks, codes, run.config.candidates, device=run.device)
        texts, searcher = run.data.dev.texts, self._build_lexical() if lexical else None
        return collect_candidates(by_codes, queries, vectors, texts, searcher, max(lexical, default=0))

    def _encode_codes(self, coded: CodedPair) -> Codes:
        """Encode the documents of the validator into codes; those that several vectors rank are kept."""
        if coded.codebooks not in self._codes:
            codebooks = Codebooks.load(coded.codebooks)
            self._codes[coded.codebooks] = codebooks.encode(self._encode_documents(coded.documents))
        return self._codes[coded.codebooks]

    def _encode_documents(self, stage: str) -> Floats:
        """Encode the documents of the validator; those of the last stage are kept."""
        if self._encoded is None or self._encoded[0] != stage:
            run = self.run
            self._encoded = None  # frees the memory before as much is taken
            encoder = run.load_stage_encoder(stage)
            self._encoded = stage, encode_rows(encoder, run.data.documents, run.validator.rows)
        return self._encoded[1]

    def _build_lexical(self) -> MemoryLexicalSearcher:
        if self._lexical is None:
            run = self.run
            is_used = np.zeros(len(run.data.documents), bool)
            is_used[run.validator.rows] = True
            texts = run.dataset.corpus.iter_texts(run.config.text.titles)
            self._lexical = build_lexical_searcher([text for text, used in zip(texts, is_used, strict=True) if used])
        return self._lexical


_DERIVED = ("averaged", "unified")


def average_encoders(run: TrainingRun, stage_names: list[str]) -> Encoder:
    """Return an encoder whose weights are the mean of those of finished stages."""
    first = run.load_stage_encoder(stage_names[0])
    weights = first.state_dict()
    sums = {name: values.double() for name, values in weights.items() if values.is_floating_point()}
    for stage in stage_names[1:]:
        for name, values in run.load_stage_encoder(stage).state_dict().items():
            if name in sums:
                sums[name] = sums[name] + values.double()
    means = {name: (values / len(stage_names)).to(weights[name].dtype) for name, values in sums.items()}
    first.load_state_dict(weights | means)
    return first


def _parse_contender(row: list[Any]) -> Contender:
    vectors, codes, fusion, *measures, criterion = row
    return Contender._make([vectors, codes, Fusion(*fusion), *measures, tuple(criterion)])
