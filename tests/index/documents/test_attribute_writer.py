"""Attributes are written in bounded memory, in the same files as in one piece."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from sample_index import clustered

from bidr.data.dataset import Dataset
from bidr.data.types import Document
from bidr.errors import ConfigError
from bidr.index.cost_model.build_memory import ATTRIBUTE_BUFFER_BYTES, estimate_build_peaks
from bidr.index.cost_model.sizes import Shape
from bidr.index.documents import attribute_writer, column_buffer
from bidr.index.documents.document_store import write_documents
from bidr.pipeline.build import build_vectors
from bidr.quantization.opq_config import PlainCodes
from bidr.utils.files import NewFile


def make_documents(count: int) -> list[Document]:
    """Attributes of every kind: some absent, lists, numbers that stop being whole, words seldom and often, any sign."""
    chance, documents = random.Random(3), []
    for row in range(count):
        given: dict = {"url": f"é\ud800\n{chance.random()}", "lang": chance.choice(["en", "de", "fr"]), "n": row}
        if row % 3:
            given |= {"tags": [f"t{chance.randrange(40)}" for _ in range(row % 4)], "even": row % 2 == 0}
        if row % 5 == 0:
            given["mixed"] = chance.choice([1, "one", True, 1.5])
        given["late"] = row if row < count - 9 else row + 0.5
        documents.append(Document(f"{row}", "", "", given if row % 7 else None))
    return documents


def write(folder: Path, documents: list[Document]) -> dict[str, bytes]:
    folder.mkdir()
    create = lambda name: NewFile(folder / name)  # noqa: E731
    write_documents(create, folder, iter(documents), len(documents), lambda rows: None, texts=False)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(("held", "words"), [(1, 1), (7, 300), (50, 4_000), (1_000, 1 << 30)])
def test_spilling_does_not_change_the_files(tmp_path, monkeypatch, held, words):
    documents = make_documents(600)
    whole = write(tmp_path / "whole", documents)
    assert {
        "column.0.words.blob",
        "column.0.codes.npy",
        "column.2.values.npy",
        "attributes.json",
    } <= whole.keys()
    monkeypatch.setattr(attribute_writer, "VALUES_IN_MEMORY", held)
    monkeypatch.setattr(attribute_writer, "STRING_BYTES_IN_MEMORY", words)
    monkeypatch.setattr("bidr.index.documents.column_buffer.VALUES_PER_BLOCK", 13)
    monkeypatch.setattr("bidr.index.documents.column_buffer.STRINGS_PER_BLOCK", 5)
    monkeypatch.setattr("bidr.index.documents.column_buffer.READ_AHEAD_BYTES", 100)
    assert write(tmp_path / "parts", documents) == whole


def test_a_repeated_string_is_counted_once(tmp_path, monkeypatch):
    """Else what is hardly anything would be put away again and again: runs without end of a corpus in one language."""
    monkeypatch.setattr(attribute_writer, "STRING_BYTES_IN_MEMORY", 1_000)
    runs, real = [], column_buffer.StringNumbering.flush
    monkeypatch.setattr(
        column_buffer.StringNumbering, "flush", lambda strings, spill, until: runs.append(real(strings, spill, until))
    )
    write(tmp_path / "i", [Document(f"{row}", "", "", {"lang": "en"}) for row in range(100)])
    assert len(runs) == 1


PROBE = """
import sys, threading, time
from pathlib import Path
from memory_probe import memory
from bidr.utils.files import NewFile
from bidr.index.documents.document_store import write_documents
from bidr.data.types import Document

from bidr.index.documents import attribute_writer

from bidr.index.documents import id_index

folder, count = Path(sys.argv[1]), int(sys.argv[2])
id_index.RECORDS_IN_MEMORY = 1 << 14  # ids apart
attribute_writer.VALUES_IN_MEMORY, attribute_writer.STRING_BYTES_IN_MEMORY = int(sys.argv[3]), int(sys.argv[4])

def described(count):
    for row in range(count):
        given = {"url": f"https://example.org/{row * 7919 % count:09d}/page", "year": row % 60, "score": row / 7}
        yield Document(f"{row}", "", "", given | {"tags": [f"t{row % 90}", f"u{row % 70}"], "open": row % 2 == 0})

def write(count):
    create = lambda name: NewFile(folder / name, must_be_new=False)
    write_documents(create, folder, described(count), count, lambda rows: None, texts=False)

write(1_000)
most, over = [0], threading.Event()
def watch():
    while not over.wait(0.005):
        most[0] = max(most[0], memory("RssAnon", "status"))
thread = threading.Thread(target=watch); thread.start()
before = memory("RssAnon", "status")
write(count)
over.set(); thread.join()
print(most[0] - before)
"""


def measure_peak(
    folder: Path,
    count: int,
    held: int = attribute_writer.VALUES_IN_MEMORY,
    words: int = attribute_writer.STRING_BYTES_IN_MEMORY,
) -> int:
    """Anonymous bytes that writing so many documents with six attributes takes, in a process of its own."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2] / "helpers"), *sys.path])}
    command = [sys.executable, "-c", PROBE, str(folder), str(count), str(held), str(words)]
    return int(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout)


def test_memory_stays_within_the_bound(tmp_path):
    took = measure_peak(tmp_path, 100_000, 1 << 14, 1 << 20)
    print(f"{took >> 20} MiB")
    assert took < 16 << 20, "all column_buffer or all words were held"


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_documents(tmp_path):
    """Both sizes fill what may be held several times, so that twice as many documents take no more."""
    few, many = (measure_peak(tmp_path, count) for count in (800_000, 1_600_000))
    print(f"800,000 documents: {few >> 20} MiB, 1,600,000: {many >> 20} MiB")
    assert many <= ATTRIBUTE_BUFFER_BYTES
    assert many - few <= 4 << 20


def get_minimum_budget(data: Dataset | None, out: Path) -> int:
    """The smallest budget, in MiB, that a build of these documents asks for."""
    plain = PlainCodes(bytes_per_doc=2)
    with pytest.raises(ConfigError, match=r"\(step: names\)") as refused:
        build_vectors(clustered(300, 16), None, out, data=data, plain=plain, ram_budget="1KiB")
    assert not out.exists()
    return int(str(refused.value).rsplit("give ", 1)[1].split(" MiB")[0])


def test_a_budget_includes_attributes_if_there_are_any(tmp_path, monkeypatch):
    monkeypatch.setattr("bidr.index.cost_model.build_memory.read_anonymous_memory", lambda: 0)
    given = [Document(f"{row}", "", "text") for row in range(300)]
    described, plain = (
        Dataset.from_records("made", [each._replace(attributes=attributes) for each in given])
        for attributes in ({"n": 1}, None)
    )
    counted = ATTRIBUTE_BUFFER_BYTES >> 20
    assert get_minimum_budget(described, tmp_path / "i") == get_minimum_budget(plain, tmp_path / "i") + counted
    shape = Shape(10**6, 16, "scan", 4, 8)
    peaks = [
        estimate_build_peaks(shape, fits_codebooks=False, has_ids=True, has_attributes=each)["names"]
        for each in (True, False)
    ]
    assert peaks[0] - peaks[1] == ATTRIBUTE_BUFFER_BYTES
