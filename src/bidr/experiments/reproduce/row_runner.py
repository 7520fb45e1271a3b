"""Run the rows of one seed: train what no finished stage provides, build, measure, save."""

import os
import platform
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bidr._version import __version__
from bidr.bench.launch import PeerError
from bidr.data.dataset import Dataset, check
from bidr.errors import ConfigError, IndexFolderError, MissingExtraError
from bidr.experiments.reproduce.diskann_baseline import describe_diskann, find_diskann, search_diskann
from bidr.experiments.reproduce.measurement import (
    ANSWERS,
    DEPTHS,
    TIMED_QUERIES,
    JudgedTexts,
    build_vector_index,
    encode_queries,
    measure_depths,
    measure_index,
    measure_ranks,
    measure_sizes,
    measure_vectors,
    read_vectors,
    time_calls,
)
from bidr.experiments.reproduce.row_files import RelevantRanks, RowResult, RowStore, rank_relevant
from bidr.experiments.reproduce.row_specs import RowSpec
from bidr.index.storage.live_state import read_model_reference
from bidr.models.corpus_encoding import discard_encoded, encode_rows
from bidr.models.saved_model import Model
from bidr.pipeline.build import build
from bidr.pipeline.open import OpenIndex, open_index
from bidr.quantization.codebooks import check_shape
from bidr.quantization.exact_search import search_vectors
from bidr.tokenization.token_store import TokenArray
from bidr.training.config import TrainConfig
from bidr.training.data import make_pairs
from bidr.training.engine.logs import LOG, read_lines
from bidr.training.negatives.bm25_search import Bm25
from bidr.training.presets import get_changed_settings
from bidr.training.run_context import TrainingRun
from bidr.training.stages import train_sparse
from bidr.training.train import open_run, train_model
from bidr.utils.progress import say

MEASURED_QUERIES = 1_000
"""Queries of the sweeps, which search far deeper than the other rows."""
DEV_CUTOFFS = (10, 100)
INDEXES = "indexes"


class TrainedRecipe(NamedTuple):
    """A recipe's model and index, which several rows are measured on."""

    model: Model
    folder: Path
    seconds: dict[str, float]
    """train_seconds: epochs of all its stages, shared ones included; new_seconds: all of what was trained just now."""


