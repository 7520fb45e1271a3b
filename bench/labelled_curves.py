"""Learned codes beside other libraries on labelled questions: R@100 against candidates read, bytes and speed.

python bench/labelled_curves.py docs.npy questions.npy --ids ids.txt --query-ids query_ids.txt \
    --train-qrels train.tsv --qrels dev.tsv --models runs/v --bytes-per-doc 8 16 --json-file out.json --svg out.svg

Codes are learned from the questions judged in --train-qrels, into MODELS-BYTES (with 16 codewords a book:
MODELS-BYTES-16); what is there already is taken. All rank their candidates by the same fp16 vectors on disk. See
`bidr bench`, whose harness measures.
"""

import json
import math
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tyro
from tyro.conf import Positional

from bidr.api import train_vectors
from bidr.bench.curves import COLOURS
from bidr.bench.run import Limits, Row, answered, compare, prepare
from bidr.bench.variants import Variant
from bidr.codes.vectors import VectorRows, open_vectors
from bidr.model.frozen import FrozenModel
from bidr.text.labels import label_rows, read_ids, read_judgements
from bidr.training.config import TrainConfig

DEPTHS = (100, 150, 200, 400, 1_000, 3_000)
SHOWN = (100, 200, 400, 1_000)
VISITED = (0.05, 0.1, 0.2)
CODES = "codes.npy"
Panel = list[tuple[str, list[tuple[float, float]]]]
Peer = Literal["learned", "opq", "faiss", "scann"]


def main(
    vectors: Positional[Path],
    questions: Positional[Path],
    train_qrels: Path,
    qrels: Path,
    models: Path,
    bytes_per_doc: tuple[int, ...] = (8, 16),
    codewords: tuple[Literal[256, 16], ...] = (256, 16),
    peers: tuple[Peer, ...] = ("learned", "opq", "faiss", "scann"),
    fuse: tuple[float, ...] = (),
    metric: Literal["cosine", "ip"] = "cosine",
    ids: Path | None = None,
    query_ids: Path | None = None,
    scann_python: str | None = None,
    targets: tuple[float, ...] = (0.9, 0.95, 1.0),
    rounds: int = 1,
    threads: int = 1,
    most: int | None = None,
    work: Path | None = None,
    join: tuple[Path, ...] = (),
    json_file: Path | None = None,
    svg: Path | None = None,
) -> None:
    """codewords: of learned codes, in a book.
    fuse:    also measure lists of learned codes with so much of their own score added to that of the vectors.
    targets: of the R@100 of exact search, what each must reach to be compared.
    most:    measure on so many questions at most.
    threads: to build with; all search with one.
    join:    what other runs left as --json-file (of other bytes a document), shown beside these figures.
    """
    documents, asked = open_vectors(vectors, "vectors", metric), open_vectors(questions, "questions", metric)
    names, askers = read_ids(ids, len(documents), "documents"), read_ids(query_ids, len(asked), "questions")
    train, test = (label_rows(read_judgements(path), askers, names, str(path)) for path in (train_qrels, qrels))
    rows = list(test)[:most]
    learned = {(size, words): folder_of(models, size, words) for size in bytes_per_doc for words in codewords}
    for (size, words), folder in learned.items() if "learned" in peers else ():
        config = TrainConfig(bytes_per_doc=size, codewords=words)
        coded(documents, asked, train, config, folder, metric)
    wanted: list[Variant] = []
    for size in bytes_per_doc:
        own = {words: folder for (of, words), folder in learned.items() if of == size}
        wanted += variants(peers, size, documents, own, fuse)
    with tempfile.TemporaryDirectory(dir=work) as temporary:
        measured = VectorRows(np.asarray(asked.array[np.array(rows)]), "questions", metric)
        prepared = prepare(Path(temporary), documents, measured, len(rows))
        prepared = prepared._replace(labelled=[test[row] for row in rows])
        found = compare(
            wanted,
            prepared,
            lambda peer: scann_python if peer == "scann" and scann_python else sys.executable,
            {},
            Limits(threads, 3_600, 0, rounds),
        )
        assert prepared.labelled is not None
        exact = {k: answered(prepared.exact, prepared.labelled, k) for k in (10, 100)}
    earlier = [row for path in join for row in json.loads(path.read_text(encoding="utf-8"))["rows"]]
    found = [*earlier, *by_fuse(found)]
    about = {"documents": len(documents), "questions": len(rows), "exact": exact, "rows": found}
    if json_file:
        json_file.write_text(json.dumps(about, indent=1), encoding="utf-8")
    print(report(about, targets))
    if svg:
        svg.write_text(draw(found, exact[100]), encoding="utf-8")


