"""TREC files: judgments (qrels) and rankings (runs)."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from bidr.data.line_reader import read_lines
from bidr.data.record_sources import parse_score
from bidr.data.types import Qrel
from bidr.errors import DataError
from bidr.utils.files import storage_errors

Qrels = dict[str, dict[str, int]]
Run = dict[str, dict[str, float]]


def read_judgments(path: Path) -> Iterator[tuple[int, Qrel]]:
    """Yield the judgments of a qrels file: query id, 0, document id, score, separated by spaces or tabs."""
    for number, fields in _read_fields(path, 4, "query-id 0 document-id score"):
        query, _, document, score = fields
        yield number, Qrel(query, document, parse_score(score, f"{path} line {number}"))


def read_qrels(path: str | Path) -> Qrels:
    """Read a qrels file: scores by query and document."""
    qrels: Qrels = {}
    for _, judgment in read_judgments(Path(path)):
        qrels.setdefault(judgment.query_id, {})[judgment.doc_id] = judgment.score
    return qrels


def write_qrels(path: str | Path, qrels: Mapping[str, Mapping[str, int]]) -> None:
    """Write judgments, one a line."""
    _write_lines(path, (f"{query} 0 {doc} {score}" for query, scores in qrels.items() for doc, score in scores.items()))


def read_run(path: str | Path) -> Run:
    """Read a run: scores by query and document, in file order."""
    path, run = Path(path), Run()
    for number, fields in _read_fields(path, 6, "query-id Q0 document-id rank score tag"):
        query, _, document, _, score, _ = fields
        scores = run.setdefault(query, {})
        if document in scores:
            raise DataError(f"{path} line {number}: document {document!r} is ranked twice for {query!r}; remove one")
        try:
            scores[document] = float(score)
        except ValueError as error:
            raise DataError(f"{path} line {number}: score {score!r} is not a number; fix the line") from error
    return run


def write_run(path: str | Path, run: Mapping[str, Mapping[str, float]], tag: str = "bidr") -> None:
    """Write rankings, best score first; ties keep their order."""
    _write_lines(path, _format_run(run, tag))


def _format_run(run: Mapping[str, Mapping[str, float]], tag: str) -> Iterator[str]:
    for query, scores in run.items():
        for rank, document in enumerate(sorted(scores, key=scores.__getitem__, reverse=True), start=1):
            yield f"{query} Q0 {document} {rank} {float(scores[document])!r} {tag}"


def _read_fields(path: Path, count: int, layout: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in read_lines(path):
        fields = line.split()
        if len(fields) != count:
            raise DataError(f"{path} line {number}: {len(fields)} columns, expected {count} ({layout}); fix the line")
        yield number, fields


def _write_lines(path: str | Path, content: Iterable[str]) -> None:
    """Write lines, refusing ids with white space, which would read back as other columns."""
    with storage_errors(Path(path)), Path(path).open("w", encoding="utf-8", newline="\n") as out:
        for line in content:
            if len(line.split()) not in (4, 6):
                raise DataError(f"cannot write {path}: an id contains white space in {line!r}; rename it")
            out.write(f"{line}\n")
