"""Learned codes beside other libraries on labelled questions: R@100 against candidates read, bytes and speed.

python bench/labelled_curves.py docs.npy questions.npy --ids ids.txt --query-ids query_ids.txt \
    --train-qrels train.tsv --qrels dev.tsv --models runs/v --bytes-per-doc 8 16 --json-file out.json --svg out.svg

Codes are learned from the questions judged in --train-qrels, into MODELS-BYTES (with 16 codewords a book:
MODELS-BYTES-16); what is there already is taken. All rank their candidates by the same fp16 vectors on disk. See
`bidr bench`, whose harness measures.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import tyro
from labelled_plots import at_depth, draw
from tyro.conf import Positional

from bidr.bench.run import Limits, Row, compare, compute_labelled_recall, prepare
from bidr.bench.variants import Variant
from bidr.data.vector_ids import label_rows, read_ids, read_judgments
from bidr.data.vector_source import Metric, VectorSource, open_vectors
from bidr.models.codes_only_model import CodesOnlyModel
from bidr.pipeline.train import train_vectors
from bidr.training.config import TrainConfig

DEPTHS = (100, 150, 200, 400, 1_000, 3_000)
SHOWN = (100, 200, 400, 1_000)
VISITED = (0.05, 0.1, 0.2)
CODES = "codes.npy"
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
    metric: Metric = "cosine",
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
    given = read(vectors, questions, ids, query_ids, train_qrels, qrels, metric)
    wanted: list[Variant] = []
    for size in bytes_per_doc:
        own = {words: folder_of(models, size, words) for words in codewords}
        for words, folder in own.items() if "learned" in peers else ():
            learn(given, TrainConfig(bytes_per_doc=size, codewords=words), folder)
        wanted += variants(peers, size, given.documents, own, fuse)
    about = measure(given, wanted, most, scann_python or sys.executable, Limits(threads, 3_600, 0, rounds), work)
    earlier = [row for path in join for row in json.loads(path.read_text(encoding="utf-8"))["rows"]]
    about["rows"] = [*earlier, *about["rows"]]
    if json_file:
        json_file.write_text(json.dumps(about, indent=1), encoding="utf-8")
    print(report(about, targets))
    if svg:
        svg.write_text(draw(about["rows"], about["exact"][100]), encoding="utf-8")


class Given(NamedTuple):
    """Vectors, and of the questions to learn from and to measure the rows that answer them."""

    documents: VectorSource
    questions: VectorSource
    train: dict[int, list[int]]
    test: dict[int, list[int]]


def read(
    vectors: Path, questions: Path, ids: Path | None, query_ids: Path | None, train: Path, test: Path, metric: Metric
) -> Given:
    documents, asked = open_vectors(vectors, "vectors", metric), open_vectors(questions, "questions", metric)
    names, askers = read_ids(ids, len(documents), "documents"), read_ids(query_ids, len(asked), "questions")
    labels = [label_rows(read_judgments(path), askers, names, str(path)) for path in (train, test)]
    return Given(documents, asked, *labels)


def folder_of(models: Path, size: int, words: int) -> Path:
    return models.with_name(f"{models.name}-{size}" + ("" if words == 256 else f"-{words}"))


def learn(given: Given, config: TrainConfig, folder: Path) -> None:
    """Learn from questions and their labels and code the documents, as far as that is not done yet."""
    documents = given.documents
    if not (folder / "model.json").exists():
        rows = sorted(given.train)
        qrels = {str(number): {str(doc): 1 for doc in given.train[row]} for number, row in enumerate(rows)}
        asked = np.asarray(given.questions.array[np.array(rows)])
        train_vectors(documents.array, asked, folder, config, metric=documents.metric, qrels=qrels)
    if not (folder / CODES).exists():
        np.save(folder / CODES, CodesOnlyModel(folder).additive.encode(documents))


def measure(
    given: Given, wanted: list[Variant], most: int | None, scann: str, limits: Limits, work: Path | None
) -> dict[str, Any]:
    """Figures of all variants on the first questions. scann: the Python that has it."""
    rows = list(given.test)[:most]
    labelled = [given.test[row] for row in rows]
    asked = VectorSource(np.asarray(given.questions.array[np.array(rows)]), "questions", given.questions.metric)
    with tempfile.TemporaryDirectory(dir=work) as temporary:
        prepared = prepare(Path(temporary), given.documents, asked, len(rows))._replace(labelled=labelled)
        found = compare(wanted, prepared, lambda peer: scann if peer == "scann" else sys.executable, {}, limits)
    exact = {k: compute_labelled_recall(prepared.exact, labelled, k) for k in (10, 100)}
    return {"documents": len(given.documents), "questions": len(rows), "exact": exact, "rows": by_fuse(found)}


def variants(
    peers: tuple[Peer, ...], size: int, documents: VectorSource, models: dict[int, Path], fuse: tuple[float, ...]
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
        best = {depth: max(at_depth(row, depth), key=lambda one: one["labelled@100"]) for depth in SHOWN}
        cells = " | ".join(f"{best[depth]['labelled@100']:.4f}" for depth in SHOWN)
        ram = row["ram_per_document"]["anonymous_bytes"]
        lines.append(f"| {row['name']} | {ram:.0f} | {cells} | {best[200]['cpu_ms']:.2f} |")
    for target in targets:
        lines += ["", f"R@100 of {target * exact:.4f} ({target:.0%} of exact search's):", ""]
        lines += ["| index | fewest read | CPU ms of the quickest | QPS/core | it reads |", "|---|---|---|---|---|"]
        lines += [_reached(row, target * exact) for row in rows]
    failed = [f"{row['name']}: {row['error']}" for row in about["rows"] if "error" in row]
    return "\n".join([*lines, "", *failed])


def _reached(row: Row, least: float) -> str:
    there = [point for point in row["points"] if point["labelled@100"] >= least - 1e-9]
    if not there:
        most = max(point["labelled@100"] for point in row["points"])
        return f"| {row['name']} | not reached ({most:.4f}) | | | |"
    fewest = min(point["setting"]["candidates"] for point in there)
    quick = min(there, key=lambda one: float(one["cpu_ms"]))
    read = quick["setting"]["candidates"]
    return f"| {row['name']} | {fewest:,} | {quick['cpu_ms']:.2f} | {quick['qps_per_core']:,.0f} | {read:,} |"


if __name__ == "__main__":
    tyro.cli(main)