def folder_of(models: Path, size: int, words: int) -> Path:
    return models.with_name(f"{models.name}-{size}" + ("" if words == 256 else f"-{words}"))


def coded(
    documents: VectorRows,
    asked: VectorRows,
    labels: dict[int, list[int]],
    config: TrainConfig,
    folder: Path,
    metric: Any,
) -> None:
    """Learn from questions and their labels and code the documents, as far as that is not done yet."""
    if not (folder / "model.json").exists():
        learn(documents, asked, labels, config, folder, metric)
    if not (folder / CODES).exists():
        np.save(folder / CODES, FrozenModel(folder).additive.encode(documents))


def learn(
    documents: VectorRows,
    asked: VectorRows,
    labels: dict[int, list[int]],
    config: TrainConfig,
    folder: Path,
    metric: Any,
) -> None:
    rows = sorted(labels)
    qrels = {str(number): {str(doc): 1 for doc in labels[row]} for number, row in enumerate(rows)}
    given = np.asarray(asked.array[np.array(rows)])
    train_vectors(documents.array, given, folder, config, metric=metric, qrels=qrels)


def variants(
    peers: tuple[Peer, ...], size: int, documents: VectorRows, models: dict[int, Path], fuse: tuple[float, ...]
) -> list[Variant]:
    """What is built of so many bytes a document: learned codes first. All lists are visited to the same shares."""
    books, lists = 2 * size, 1 << round(2 * len(documents) ** 0.5).bit_length() - 1
    depths: list[dict[str, Any]] = [{"candidates": depth} for depth in DEPTHS]
    shares = [{**depth, "share": share} for share in VISITED for depth in depths]
    probed = [{**one, "nprobe": round(one["share"] * lists)} for one in shares]
    leaves = [{**one, "leaves": round(one["share"] * lists)} for one in shares]
    visited = [{**one, "visited": one["share"]} for one in shares]
    product, width = {"fitted": books}, documents.dim // books
    made: dict[Peer, list[Variant]] = {
        "learned": [one for words, model in models.items() for one in _learned(words, model, depths, visited, fuse)],
        "opq": [
            Variant("bidr OPQ 4 bits, scan", "ours", {**product, "engine": "scan"}, depths, None),
        ],
        "faiss": [
            Variant("Faiss OPQ fast-scan", "faiss", {**product, "factory": f"PQ{books}x4fs"}, depths),
            Variant(
                "Faiss IVF fast-scan",
                "faiss",
                {"factory": f"IVF{{lists}},PQ{books}x4fs", "lists": lists, **product},
                probed,
            ),
            Variant(
                "Faiss IVF-PQ", "faiss", {"factory": f"IVF{{lists}},PQ{size}np", "lists": lists, **product}, probed
            ),
        ],
        "scann": [
            Variant("ScaNN", "scann", {**product, "width": width}, depths),
            Variant("ScaNN tree", "scann", {"width": width, "lists": lists}, leaves),
        ],
    }
    if size > 8:  # one bit a principal axis, and 8 bytes of factors
        factory = {"factory": f"PCA{8 * (size - 8)},RaBitQ", "query_bits": 8}
        made["faiss"].append(Variant("Faiss RaBitQ", "faiss", factory, depths))
    return [one._replace(name=f"{one.name}, {size} B") for peer in peers for one in made[peer]]


