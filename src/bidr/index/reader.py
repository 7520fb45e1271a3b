"""Open and read one generation of an index: codes in RAM, vectors and documents on disk."""

from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from bidr.errors import REBUILD, ConfigError, DataError, IndexFolderError, ModelError
from bidr.index.builder.build import VECTORS_FILE
from bidr.index.candidate_source import Candidates
from bidr.index.documents.document_store import IDS, DocumentStore
from bidr.index.documents.id_index import IdIndex
from bidr.index.engines.engine_files import (
    CENTROIDS_FILE,
    LEARNED_FILE,
    ORDER_FILE,
    RAM_FILES,
    list_ram_files,
    load_engine,
    open_order,
    read_array,
)
from bidr.index.engines.ivf import IvfEngine, get_default_nprobe
from bidr.index.faiss_conversion import IvfLists, export_faiss, export_lists
from bidr.index.lexical.postings_files import LexicalIndex
from bidr.index.ram_usage import RamUsage, measure_ram_usage
from bidr.index.storage.checksums import VerifiedArray, list_unverified_files
from bidr.index.storage.manifest import (
    Manifest,
    ModelReference,
    check_content,
    open_generation,
    open_segment,
    read_current,
)
from bidr.index.vectors import CacheSize, VectorFile, VectorMemory
from bidr.quantization.codebooks import Codebooks
from bidr.quantization.learned_ivf import LearnedIvf
from bidr.utils.array_types import Rows

if TYPE_CHECKING:
    from bidr.index.live.view import LiveCandidates


class Parts(NamedTuple):
    """The opened parts of a segment."""

    candidates: Candidates
    vectors: VectorFile
    documents: DocumentStore
    order: VerifiedArray | None
    words: LexicalIndex | None


