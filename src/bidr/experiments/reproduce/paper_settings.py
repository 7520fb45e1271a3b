"""The paper's own settings as presets, for whoever has its data."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from bidr.training.config import BUILT_IN, TrainConfig
from bidr.training.config_validation import EncoderKind
from bidr.training.presets import replace_settings

CANDIDATES = 1_000
DEFAULTS: dict[str, Any] = {"bytes_per_doc": 8, "candidates": CANDIDATES}
"""What `bidr reproduce` takes without a preset, where it differs from `bidr train`."""
METHOD: dict[str, Any] = {
    "candidates": CANDIDATES,
    "warmup.negatives": "bm25",
    "sparse.negatives": "bm25",
    "sparse.loss": "quantized",
    "dense.depth": 200,
    "dense.walk": "paper",
}
"""The paper's method: N, BM25 negatives, equation 3, a graph of the top 200 and its walk."""


class Preset(NamedTuple):
    """Settings of one of the paper's datasets, and the dataset's size for `--plan`."""

    description: str
    settings: Mapping[str, Any]
    documents: int
    train_queries: int
    document_tokens: float
    """Mean tokens of a document as trained, cut at the maximum length."""
    document_bytes: int
    """Mean bytes of a document's text: 4.4 a token, markup of the files included."""
    files: str


def _make_settings(**changes: Any) -> dict[str, Any]:
    encoder = {"encoder.backbone": "FacebookAI/roberta-base", "encoder.pooling": "cls"}
    return METHOD | encoder | {key.replace("__", "."): value for key, value in changes.items()}


PRESETS: dict[str, Preset] = {
    "msmarco-passage": Preset(
        "Web Search (P): MS MARCO passages, RoBERTa-base, 96 bytes",
        _make_settings(
            text__document_length=128, text__query_length=32, batch_size=1_024, learning_rate=1e-4, bytes_per_doc=96
        ),
        documents=8_841_823,
        train_queries=502_939,
        document_tokens=79.6,
        document_bytes=350,
        files="collection.tsv, queries.train.tsv, qrels.train.tsv, queries.dev.tsv, qrels.dev.small.tsv",
    ),
    "msmarco-document": Preset(
        "Web Search (D): MS MARCO documents, RoBERTa-base, 96 bytes",
        _make_settings(
            text__document_length=512, text__query_length=32, batch_size=160, learning_rate=5e-5, bytes_per_doc=96
        ),
        documents=3_213_835,
        train_queries=367_013,
        document_tokens=448.5,
        document_bytes=6_900,
        files="msmarco-docs.tsv, msmarco-doctrain-queries.tsv, msmarco-doctrain-qrels.tsv, msmarco-docdev-queries.tsv, "
        "msmarco-docdev-qrels.tsv",
    ),
    "ads": Preset(
        "Sponsored Search: a billion ads (not public), RoBERTa-base projected to 64 dimensions, 8 bytes",
        _make_settings(
            text__document_length=12,
            text__query_length=12,
            batch_size=2_048,
            learning_rate=2e-4,
            bytes_per_doc=8,
            encoder__projection=64,
        ),
        documents=1_000_000_000,
        train_queries=3_000_000,
        document_tokens=8.1,
        document_bytes=36,
        files="any of the formats of `bidr train`",
    ),
}


def make_default_settings() -> TrainConfig:
    """Return the settings of `bidr reproduce` without a preset."""
    return TrainConfig(**DEFAULTS)


def make_settings(preset: str | None, encoder: str | None) -> TrainConfig:
    """Return the settings of a preset with the encoder to use instead of the paper's.

    The built-in encoder has no pooling, and dimensions of its own instead of a projection.
    """
    settings = dict(PRESETS[preset].settings) if preset else dict(DEFAULTS)
    if encoder is not None:
        settings["encoder.backbone"] = encoder
    if settings.get("encoder.backbone") == BUILT_IN:
        settings.pop("encoder.pooling", None)
        projection = settings.pop("encoder.projection", None)
        settings |= {"encoder.dim": projection} if projection else {}
    return replace_settings(TrainConfig(), settings)


def list_deviations(settings: Mapping[str, Any], encoder_kind: EncoderKind) -> list[str]:
    """List in which settings of the method a run differs from the paper.

    Args:
        settings: those that differ from the defaults of `bidr train`, by dotted name.
        encoder_kind: kind of the encoder, which the default negatives depend on.
    """
    defaults = TrainConfig()
    lines = []
    for key, value in METHOD.items():
        part, _, name = key.rpartition(".")
        ours = settings.get(key, getattr(getattr(defaults, part) if part else defaults, name))
        if ours is None and key.endswith(".negatives"):
            ours = "bm25" if encoder_kind == "transformer" else "in-batch"
        if ours != value:
            lines.append(f"`{key}` is {ours!r}, the paper's is {value!r}")
    return lines