def _learned(
    words: int, model: Path, depths: list[dict[str, Any]], visited: list[dict[str, Any]], fuse: tuple[float, ...]
) -> list[Variant]:
    made, bits = {"model": str(model), "codes": str(model / CODES)}, words.bit_length() - 1
    # A scan of 8-bit codes is made of lookups, and takes several times as long as their lists.
    scan = {"scan": depths} if bits == 4 else {}
    grids = {**scan, "lists": [{**one, "fuse": weight} for weight in (0.0, *fuse) for one in visited]}
    return [
        Variant(
            f"bidr learned {bits} bits, {engine}",
            "ours",
            {**made, "engine": engine},
            grid,
            None,
        )
        for engine, grid in grids.items()
    ]


def by_fuse(rows: list[Row]) -> list[Row]:
    """A row of its own for each weight of the codes' score."""
    apart = []
    for row in rows:
        kind, _, size = row["name"].rpartition(", ")
        weights = dict.fromkeys(point["setting"].get("fuse", 0.0) for point in row["points"])
        for weight in weights or [0.0]:
            name = f"{kind} + {weight:g} codes, {size}" if weight else row["name"]
            points = [point for point in row["points"] if point["setting"].get("fuse", 0.0) == weight]
            apart.append({**row, "name": name, "points": points})
    return apart


def report(about: dict[str, Any], targets: tuple[float, ...]) -> str:
    """Markdown: R@100 by candidates read, and what each takes to reach a share of exact search's."""
    rows, exact = [row for row in about["rows"] if row["points"]], about["exact"][100]
    lines = [f"{about['questions']:,} questions; exact search: R@10 {about['exact'][10]:.4f}, R@100 {exact:.4f}", ""]
    lines += [f"| index | RAM B/doc | {' | '.join(f'R@100, {depth} read' for depth in SHOWN)} | CPU ms, 200 read |"]
    lines += [f"|{'---|' * (3 + len(SHOWN))}"]
    for row in rows:
        best = {depth: max(_at(row, depth), key=lambda one: one["labelled@100"]) for depth in SHOWN}
        cells = " | ".join(f"{best[depth]['labelled@100']:.4f}" for depth in SHOWN)
        ram = row["ram_per_document"]["anonymous_bytes"]
        lines.append(f"| {row['name']} | {ram:.0f} | {cells} | {best[200]['cpu_ms']:.2f} |")
    for target in targets:
        lines += ["", f"R@100 of {target * exact:.4f} ({target:.0%} of exact search's):", ""]
        lines += ["| index | fewest read | CPU ms of the quickest | QPS/core | it reads |", "|---|---|---|---|---|"]
        lines += [_reached(row, target * exact) for row in rows]
    failed = [f"{row['name']}: {row['error']}" for row in about["rows"] if "error" in row]
    return "\n".join([*lines, "", *failed])


def _at(row: Row, depth: int) -> list[dict[str, Any]]:
    return [point for point in row["points"] if point["setting"]["candidates"] == depth]


def _reached(row: Row, least: float) -> str:
    there = [point for point in row["points"] if point["labelled@100"] >= least - 1e-9]
    if not there:
        most = max(point["labelled@100"] for point in row["points"])
        return f"| {row['name']} | not reached ({most:.4f}) | | | |"
    fewest = min(point["setting"]["candidates"] for point in there)
    quick = min(there, key=lambda one: float(one["cpu_ms"]))
    read = quick["setting"]["candidates"]
    return f"| {row['name']} | {fewest:,} | {quick['cpu_ms']:.2f} | {quick['qps_per_core']:,.0f} | {read:,} |"


WIDTH, HEIGHT, LEFT, TOP, GAP = 420, 360, 60, 40, 70


