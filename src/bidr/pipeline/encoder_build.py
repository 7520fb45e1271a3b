"""Build an index from texts and a pretrained encoder, with codes fitted to its vectors or learned from passages."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bidr.data.dataset import Dataset, Titles, check_corpus
from bidr.data.vector_source import VectorSource, check_dims
from bidr.errors import ConfigError
from bidr.index.builder.journal import WorkFolder, open_work_folder
from bidr.index.cost_model.build_memory import (
    BASE,
    check_budget,
    estimate_build_peaks,
    read_anonymous_memory,
    watch_memory,
)
from bidr.models.corpus_encoding import BY_DEVICE, TOKENS_PER_BATCH, Batching, device_type, encode_corpus
from bidr.models.corpus_tokens import tokenize_corpus
from bidr.models.encoder_source import read_encoder_metric
from bidr.models.static_encoder import StaticEncoder
from bidr.pipeline.build import collect_ids, fit_and_write, get_shape, has_attributes, report_zero_rows
from bidr.pipeline.index_encoder import IndexEncoder, open_index_encoder
from bidr.quantization.codebooks import Codebooks
from bidr.quantization.opq_config import DEFAULT_BYTES, PlainCodes
from bidr.quantization.pq_training import make_too_few_error
from bidr.utils.array_types import Floats
from bidr.utils.byte_sizes import parse_bytes
from bidr.utils.step_timer import time_step

ROWS_PER_BLOCK = 1_024
"""Rows between checkpoints on a CPU: some 30 seconds of a small transformer."""
MIN_TOKENS_PER_BATCH = 512
ACTIVATION_FLOATS, TOKENS_PER_FLOAT = 16, 16
"""Floats of activations per token and dimension of the vectors, and how many tokens of length add one more. A batch of
MiniLM took 18 at 256 tokens."""
LEARN_SAMPLE, MIN_LEARN_SAMPLE, LEARNING = 200_000, 10_000, 8
"""Documents to learn codes from, and temporary arrays of the size of their vectors."""


class EncoderBuildSettings(NamedTuple):
    """Settings of a build with a pretrained encoder (see `build`)."""

    query_prompt: str | None
    document_prompt: str | None
    max_length: int | None
    titles: Titles
    learn: bool
    plain: PlainCodes | None


class _MemoryPlan(NamedTuple):
    budget: int | None
    batching: Batching
    sample: int


def build_encoded(
    data: Dataset,
    encoder: Path | str,
    out: Path,
    settings: EncoderBuildSettings,
    tokens: Path | None,
    device: str,
    ram_budget: int | str | None,
    options: dict[str, Any],
) -> Path:
    """Build an index from texts and a pretrained encoder; an interrupted build is resumed."""
    opened = open_index_encoder(
        encoder,
        device,
        query_prompt=settings.query_prompt,
        document_prompt=settings.document_prompt,
        max_length=settings.max_length,
        titles=settings.titles,
    )
    dim = opened.encoder.dim
    plain = settings.plain or PlainCodes(codewords=256 if settings.learn else 16, metric=read_encoder_metric(encoder))
    options |= {"dims": check_dims(options["dims"], dim), "encoder": opened.reference}
    books = _count_books(plain, dim, learn=settings.learn)
    check_corpus(data, out)
    data.corpus.report_dropped_fields()
    count = data.corpus.count()
    if count < plain.codewords:
        raise make_too_few_error(count, plain.codewords)
    shape = get_shape(count, dim, books, plain.codewords.bit_length() - 1, options["engine"], options["stored"])
    lexical, attributes = bool(options["lexical"]), has_attributes(data)
    peaks = estimate_build_peaks(shape, has_ids=True, has_postings=lexical, has_attributes=attributes)
    plan = _plan_memory(opened, peaks, count, ram_budget, learn=settings.learn)
    named = collect_ids(None, data)
    with watch_memory(plan.budget), open_work_folder(out) as work:
        with time_step("encode"):
            vectors = _encode(data, opened, work, tokens, plan.batching)
        rows = VectorSource(vectors, "vectors", plain.metric)
        rows.refuse_all_zeros()
        fit: Callable[[], Codebooks] = partial(plain.fit, rows)
        fit_settings: Any = plain._asdict()
        if settings.learn:
            from bidr.pipeline.passages import PassageLearner

            learner = PassageLearner(data, opened, plain, plan.sample, work)
            fit, fit_settings = partial(learner.learn, rows), learner.settings
        fit_and_write(work, out, rows, fit, fit_settings, {**options, **named})
    report_zero_rows(rows)
    return out


def _encode(data: Dataset, opened: IndexEncoder, work: WorkFolder, tokens: Path | None, batching: Batching) -> Floats:
    """Encode all documents; the vectors are on disk."""
    reference = opened.reference
    store = tokenize_corpus(
        data,
        opened.encoder,
        tokens or work.folder / "tokens",
        titles=opened.titles,
        max_length=reference.max_length,
        prompt=reference.document_prompt,
    )
    vectors: Floats = encode_corpus(
        opened.encoder, store, work.folder / "encoded.npy", label="encode into vectors", batching=batching
    )
    return vectors


def _count_books(plain: PlainCodes, dim: int, *, learn: bool) -> int:
    """Return the number of codebooks. That of learned codes need not divide the dimensions."""
    if not learn:
        return plain.count_books(dim)
    size = DEFAULT_BYTES if plain.bytes_per_doc is None else plain.bytes_per_doc
    if size < 1:
        raise ConfigError(f"bytes_per_doc: given {size}, expected 1 or more")
    return 8 * size // (plain.codewords.bit_length() - 1)


def _plan_memory(
    opened: IndexEncoder, peaks: dict[str, int], count: int, ram_budget: int | str | None, *, learn: bool
) -> _MemoryPlan:
    """Check the budget; within a small one encode fewer tokens at once, and learn codes from a smaller sample."""
    encoder, device = opened.encoder, device_type(opened.encoder)
    batching = Batching(rows_per_block=ROWS_PER_BLOCK) if device == "cpu" else BY_DEVICE
    if isinstance(encoder, StaticEncoder):
        batching = BY_DEVICE
    if ram_budget is None:
        return _MemoryPlan(None, batching, LEARN_SAMPLE)
    available = parse_bytes("ram_budget", str(ram_budget)) - max(BASE, read_anonymous_memory())
    if device == "cpu" and not isinstance(encoder, StaticEncoder):
        floats = ACTIVATION_FLOATS + opened.reference.max_length // TOKENS_PER_FLOAT
        token_bytes, tokens = 4 * floats * encoder.dim, TOKENS_PER_BATCH["cpu"]
        while tokens > MIN_TOKENS_PER_BATCH and tokens * token_bytes > available:
            tokens //= 2
        peaks["encode"] = BASE + tokens * token_bytes
        batching = batching._replace(tokens_per_batch=tokens)
    sample = LEARN_SAMPLE
    if learn:
        row_bytes = 4 * LEARNING * encoder.dim
        sample = max(MIN_LEARN_SAMPLE, min(LEARN_SAMPLE, available // row_bytes))
        peaks["learn"] = BASE + min(sample, count) * row_bytes
    return _MemoryPlan(check_budget(ram_budget, peaks), batching, sample)