class SeedRunner:
    """Runs rows of one dataset, encoder and seed in one work folder."""

    def __init__(
        self, data: Dataset, config: TrainConfig, folder: Path, split: str, template: RowResult, peers: Path
    ) -> None:
        self.run, self.folder, self.template, self.peers = open_run(data, config, folder), folder, template, peers
        judged = data.split(split)
        pairs = make_pairs(judged, check(data, [split]))
        self.judged = JudgedTexts([query.text for query in judged.queries], pairs)
        self.dev = JudgedTexts(list(self.run.data.dev.texts), self.run.data.dev.pairs)
        self.candidates = config.candidates

    def measure(self, spec: RowSpec) -> RowResult:
        """Measure a row."""
        kinds: dict[str, Callable[[RowSpec], RowResult]] = {
            "index": self._measure_index,
            "bm25": self._measure_bm25,
            "hnsw": self._measure_hnsw,
            "diskann": self._measure_diskann,
            "unquantized": self._measure_unquantized,
            "depths": self._measure_depths,
            "sizes": self._measure_sizes,
        }
        started = time.monotonic()
        result = self._measure_or_explain(spec, kinds[spec.kind])
        seconds = {"row_seconds": round(time.monotonic() - started, 2)}
        environment = describe_environment(self.run.device) | {"encoder_kind": self.run.config.encoder_kind}
        return replace(result, values={**result.values, **seconds}, environment=environment)

    def _measure_or_explain(self, spec: RowSpec, measure: Callable[[RowSpec], RowResult]) -> RowResult:
        """Measure a row, or say why it cannot be: its books do not divide the dimensions, or a package is missing."""
        config = spec.make_config(self.run.config)
        try:
            check_shape(self.run.dim, config.books, config.codewords)
        except ConfigError as error:
            return self._make_unmeasured(spec, str(error))
        try:
            return measure(spec)
        except MissingExtraError as error:
            return self._make_unmeasured(spec, str(error))

    def remove_index(self, spec: RowSpec) -> None:
        """Remove the model and the index of a recipe, if the row has one; its stages stay."""
        if spec.recipe:
            shutil.rmtree(self._get_folder(spec), ignore_errors=True)

    def _get_folder(self, spec: RowSpec) -> Path:
        return self.folder / INDEXES / name_index(spec)

    def _train(self, spec: RowSpec) -> TrainedRecipe:
        """Train and build; both return at once if that was done before."""
        run, folder = self._configure(spec), self._get_folder(spec)
        folder.mkdir(parents=True, exist_ok=True)
        started = time.monotonic()
        model = train_model(run, folder, spec.recipe)
        seconds = {"new_seconds": round(time.monotonic() - started, 2)}
        seconds["train_seconds"] = sum_training_seconds(run, list(model.training["stages"]))
        index = folder / "index"
        if not is_built(index, model):
            build(run.dataset, model, index, engine=spec.engine, tokens=run.folder / "tokens")
        return TrainedRecipe(model, index, seconds)

    def _configure(self, spec: RowSpec) -> TrainingRun:
        return self.run.with_config(spec.make_config(self.run.config))

    def _open(self, trained: TrainedRecipe) -> OpenIndex:
        return open_index(trained.folder, device=self.run.device)

    def _make_result(self, spec: RowSpec, **fields: Any) -> RowResult:
        size = spec.make_config(self.run.config).bytes_per_doc
        return replace(self.template, **{"row": spec.name, "bytes_per_doc": size, **fields})

    def _make_unmeasured(self, spec: RowSpec, reason: str) -> RowResult:
        return self._make_result(spec, is_measured=False, notes=[reason])

    def _measure_dev(self, searcher: OpenIndex, candidates: int) -> dict[str, float]:
        ranks = measure_ranks(searcher, self.dev, candidates)["answers"]
        return {f"R@{cutoff}": ranks.compute_recall(cutoff) for cutoff in DEV_CUTOFFS}

    def _measure_index(self, spec: RowSpec) -> RowResult:
        trained = self._train(spec)
        with self._open(trained) as searcher:
            ranks, values, ram = measure_index(searcher, self.judged, self.candidates)
            return self._make_result(
                spec,
                ranks={name: part.format() for name, part in ranks.items()},
                dev=self._measure_dev(searcher, self.candidates),
                values={**values, **trained.seconds},
                ram=ram,
                notes=[f"engine {searcher.reader.candidates.name}", *describe_choice(trained.model)],
            )

    def _measure_bm25(self, spec: RowSpec) -> RowResult:
        config = self.run.config
        started = time.monotonic()
        engine = Bm25(self.run.dataset.corpus.iter_texts(config.text.titles))
        seconds = time.monotonic() - started

        def rank(judged: JudgedTexts) -> tuple[RelevantRanks, RelevantRanks]:
            rows = engine.search(judged.texts, self.candidates).rows
            ranks = rank_relevant(rows, judged.pairs)
            answers = np.where(ranks > ANSWERS, 0, ranks)
            return RelevantRanks.from_pairs(judged.pairs, answers), RelevantRanks.from_pairs(judged.pairs, ranks)

        answers, candidates = rank(self.judged)
        on_dev, _ = rank(self.dev)
        texts = self.judged.texts
        milliseconds = time_calls(
            lambda number: engine.search([texts[number]], self.candidates, quiet=True), min(TIMED_QUERIES, len(texts))
        )
        return self._make_result(
            spec,
            ranks={"answers": answers.format(), "candidates": candidates.format()},
            dev={f"R@{cutoff}": on_dev.compute_recall(cutoff) for cutoff in DEV_CUTOFFS},
            values={"ms_per_query": milliseconds, "train_seconds": 0.0, "index_seconds": seconds},
        )

    def _measure_hnsw(self, spec: RowSpec) -> RowResult:
        trained = self._train(spec)
        with self._open(trained) as searcher:
            vectors = read_vectors(searcher)
            index = build_vector_index(vectors)
            on_test, on_dev = (encode_queries(searcher, part.texts).vectors for part in (self.judged, self.dev))
            texts = self.judged.texts
            encode_ms = time_calls(lambda number: searcher.encode([texts[number]]), min(TIMED_QUERIES, len(texts)))
        ranks, values = measure_vectors(index, on_test, encode_ms, self.judged)
        dev, _ = measure_vectors(index, on_dev, encode_ms, self.dev)
        return self._make_result(
            spec,
            ranks={"answers": ranks.format()},
            dev={f"R@{cutoff}": dev.compute_recall(cutoff) for cutoff in DEV_CUTOFFS},
            values={**values, **trained.seconds},
            ram={**index.ram, "total": sum(size for name, size in index.ram.items() if name != "total")},
            notes=[index.note],
        )

    def _measure_unquantized(self, spec: RowSpec) -> RowResult:
        """Search the encoder of the codes without codes: how much quantization loses."""
        run = self._configure(spec)
        coded = train_sparse(run)
        path = run.folder / coded.name / "unquantized.npy"
        vectors = run.encode_corpus(coded.encoder, path, "encode without codes")
        text = run.config.text
        tokenizer = coded.encoder.get_tokenizer(min(text.query_length, coded.encoder.max_length))
        prompt = coded.encoder.prompts.query

        def rank(judged: JudgedTexts) -> RelevantRanks:
            queries = encode_rows(coded.encoder, TokenArray(tokenizer([prompt + words for words in judged.texts])))
            rows = search_vectors(queries, vectors, self.candidates, device=run.device).rows
            return RelevantRanks.from_pairs(judged.pairs, rank_relevant(rows, judged.pairs))

        ranks, dev = rank(self.judged), rank(self.dev)
        answers = RelevantRanks(ranks.starts, np.where(ranks.ranks > ANSWERS, 0, ranks.ranks))
        discard_encoded(path)
        names = [run.get_stage_name("warmup"), coded.name]
        return self._make_result(
            spec,
            ranks={"answers": answers.format(), "candidates": ranks.format()},
            dev={f"R@{cutoff}": dev.compute_recall(cutoff) for cutoff in DEV_CUTOFFS},
            values={"train_seconds": sum_training_seconds(run, names)},
            notes=["exact search over the vectors of the codes' encoder, fp16"],
        )

    def _measure_depths(self, spec: RowSpec) -> RowResult:
        trained = self._train(spec)
        judged = self.judged.take_first(MEASURED_QUERIES)
        deepest = min(max(DEPTHS), self.template.documents)
        with self._open(trained) as searcher:
            ranks, curve = measure_depths(searcher, judged, deepest)
        return self._make_result(
            spec, ranks={"candidates": ranks.format()}, curve=curve, notes=[f"{len(judged.texts):,} queries"]
        )

    def _measure_sizes(self, spec: RowSpec) -> RowResult:
        trained = self._train(spec)
        judged = self.judged.take_first(MEASURED_QUERIES)
        with self._open(trained) as searcher:
            curve = measure_sizes(searcher, judged, self.candidates, self.run.device)
        return self._make_result(spec, curve=curve, notes=[f"{len(judged.texts):,} queries"])

    def _measure_diskann(self, spec: RowSpec) -> RowResult:
        try:
            python = find_diskann(self.peers)
        except PeerError as error:
            return self._make_unmeasured(spec, f"DiskANN: {error}")
        trained = self._train(spec)
        with self._open(trained) as searcher:
            vectors = read_vectors(searcher)
            on_test, on_dev = (encode_queries(searcher, part.texts).vectors for part in (self.judged, self.dev))
        try:
            queries, size = np.concatenate([on_test, on_dev]), self.run.config.bytes_per_doc
            rows, values, ram = search_diskann(python, vectors, queries, size, self.candidates)
        except PeerError as error:
            return self._make_unmeasured(spec, f"DiskANN: {error}")
        parts = (rows[: len(on_test)], rows[len(on_test) :])
        ranks, dev = (
            RelevantRanks.from_pairs(judged.pairs, rank_relevant(part, judged.pairs))
            for part, judged in zip(parts, (self.judged, self.dev), strict=True)
        )
        return self._make_result(
            spec,
            ranks={"answers": ranks.format()},
            dev={f"R@{cutoff}": dev.compute_recall(cutoff) for cutoff in DEV_CUTOFFS},
            values={**values, **trained.seconds},
            ram=ram,
            notes=[describe_diskann(self.candidates)],
        )


