"""Estimate GPU hours, disk and RAM of a reproduction before anything is trained."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bidr.data.dataset import Dataset
from bidr.errors import ConfigError
from bidr.experiments.reproduce.measurement import HNSW_LINKS
from bidr.experiments.reproduce.paper_settings import PRESETS
from bidr.experiments.reproduce.row_runner import name_index
from bidr.experiments.reproduce.row_specs import RowSpec, select_rows
from bidr.index.cost_model.sizes import Shape, estimate_ram
from bidr.planning.plan import measure_corpus
from bidr.training.config import TrainConfig
from bidr.training.stage_cache import name_stage

GIB = 1 << 30
# Model FLOPs a second of bidr's own steps on one H200: 24.6 % of 989 TFLOP/s (docs/reports/training-speed.md).
FLOPS_PER_SECOND = 243e12
QUERY_TOKENS, BYTES_PER_TOKEN = 8.0, 4.4
TOKEN_STORE_BYTES, FLOAT_BYTES, HALF_BYTES = 4, 4, 2
# Weights with embeddings, their best copy and the optimizer's two moments, while a stage is trained.
CHECKPOINT_COPIES = 4


@dataclass(frozen=True, kw_only=True)
class EncoderSize:
    """Parameters of a transformer: of its layers, which take the time, and of all, which take the space."""

    layer_parameters: int
    all_parameters: int
    dim: int
    source: str


BASE_ENCODER = EncoderSize(
    layer_parameters=85_000_000, all_parameters=125_000_000, dim=768, source="RoBERTa-base, 12 layers of 768"
)


@dataclass(frozen=True, kw_only=True)
class CorpusSize:
    """Size of a dataset."""

    documents: int
    train_queries: int
    document_tokens: float
    text_bytes: float
    source: str


def estimate_costs(
    config: TrainConfig, data: Dataset | None, preset: str | None, *, seeds: int, only: Sequence[str]
) -> dict[str, Any]:
    """Estimate the costs of the selected rows of all seeds, for JSON and for `format_costs`."""
    if seeds < 1:
        raise ConfigError(f"seeds: given {seeds}, expected 1 or more")
    corpus, encoder, specs = measure_size(config, data, preset), read_encoder_size(config), select_rows(only, config)
    stages = list_stages(config, specs)
    indexes = {name_index(spec): spec for spec in specs if spec.recipe}
    training = sum(count_stage_flops(stage, settings, corpus, encoder) for stage, settings in stages.items())
    encodings = 2 * len(indexes) + sum(count_encodings(stage, settings) for stage, settings in stages.items())
    encoding = encodings * 2 * encoder.layer_parameters * corpus.documents * corpus.document_tokens
    hours = {"training": training / FLOPS_PER_SECOND / 3_600, "encoding": encoding / FLOPS_PER_SECOND / 3_600}
    dim = config.encoder.projection or encoder.dim
    vectors = corpus.documents * dim * HALF_BYTES
    shared_indexes = sum(1 for name in indexes if sum(name_index(spec) == name for spec in specs) > 1)
    weights = FLOAT_BYTES * encoder.all_parameters
    disk = {
        "dataset": corpus.documents * corpus.text_bytes,
        "tokens": corpus.documents * corpus.document_tokens * TOKEN_STORE_BYTES,
        "stages": len(stages) * weights + CHECKPOINT_COPIES * weights,
        "indexes": (shared_indexes + 1) * (vectors + corpus.documents * (config.bytes_per_doc + corpus.text_bytes)),
        "vectors while encoding": 2.0 * vectors,
    }
    shape = Shape(corpus.documents, dim, "scan", 8 if config.codewords == 256 else 4, config.bytes_per_doc, live=False)
    ram = {"codes (search)": float(sum(estimate_ram(shape).values()))}
    if any(spec.kind == "hnsw" for spec in specs):
        links = 2 * HNSW_LINKS * FLOAT_BYTES
        # The vectors are in memory twice while the graph is built.
        ram["full vectors in HNSW (table 2)"] = float(corpus.documents * (2 * dim * FLOAT_BYTES + links))
    return {
        "corpus": asdict(corpus),
        "encoder": None if config.encoder_kind != "transformer" else asdict(encoder),
        "preset": preset,
        "seeds": seeds,
        "rows": [spec.name for spec in specs],
        "stages": len(stages),
        "corpus_encodings": encodings,
        "gpu_hours_a_seed": None if config.encoder_kind != "transformer" else hours,
        "gpu_hours": None if config.encoder_kind != "transformer" else seeds * sum(hours.values()),
        "disk_bytes_a_seed": disk,
        "ram_bytes": ram,
        "flops_per_second": FLOPS_PER_SECOND,
    }


def measure_size(config: TrainConfig, data: Dataset | None, preset: str | None) -> CorpusSize:
    """Measure a dataset, or take the size of the preset's."""
    longest = float(config.text.document_length)
    if data is None:
        size = PRESETS[str(preset)]
        return CorpusSize(
            documents=size.documents,
            train_queries=size.train_queries,
            document_tokens=min(size.document_tokens, longest),
            text_bytes=size.document_bytes,
            source=f"{size.description}: {size.files}",
        )
    stats = measure_corpus(data.corpus, config.text.titles)
    return CorpusSize(
        documents=stats.documents,
        train_queries=len(data.split("train").queries),
        document_tokens=min(stats.text_bytes / BYTES_PER_TOKEN, longest),
        text_bytes=stats.text_bytes,
        source=f"{data.name}, counted; {BYTES_PER_TOKEN} bytes a token",
    )


