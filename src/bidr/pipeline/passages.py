"""Learn codes without labels: passages of the documents serve as queries."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from bidr.data.dataset import Dataset, compose_text
from bidr.data.types import Document
from bidr.data.vector_source import VectorSource
from bidr.index.builder.journal import Step, WorkFolder, write_array
from bidr.index.storage.manifest import hash_bytes
from bidr.pipeline.index_encoder import IndexEncoder
from bidr.quantization.codebooks import Codebooks
from bidr.quantization.opq_config import DEFAULT_BYTES, PlainCodes
from bidr.training.codes_only.train import train_codes_only
from bidr.training.config import TrainConfig
from bidr.utils.array_types import Floats
from bidr.utils.files import remove
from bidr.utils.progress import show_progress

PASSAGES, PASSAGES_FILE = 10_000, "passages.npy"
MIN_WORDS, MAX_WORDS = 4, 16
TEXTS_AT_ONCE = 512


class PassageLearner:
    """Learns codes of an encoder's vectors from passages; an interrupted run is resumed.

    settings: JSON value of what the codes depend on beside the vectors.
    """

    def __init__(self, data: Dataset, encoder: IndexEncoder, plain: PlainCodes, sample: int, work: WorkFolder) -> None:
        config = TrainConfig(
            bytes_per_doc=plain.bytes_per_doc or DEFAULT_BYTES, codewords=plain.codewords, seed=plain.seed
        )
        self.data, self.encoder, self.work = data, encoder, work
        self.config = replace(config, frozen=replace(config.frozen, sample=sample))
        self._draw = [data.corpus.fingerprint(), list(encoder.reference), PASSAGES, MIN_WORDS, MAX_WORDS, plain.seed]
        self.settings = [self._draw, plain._asdict(), sample]

    def learn(self, documents: VectorSource) -> Codebooks:
        """Learn codes that rank the documents as their vectors do for the passages."""
        self.work.run_step(PASSAGES_FILE, self._draw, self._write_passages)
        passages = np.load(self.work.folder / PASSAGES_FILE, mmap_mode="r")
        run = self.work.folder / f"learned-{hash_bytes(repr(self.settings).encode())[:16]}"
        if run.exists() and not (run / "work" / "run.json").exists():
            remove(run)  # killed before the first checkpoint
        model = train_codes_only(documents, VectorSource(passages, "passages", documents.metric), self.config, run)
        return model.additive.to_adapted_codebooks()

    def _write_passages(self, step: Step) -> None:
        passages = draw_passages(self.data.corpus, self.data.corpus.count(), self.encoder, self.config.seed)
        shape = (len(passages), self.encoder.encoder.dim)
        with show_progress("encode passages", len(passages), "passages") as advance:

            def iter_blocks() -> Iterable[Floats]:
                for start in range(0, len(passages), TEXTS_AT_ONCE):
                    block = passages[start : start + TEXTS_AT_ONCE]
                    yield self.encoder.encode_queries(block)
                    advance(len(block))

            write_array(step, PASSAGES_FILE, np.dtype(np.float32), shape, iter_blocks())


def draw_passages(corpus: Iterable[Document], count: int, encoder: IndexEncoder, seed: int) -> list[str]:
    """Draw short passages of random documents: windows of a few words, or the title."""
    random = np.random.default_rng((seed, 7))
    rows = np.sort(random.choice(count, PASSAGES, replace=count < PASSAGES))
    repeats = np.bincount(rows, minlength=count)
    passages = []
    for row, document in enumerate(corpus):
        for _ in range(repeats[row]):
            words = compose_text(document, encoder.titles).split()
            length = int(random.integers(MIN_WORDS, MAX_WORDS + 1))
            start = int(random.integers(0, max(len(words) - length, 0) + 1))
            passages.append(" ".join(words[start : start + length]))
    return [passage for passage in passages if passage]