def name_index(spec: RowSpec) -> str:
    """Name the folder of a recipe's model and index: rows of equal settings and engine share it."""
    settings = [f"{key}={value}" for key, value in sorted(spec.settings.items())]
    return "+".join([spec.recipe, *([spec.engine] if spec.engine != "auto" else []), *settings])


def describe_choice(model: Model) -> list[str]:
    """Say which vectors, codes and fusion a model has that chose them on dev."""
    rows = model.training.get("choice", {}).get("rows", [])
    chosen = [row for row in rows if row["chosen"]]
    return [f"chosen on dev: {row['vectors']}, {row['codes']} codes, {row['lexical']} of BM25" for row in chosen]


def is_built(index: Path, model: Model) -> bool:
    """Check for a finished index of this model."""
    try:
        stamp = read_model_reference(index)
    except (IndexFolderError, OSError):
        return False
    return stamp is not None and stamp.fingerprint == model.fingerprint


def sum_training_seconds(run: TrainingRun, stages: Sequence[str]) -> float:
    """Sum the seconds of the epochs of stages, validation and mining excluded."""
    lines = [line for stage in stages for line in read_lines(run.folder / stage / LOG)]
    return round(float(sum(line.get("seconds", 0.0) for line in lines)), 2)


def describe_environment(device: str) -> dict[str, Any]:
    """Describe versions and machine."""
    import torch

    names = {"bidr": __version__, "python": platform.python_version(), "torch": str(torch.__version__)}
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else platform.machine()
    return {**names, "device": f"{device.partition(':')[0]} ({name})", "cores": os.cpu_count() or 1}


