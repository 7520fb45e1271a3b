"""Variants for a comparison with less memory than data: the indexes of every peer, and the settings to choose from.

Graphs have 16 links, those on disk as many as their library's authors use for their own figures.
"""

from collections.abc import Callable

from bidr.bench.variants import Settings, Variant, check_code_bytes, count_lists

DEPTHS = (100, 150, 200, 300, 400, 600, 800, 1_000, 1_500, 2_000)
WIDTHS = (100, 150, 200, 300, 400, 600, 800, 1_200)
# pgvector accepts no more than 1,000.
DATABASE_WIDTHS = (100, 200, 400, 700, 1_000)
SHARES = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32)
# Rescoring reads 100 times the oversampling; a graph search returns no more than its width.
RESCORED = (1.0, 1.5, 2.0, 3.0, 4.0, 8.0)
GRAPH: Settings = {"links": 16, "ef_construction": 100}


def list_limited_variants(peers: tuple[str, ...], count: int, dim: int, code_bytes: tuple[int, ...]) -> list[Variant]:
    """Return the variants of the given peers."""
    check_code_bytes(dim, code_bytes)
    return [variant for peer in peers for variant in _LISTS[peer](count_lists(count), code_bytes)]


def _list_ours(lists: int, sizes: tuple[int, ...]) -> list[Variant]:
    grid: list[Settings] = [{"candidates": depth} for depth in DEPTHS]
    settings = {size: {"fitted": 2 * size, "engine": "auto"} for size in sizes}
    return [Variant(f"bidr {size} B", "ours", settings[size], grid, None, on_disk=True) for size in sizes]


def _list_qdrant(lists: int, sizes: tuple[int, ...]) -> list[Variant]:
    pairs = [(width, factor) for width in (100, 200, 400, 800) for factor in RESCORED if width >= 100 * factor]
    grid: list[Settings] = [{"ef": width, "oversampling": factor} for width, factor in pairs]
    names = {bits: f"Qdrant TurboQuant {bits} bit" for bits in (1, 2)}
    return [Variant(name, "qdrant", {**GRAPH, "bits": bits}, grid, None, on_disk=True) for bits, name in names.items()]


def _list_zvec(lists: int, sizes: tuple[int, ...]) -> list[Variant]:
    settings = {"links": 64, "ef_construction": 50, "bytes": sizes[-1]}
    return [Variant(f"zvec DiskANN {sizes[-1]} B", "zvec", settings, _make_widths(WIDTHS), None, on_disk=True)]


def _list_diskann(lists: int, sizes: tuple[int, ...]) -> list[Variant]:
    settings = {"links": 32, "ef_construction": 64, "bytes": sizes[-1]}
    return [Variant(f"DiskANN {sizes[-1]} B", "diskann", settings, _make_widths(WIDTHS), None, on_disk=True)]


def _list_lancedb(lists: int, sizes: tuple[int, ...]) -> list[Variant]:
    probed = _count_probed(lists // 2, SHARES[1:-1])
    grid: list[Settings] = [{"nprobe": number, "candidates": depth} for number in probed for depth in (200, 500, 1_000)]
    settings = {"books": sizes[-1], "lists": lists // 2}
    return [Variant(f"LanceDB IVF_PQ {sizes[-1]} B", "lancedb", settings, grid, None, on_disk=True)]


def _list_turbovec(lists: int, sizes: tuple[int, ...]) -> list[Variant]:
    return [Variant("turbovec 2 bit", "turbovec", {"bits": 2}, [{"candidates": depth} for depth in DEPTHS[:-3]])]


def _list_rabitqlib(lists: int, sizes: tuple[int, ...]) -> list[Variant]:
    probed = _count_probed(lists, SHARES[1:])
    grid: list[Settings] = [{"nprobe": number, "candidates": depth} for number in probed for depth in DEPTHS[:7:2]]
    return [
        Variant("RaBitQ IVF 1 bit", "rabitqlib", {"kind": "lists", "bits": 1, "lists": lists}, grid),
        Variant(
            "SymphonyQG",
            "rabitqlib",
            {"kind": "graph", "links": 32, "ef_construction": 200},
            _make_widths(WIDTHS),
            None,
        ),
    ]


def _list_pgvector(lists: int, sizes: tuple[int, ...]) -> list[Variant]:
    grid = _make_widths(DATABASE_WIDTHS)
    return [
        Variant(f"pgvector HNSW {kind}", "pgvector", {**GRAPH, "kind": kind}, grid, None, on_disk=True)
        for kind in ("halfvec", "bits")
    ]


def _list_faiss(lists: int, sizes: tuple[int, ...]) -> list[Variant]:
    grid: list[Settings] = [{"nprobe": number} for number in _count_probed(lists, SHARES)]
    return [Variant("Faiss IVF fp16 on disk", "faiss-disk", {"lists": lists}, grid, None, on_disk=True)]


def _list_usearch(lists: int, sizes: tuple[int, ...]) -> list[Variant]:
    return [Variant("usearch f16 view", "usearch-disk", GRAPH, _make_widths(WIDTHS), None, on_disk=True)]


def _list_hnswlib(lists: int, sizes: tuple[int, ...]) -> list[Variant]:
    return [Variant("hnswlib fp32", "hnswlib", GRAPH, _make_widths(WIDTHS), None)]


def _make_widths(widths: tuple[int, ...]) -> list[Settings]:
    return [{"ef": width} for width in widths]


def _count_probed(lists: int, shares: tuple[float, ...]) -> list[int]:
    return list(dict.fromkeys(max(1, round(share * lists)) for share in shares))


_LISTS: dict[str, Callable[[int, tuple[int, ...]], list[Variant]]] = {
    "ours": _list_ours,
    "qdrant": _list_qdrant,
    "zvec": _list_zvec,
    "diskann": _list_diskann,
    "lancedb": _list_lancedb,
    "turbovec": _list_turbovec,
    "rabitqlib": _list_rabitqlib,
    "pgvector": _list_pgvector,
    "faiss-disk": _list_faiss,
    "usearch-disk": _list_usearch,
    "hnswlib": _list_hnswlib,
}
PEERS = tuple(_LISTS)
"""Peers of the comparison with less memory than data."""