def draw(rows: list[Row], exact: float) -> str:
    """R@100 against candidates read, against bytes of RAM (200 read), and against queries a second, side by side."""
    rows = [row for row in rows if row["points"]]
    kinds = list(dict.fromkeys(row["name"].rpartition(", ")[0] for row in rows))
    curves: list[tuple[str, Panel]] = []
    by_read = [(row["name"], _front(row, lambda one: one["setting"]["candidates"], low=True)) for row in rows]
    curves.append(("documents read", by_read))
    by_bytes = []
    for kind in kinds:
        own = [row for row in rows if row["name"].rpartition(", ")[0] == kind]
        size = [(float(row["name"].rpartition(", ")[2].split()[0]), row) for row in own]
        by_bytes.append((kind, [(bytes_, max(one["labelled@100"] for one in _at(row, 200))) for bytes_, row in size]))
    curves.append(("bytes of code a document, 200 read", by_bytes))
    by_speed = [(row["name"], _front(row, lambda one: one["qps_per_core"], low=False)) for row in rows]
    curves.append(("queries a second and core", by_speed))
    values = [value for _, panel in curves for _, points in panel for _, value in points]
    low, high = math.floor(20 * min(values)) / 20, math.ceil(20 * max(*values, exact)) / 20
    colour = {kind: COLOURS[number % len(COLOURS)] for number, kind in enumerate(kinds)}
    whole = 3 * (WIDTH + GAP) + LEFT
    tall = HEIGHT + TOP + 70 + 18 * (len(kinds) // 4 + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole} {tall}" font-family="sans-serif" font-size="12">'
    ]
    parts.append('<rect width="100%" height="100%" fill="white"/>')
    for number, (title, panel) in enumerate(curves):
        parts += _panel(LEFT + number * (WIDTH + GAP), title, panel, (low, high), exact, colour)
    for number, kind in enumerate(kinds):
        x, y = LEFT + (number % 4) * 300, HEIGHT + TOP + 60 + 18 * (number // 4)
        parts.append(
            f'<circle cx="{x}" cy="{y - 4}" r="5" fill="{colour[kind]}"/><text x="{x + 12}" y="{y}">{kind}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def _front(row: Row, of: Callable[[dict[str, Any]], float], *, low: bool) -> list[tuple[float, float]]:
    """The points that no other of the same index beats in both."""
    points = sorted(((float(of(one)), one["labelled@100"]) for one in row["points"]), reverse=not low)
    kept: list[tuple[float, float]] = []
    for x, value in points:
        if not kept or value > kept[-1][1]:
            kept.append((x, value))
    return kept


def _panel(
    left: int,
    title: str,
    panel: Panel,
    span: tuple[float, float],
    exact: float,
    colour: dict[str, str],
) -> list[str]:
    """One plot; the scale to the right is logarithmic. Dashed: the fewer bytes of a kind; dotted: exact search."""
    every = [x for _, points in panel for x, _ in points]
    first, last = math.log(min(every)), math.log(max(every)) + 1e-9

    def place(x: float, value: float) -> tuple[float, float]:
        right = (math.log(x) - first) / (last - first)
        return left + right * WIDTH, TOP + HEIGHT * (1 - (value - span[0]) / (span[1] - span[0]))

    frame = f'<rect x="{left}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#888"/>'
    parts = [frame, f'<text x="{left}" y="{TOP - 10}">labelled R@100 against {title}</text>']
    for step in range(6):
        value = span[0] + step * (span[1] - span[0]) / 5
        _, y = place(min(every), value)
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.2f}</text>')
    for x in sorted(set(every)) if len(set(every)) <= 12 else [min(every), max(every)]:
        parts.append(
            f'<text x="{place(x, span[0])[0]:.1f}" y="{TOP + HEIGHT + 16}" text-anchor="middle">{x:,.0f}</text>'
        )
    y = place(min(every), exact)[1]
    parts.append(f'<path d="M{left} {y:.1f}h{WIDTH}" stroke="#444" stroke-dasharray="1 3"/>')
    sizes = sorted(
        {name.rpartition(", ")[2] for name, _ in panel if name not in colour}, key=lambda one: int(one.split()[0])
    )
    for name, points in panel:
        kind, _, size = name.rpartition(", ") if name not in colour else (name, "", "")
        dash = "5 4" if len(sizes) > 1 and size == sizes[0] else "none"
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
        style = f'fill="none" stroke="{colour[kind]}" stroke-width="2" stroke-dasharray="{dash}"'
        parts.append(f'<polyline points="{drawn}" {style}/>')
        parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour[kind]}"/>'
            for x, y in (place(*one) for one in points)
        ]
    return parts


if __name__ == "__main__":
    tyro.cli(main)