class IndexReader:
    """One generation of an index. It stays readable while newer ones are written.

    `candidates` and `vectors` use positions (index order, by cluster), `documents` uses rows (input order). `rows_of`
    maps positions to rows.
    """

    def __init__(self, folder: Path, generation: Path, manifest: Manifest, parts: Parts) -> None:
        self.folder, self.generation, self.manifest = folder, generation, manifest
        self.candidates, self.vectors, self.documents, self._order, self.words = parts
        # Read now: codebooks are mapped, and reading them after the file was cut off ends the process.
        self.has_codes = manifest.books > 1 or bool(self.codebooks.centroids.any())
        """Whether codes distinguish documents; not in an index that was created empty, until they are fitted."""

    @classmethod
    def open(
        cls,
        folder: Path | str,
        expect_model: str | None = None,
        ef: int | None = None,
        cache: CacheSize = None,
    ) -> Self:
        """Open the current generation.

        Args:
            expect_model: fingerprint of the model that encodes the queries; an index of another model is refused.
            ef: ef_search of a graph or nprobe of lists (default: by the number of candidates and documents).
            cache: memory for vectors (see `VectorMemory`).
        """
        folder, memory = Path(folder), VectorMemory(cache)
        while True:
            generation, manifest = open_generation(folder)
            check_model(folder, manifest.model, expect_model)
            try:
                reader = cls(folder, generation, manifest, _open_parts(generation, manifest, ef, memory))
                memory.vector_bytes = reader.vectors.size
                return reader
            except IndexFolderError:
                if read_current(folder)[0] == generation.name:
                    raise
                # Retry: a writer committed a newer generation and removed this one meanwhile.

    @classmethod
    def open_segment(cls, folder: Path, name: str, digest: str, ef: int | None, memory: VectorMemory) -> Self:
        """Open one segment of a live index; memory: what its segments share."""
        manifest = open_segment(folder, name, digest)
        return cls(folder, folder / name, manifest, _open_parts(folder / name, manifest, ef, memory))

    @cached_property
    def id_index(self) -> IdIndex:
        """Rows by id; opened by the first lookup."""
        return IdIndex(self.generation, self.manifest, self.count)

    def latest(self) -> Self:
        """Return itself: a generation is immutable. `LiveIndex.latest` returns the newest state."""
        return self

    def select(self, expression: Any) -> "LiveCandidates":
        """Return the candidate engine restricted to the documents that match a filter."""
        from bidr.index.live.view import LiveView

        return LiveView.from_reader(self).select(expression)

    def places(self) -> Rows:
        """Return the positions of all documents."""
        return np.arange(self.count)

    @property
    def count(self) -> int:
        return self.manifest.count

    @property
    def codebooks(self) -> Codebooks:
        return self.candidates.codebooks

    @property
    def ordered(self) -> bool:
        """Whether positions differ from rows."""
        return self._order is not None

    @property
    def order(self) -> npt.NDArray[Any] | None:
        """The row of each position, validated; None: positions are rows."""
        return None if self._order is None else self._order.read_all()

    def rows_of(self, positions: Rows) -> Rows:
        """Return the rows at positions; -1 stays -1."""
        if self._order is None:
            return positions
        rows = self._order.take(positions).astype(np.int64)
        if (positions < 0).any():
            rows[positions < 0] = -1
        return rows

    def to_faiss(self, engine: str = "scan") -> Any:
        """Return the codes as a Faiss index over rows by inner product; `import_faiss` is the inverse.

        Args:
            engine: "scan" (`IndexPQ`), "hnsw" (`IndexHNSWPQ`, built now), or, of an index with lists, "lists"
                (`IndexIVFPQ` with the same lists and nprobe).
        """
        codes = self.candidates.unpack_codes()
        if engine == "lists":
            lists = self.export_ivf_lists()
            return export_lists(self.codebooks, codes, lists, get_default_nprobe(len(lists.centroids)))
        if (order := self.order) is not None:
            codes[order] = codes.copy()
        return export_faiss(self.codebooks, codes, engine=engine)

    def export_ivf_lists(self) -> IvfLists:
        """Return the inverted lists for a Faiss export."""
        order = self.order
        if not isinstance(self.candidates, IvfEngine) or order is None:
            raise ConfigError(
                f"{self.folder}: its engine is {self.manifest.engine!r}, expected 'lists' to export lists; "
                "export 'scan', or build it with engine 'lists'"
            )
        centroids = read_array(self.generation / CENTROIDS_FILE, np.dtype("<f4"), 2)
        return IvfLists(centroids, self.candidates.offsets, order)

    def load_learned_lists(self) -> LearnedIvf | None:
        """Load the learned lists of the model, if the index uses them."""
        if LEARNED_FILE not in self.manifest.files:
            return None
        check_content(self.generation, self.manifest, LEARNED_FILE)
        try:
            lists = LearnedIvf.load(self.generation / LEARNED_FILE)
            lists.check(self.manifest.code_dim)
        except (ModelError, DataError) as error:
            raise IndexFolderError(f"{self.generation / LEARNED_FILE}: {error}; {REBUILD}") from error
        return lists

    @property
    def ram_usage(self) -> RamUsage:
        """RAM by part."""
        return measure_ram_usage(self.candidates.ram_bytes, [self], self.count)

    @property
    def ram_bytes_per_doc(self) -> float:
        """Bytes of RAM per document, all parts."""
        return self.ram_usage.per_document

    @property
    def ram_bytes(self) -> dict[str, int]:
        """Bytes of RAM by part."""
        return self.ram_usage.parts

    def describe(self) -> dict[str, Any]:
        """Describe the index and the RAM and disk space of its parts, in total and per document."""
        manifest = self.manifest
        return {
            "folder": str(self.folder),
            "generation": self.generation.name,
            "format": manifest.format,
            "documents": self.count,
            "engine": manifest.engine,
            "engine_chosen_by_size": manifest.auto,
            "lists": self._describe_lists(),
            "metric": "cosine" if manifest.unit else manifest.metric,
            "vectors": {
                "stored": self.vectors.kind,
                "checked": self.vectors.has_checksums,
                "reads": self.vectors.reads,
                **self.vectors.memory.describe(),
            },
            "dimensions": {"vectors": manifest.dim, "stored": manifest.stored_dim, "codes": manifest.code_dim},
            "codes": {"books": manifest.books, "codewords": manifest.words, "fitted": self.has_codes},
            "ids": f"{IDS}.blob" in manifest.files,
            "text": self.documents.has_text,
            "unchecked": list_unverified_files(manifest),
            "lexical": self.words is not None,
            "model": manifest.model._asdict() if manifest.model else None,
            "encoder": manifest.encoder._asdict() if manifest.encoder else None,
            "ram_bytes_per_document": self.ram_usage.to_json(),
            "disk_bytes": {name: entry.size for name, entry in sorted(manifest.files.items())},
            "disk_bytes_per_document": {
                name: round(entry.size / self.count, 2) for name, entry in sorted(manifest.files.items())
            },
        }

    def _describe_lists(self) -> dict[str, Any] | None:
        """Return the number and the origin of the lists; None if the engine has none."""
        if not isinstance(self.candidates, IvfEngine):
            return None
        return {
            "count": self.candidates.list_count,
            "made_by": "model" if LEARNED_FILE in self.manifest.files else "k-means",
        }

    def verify(self) -> None:
        """Verify the checksums of all files."""
        for name in self.manifest.files:
            check_content(self.generation, self.manifest, name)

    def close(self) -> None:
        if (id_index := self.__dict__.get("id_index")) is not None:
            id_index.close()
        self.vectors.close()
        self.documents.close()
        if self._order is not None:
            self._order.close()
        if self.words is not None:
            self.words.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _open_parts(generation: Path, manifest: Manifest, ef: int | None, memory: VectorMemory) -> Parts:
    if manifest.engine not in RAM_FILES:
        raise IndexFolderError(
            f"{generation}: unknown engine {manifest.engine!r} in the manifest, expected one of "
            f"{', '.join(RAM_FILES)}; {REBUILD}"
        )
    # Files that are read into RAM are verified now, the others on first access.
    for name in list_ram_files(manifest, manifest.engine):
        check_content(generation, manifest, name)
    vectors = VectorFile.open(generation / VECTORS_FILE, memory=memory)
    vectors.by_distance = manifest.similarity == "l2"
    documents = DocumentStore.open(generation, manifest.count, manifest)
    try:
        candidates = load_engine(generation, manifest.engine, ef, manifest)
    except MemoryError as error:
        required_bytes = sum(manifest.files[name].size for name in list_ram_files(manifest, manifest.engine))
        raise IndexFolderError(
            f"{generation}: needs more than {required_bytes:,} bytes of RAM, which are not available"
        ) from error
    order = open_order(generation, manifest, manifest.count) if ORDER_FILE in manifest.files else None
    actual = (candidates.count, vectors.count, vectors.dim, candidates.codebooks.dim)
    expected = (manifest.count, manifest.count, manifest.stored_dim, manifest.code_dim)
    if actual != expected:
        raise IndexFolderError(
            f"{generation}: codes, vectors and dimensions are {actual}, the manifest has {expected}; {REBUILD}"
        )
    return Parts(candidates, vectors, documents, order, LexicalIndex.open(generation, manifest, manifest.count))


def check_model(folder: Path, made_by: ModelReference | None, expected: str | None) -> None:
    """Refuse an index of a model other than the one that encodes the queries."""
    if expected is None:
        return
    if made_by is None:
        raise IndexFolderError(
            f"{folder}: made from vectors without a model, but queries come from model {expected}; "
            "search it with vectors, or build it with that model"
        )
    if made_by.fingerprint != expected:
        raise IndexFolderError(
            f"{folder}: made by model {made_by.fingerprint} ({made_by.folder}), "
            f"but queries come from model {expected}; open it with the model that made it, or build it again"
        )