def read_encoder_size(config: TrainConfig) -> EncoderSize:
    """Read the size of an encoder's folder; an id is taken for a model of the size of RoBERTa-base."""
    path = Path(config.encoder.backbone) / "config.json"
    if not path.is_file():
        return BASE_ENCODER
    fields = json.loads(path.read_text(encoding="utf-8"))
    try:
        layers, dim = int(fields["num_hidden_layers"]), int(fields["hidden_size"])
        inner, vocabulary = int(fields["intermediate_size"]), int(fields["vocab_size"])
    except (KeyError, TypeError, ValueError):
        return BASE_ENCODER
    parameters = layers * (4 * dim * dim + 2 * dim * inner)
    return EncoderSize(
        layer_parameters=parameters, all_parameters=parameters + vocabulary * dim, dim=dim, source=str(path.parent)
    )


def list_stages(config: TrainConfig, specs: Sequence[RowSpec]) -> dict[str, TrainConfig]:
    """List the distinct stages that the rows train, with settings: a stage is trained once for all rows."""
    stages = {}
    for spec in specs:
        if not spec.recipe:
            continue
        settings = spec.make_config(config)
        names = ["warmup"]
        if settings.method == "auto":
            names += list_choice_stages(settings)
        elif settings.method == "conventional":
            names += ["conventional", *(["sparse"] if settings.conventional.codes == "learned" else [])]
        else:
            sampler = settings.dense.sampler
            names += ["sparse"] if spec.kind == "unquantized" else ["sparse", f"dense-{sampler}"]
            names += [f"unify-{sampler}"] if settings.unify.epochs else []
        stages.update({name_stage(name, settings, config): settings for name in names})
    return stages


def list_choice_stages(config: TrainConfig) -> list[str]:
    """List the stages after the warm-up that the contenders of `choice` train."""
    vectors = config.choice.vectors
    unified = [f"dense-{config.dense.sampler}", f"unify-{config.dense.sampler}"] if "unified" in vectors else []
    names = ["sparse"] if "contrastive" in config.choice.codes or unified else []
    names += ["conventional"] if "conventional" in vectors else []
    names += [f"dense-{name}" for name in ("random-walk", "snowball") if name in vectors]
    return list(dict.fromkeys([*names, *unified]))


def count_stage_flops(stage: str, config: TrainConfig, corpus: CorpusSize, encoder: EncoderSize) -> float:
    """Count the FLOPs of a stage's epochs: 6 a parameter and token, for the query and the documents of each step."""
    kind = stage.partition("+")[0].partition("-")[0]
    epochs = {
        "warmup": config.warmup.epochs,
        "sparse": config.sparse.epochs,
        "dense": config.dense.epochs,
        "unify": config.unify.epochs,
        "conventional": count_conventional_epochs(config),
    }[kind]
    tokens = QUERY_TOKENS if kind == "unify" else QUERY_TOKENS + 2 * corpus.document_tokens
    return 6.0 * encoder.layer_parameters * tokens * corpus.train_queries * epochs


def count_conventional_epochs(config: TrainConfig) -> int:
    """Count the epochs of the conventional stage if all stages have batches of one size."""
    learned, fixed = config.conventional.codes in ("learned", "taught"), config.conventional.epochs
    if fixed is not None:
        return fixed
    return config.dense.epochs + (0 if learned else config.sparse.epochs) + config.unify.epochs


def count_encodings(stage: str, config: TrainConfig) -> int:
    """Count how often a stage encodes the corpus: to mine negatives, or for candidates by codes."""
    kind = stage.partition("+")[0].partition("-")[0]
    if kind == "conventional" and config.conventional.negatives.startswith("refreshed"):
        return count_conventional_epochs(config)
    mines = kind == "conventional" and config.conventional.negatives.startswith("mined")
    return int(mines or kind in ("sparse", "unify"))


def format_costs(costs: dict[str, Any]) -> str:
    """Format the estimate, and what it rests on."""
    corpus, encoder, hours = costs["corpus"], costs["encoder"], costs["gpu_hours_a_seed"]
    lines = [
        f"data      {corpus['source']}",
        f"          {corpus['documents']:,} documents of {corpus['document_tokens']:.0f} tokens, "
        f"{corpus['train_queries']:,} train queries",
        f"rows      {len(costs['rows'])} a seed, {costs['seeds']} seeds; {costs['stages']} stages and "
        f"{costs['corpus_encodings']} encodings of the corpus a seed",
    ]
    if encoder is None:
        lines.append("GPU       none: the built-in encoder is trained on the CPU, not estimated")
    else:
        lines += [
            f"encoder   {encoder['layer_parameters'] / 1e6:.1f} M parameters in its layers ({encoder['source']})",
            f"GPU       {costs['gpu_hours']:,.1f} hours; a seed: training {hours['training']:,.1f}, "
            f"encoding {hours['encoding']:,.1f}",
        ]
    disk, ram = costs["disk_bytes_a_seed"], costs["ram_bytes"]
    parts = ", ".join(f"{name} {size / GIB:,.1f}" for name, size in disk.items())
    lines.append(f"disk      {sum(disk.values()) / GIB:,.1f} GiB for a seed at a time: {parts}")
    lines += [f"RAM       {size / GIB:,.2f} GiB: {name}" for name, size in ram.items()]
    lines.append(
        f"rests on  {costs['flops_per_second'] / 1e12:.0f} TFLOP/s, measured on one H200 with MiniLM "
        "(docs/reports/training-speed.md); 6 FLOPs a parameter and token to train, 2 to encode; queries of "
        f"{QUERY_TOKENS:.0f} tokens; mining, tokenizing, building and searching are not counted"
    )
    return "\n".join(lines)
