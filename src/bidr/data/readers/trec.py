"""The files TREC tools exchange: judgements (qrels) and rankings (runs)."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from bidr.data import text_files as streams
from bidr.data.sources import score
from bidr.data.types import Qrel
from bidr.errors import DataError
from bidr.utils.files import storage_errors

Qrels = dict[str, dict[str, int]]
Run = dict[str, dict[str, float]]


def read_judgements(path: Path) -> Iterator[tuple[int, Qrel]]:
    """Stream the judgements of a qrels file: query id, 0, document id, score, apart by spaces or tabs."""
    for number, fields in _fields(path, 4, "query-id 0 document-id score"):
        query, _, document, given = fields
        yield number, Qrel(query, document, score(given, f"{path} line {number}"))


def read_qrels(path: str | Path) -> Qrels:
    """All judgements of a qrels file, by query and document."""
    qrels: Qrels = {}
    for _, judgement in read_judgements(Path(path)):
        qrels.setdefault(judgement.query_id, {})[judgement.doc_id] = judgement.score
    return qrels


def write_qrels(path: str | Path, qrels: Mapping[str, Mapping[str, int]]) -> None:
    """Write judgements, one a line."""
    _write(path, (f"{query} 0 {doc} {given}" for query, found in qrels.items() for doc, given in found.items()))


def read_run(path: str | Path) -> Run:
    """The scores of a run by query and document, in the order of the file."""
    path, run = Path(path), Run()
    for number, fields in _fields(path, 6, "query-id Q0 document-id rank score tag"):
        query, _, document, _, given, _ = fields
        found = run.setdefault(query, {})
        if document in found:
            raise DataError(f"{path} line {number}: document {document!r} is ranked twice for {query!r}; remove one")
        try:
            found[document] = float(given)
        except ValueError as error:
            raise DataError(f"{path} line {number}: score {given!r} is not a number; fix the line") from error
    return run


def write_run(path: str | Path, run: Mapping[str, Mapping[str, float]], tag: str = "bidr") -> None:
    """Write rankings, best score first; equal scores keep the order they are given in."""
    _write(path, _run_lines(run, tag))


def _run_lines(run: Mapping[str, Mapping[str, float]], tag: str) -> Iterator[str]:
    for query, found in run.items():
        for rank, document in enumerate(sorted(found, key=found.__getitem__, reverse=True), start=1):
            yield f"{query} Q0 {document} {rank} {float(found[document])!r} {tag}"


def _fields(path: Path, count: int, layout: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in streams.lines(path):
        fields = line.split()
        if len(fields) != count:
            raise DataError(f"{path} line {number}: {len(fields)} columns, expected {count} ({layout}); fix the line")
        yield number, fields


def _write(path: str | Path, content: Iterable[str]) -> None:
    """Ids with white space in them are refused: whoever reads the file would see other columns."""
    with storage_errors(Path(path)), Path(path).open("w", encoding="utf-8", newline="\n") as out:
        for line in content:
            if len(line.split()) not in (4, 6):
                raise DataError(f"cannot write {path}: an id contains white space in {line!r}; rename it")
            out.write(f"{line}\n")