def run_rows(runner: SeedRunner, specs: Sequence[RowSpec], store: RowStore) -> list[RowResult]:
    """Measure rows one after the other; each is on disk before the next begins."""
    results = []
    for number, spec in enumerate(specs):
        say(f"row {number + 1} of {len(specs)}: {spec.title} ({spec.name})")
        result = runner.measure(spec)
        store.save(result)
        results.append(result)
        say(format_row(result))
        if all(name_index(later) != name_index(spec) for later in specs[number + 1 :]):
            runner.remove_index(spec)
    return results


def format_row(result: RowResult) -> str:
    """Format the main measures of a row in one line."""
    answers, candidates = result.get_ranks("answers"), result.get_ranks("candidates")
    parts = [f"R@{cutoff} {answers.compute_recall(cutoff):.4f}" for cutoff in (10, 100)] if answers else []
    if candidates:
        parts.append(f"candidates' R@{result.candidates:,} {candidates.compute_recall(result.candidates):.4f}")
    parts += [] if result.is_measured else ["not measured"]
    parts.append(f"{result.values.get('row_seconds', 0):.0f} s")
    return f"{result.row}: {', '.join(parts)}{'; ' + '; '.join(result.notes) if result.notes else ''}"


def make_template(data: Dataset, config: TrainConfig, split: str, queries: int, preset: str | None) -> RowResult:
    """Make the fields that all rows of a run share, apart from the seed."""
    ignored = ("seed", "device", "checkpoint_minutes", "tokens_at_once", "logs", "encoder.backbone")
    settings = {key: value for key, value in get_changed_settings(config).items() if key not in ignored}
    settings |= {"bytes_per_doc": config.bytes_per_doc, "candidates": config.candidates, "split": split}
    settings |= {"preset": preset} if preset else {}
    return RowResult(
        row="",
        data=data.name,
        encoder=name_encoder(config),
        seed=config.seed,
        split=split,
        documents=data.corpus.count(),
        queries=queries,
        candidates=config.candidates,
        bytes_per_doc=config.bytes_per_doc,
        settings=settings,
    )


def name_encoder(config: TrainConfig) -> str:
    """Name the encoder: the last part of its id or folder."""
    return Path(config.encoder.backbone).name
