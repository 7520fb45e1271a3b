"""Index and model folders as an attacker could make them: every checksum right, what is said in them wrong.

    python tests/laws/fuzz_folders.py 0 5000 [--only live,hnsw] [--folder DIR]

makes variants by number from small folders of every kind, and opens, verifies, searches and writes each of them in a
process of its own, of bounded memory and time. A variant may work or be refused with a `BidrError`. Whatever else
happens is told, and left in DIR: another exception, a signal, memory beyond LIMIT, or more than TIME seconds.
`--again NUMBER` runs one variant alone, in this process.
"""

import argparse
import faulthandler
import json
import os
import random
import resource
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest.mock import patch

for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"):
    os.environ[_threads] = "1"  # a pool of threads does not outlive a fork
os.environ["HF_HUB_OFFLINE"], os.environ["TOKENIZERS_PARALLELISM"] = "1", "false"
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "helpers")]

import numpy as np  # noqa: E402
from fuzz_mutations import mutate, sign_model  # noqa: E402
from sample_index import clustered, random_codebooks  # noqa: E402

from bidr.data.types import Document  # noqa: E402
from bidr.errors import BidrError  # noqa: E402
from bidr.export.onnx_files import verify_export  # noqa: E402
from bidr.index.builder import coarse_clustering as clusters  # noqa: E402
from bidr.index.builder.build import build_index  # noqa: E402
from bidr.index.documents.id_index import IdIndex  # noqa: E402
from bidr.index.engines import block_centroids  # noqa: E402
from bidr.index.live.snapshot import write_snapshot  # noqa: E402
from bidr.index.live.writer import LiveWriter  # noqa: E402
from bidr.index.reader import IndexReader  # noqa: E402
from bidr.index.storage import checksums  # noqa: E402
from bidr.index.storage.manifest import ModelReference, read_current  # noqa: E402
from bidr.pipeline.open import OpenIndex, open_index, open_writer  # noqa: E402
from bidr.quantization.additive_quantizer import fit_additive  # noqa: E402
from bidr.quantization.learned_ivf import LearnedIvf  # noqa: E402
from bidr.search.evaluation import load_recall_curve  # noqa: E402
from bidr.server.encoding.encoders import load_onnx_encoders  # noqa: E402

DIM, WORDS = 16, ("night", "watch", "pearl", "girl", "oyster", "number", "quick", "öäü")
LIMIT = 768 << 20
"""Bytes of address space that a variant may take beside what the process has."""
TIME, WALL = 20, 240
"""Seconds of a processor, and by the clock."""
USUAL = ("expected that of a segment", "built without lexical index", "has no text encoder")
"""What some folders are refused for that are as they should be."""
COMPACTED = 3
"""One variant in so many is compacted, exported and copied too."""


class Found(NamedTuple):
    """What came of a variant. kind: "works", "refused", or what must not happen."""

    number: int
    base: str
    kind: str
    told: str
    changes: str


# -- what variants are made from


def documents(count: int, first: int = 0) -> list[Document]:
    rng = random.Random(first)
    found = []
    for row in range(first, first + count):
        attributes = {"year": 2000 + row % 20, "share": row / 7, "kind": WORDS[row % 5], "new": row % 3 == 0}
        attributes |= {"tags": [WORDS[row % 8], WORDS[(row + 3) % 8]]} if row % 2 else {}
        text = " ".join(rng.choices(WORDS, k=12))
        found.append(Document(f"doc-{row}", f"Title {WORDS[row % 8]}", text, attributes))
    return found


def _build(folder: Path, count: int, words: int, **how: Any) -> None:
    vectors = clustered(count, DIM)
    codebooks = random_codebooks(DIM, 4, words)
    how = {"documents": documents(count), **how}
    if how.pop("nameless", False):
        del how["documents"]
    if how.pop("learned", False):
        points = codebooks.decode(codebooks.encode(vectors[:12])) @ codebooks.rotation
        how["lists"] = LearnedIvf(points, points + np.float32(0.01))
    build_index(folder / "index", codebooks=codebooks, codes=codebooks.encode(vectors), vectors=vectors, **how)


def _add(folder: Path, first: int = 1000) -> None:
    with _writer(folder) as writer:
        writer.add(documents(12, first), clustered(12, DIM, seed=1))
        writer.delete(["doc-3", f"doc-{first + 2}"])
        writer.flush()
        writer.add(documents(5, first + 5), clustered(5, DIM, seed=2))
        writer.delete(["doc-7", f"doc-{first + 6}"])


def _frozen(folder: Path) -> None:
    from bidr.models import codes_only_model as frozen

    vectors = clustered(300, DIM)
    (folder / "model").mkdir()
    made = fit_additive(vectors, 4, 16)
    with patch.object(frozen, "write_codes_only_card"):  # needs training facts
        model = frozen.save_codes_only_model(folder / "model", made, metric="cosine", candidates=20, training={})
    stamp, codes = ModelReference(model.fingerprint, str(folder / "model")), made.encode(vectors)
    about = {"documents": documents(300), "model": stamp, "unit": True, "engine": "lists"}
    build_index(folder / "index", codebooks=made.to_codebooks(), codes=codes, vectors=vectors, **about)
    _add(folder)


def _summed(folder: Path) -> None:
    """Additive codes that documents are given by the index itself."""
    vectors = clustered(300, DIM)
    made = fit_additive(vectors, 4, 256)
    about = {"documents": documents(300), "engine": "scan"}
    codes = made.encode(vectors)
    build_index(folder / "index", codebooks=made.to_adapted_codebooks(), codes=codes, vectors=vectors, **about)


def _encoded(folder: Path, *, transformer: bool = False) -> None:
    from sample_encoders import bag, sentence_bert

    from bidr.models.saved_model import ModelParts, TextSettings, save_model

    names = ("sparse", "dense", "query")
    for seed, name in enumerate(names):
        if transformer:
            sentence_bert(folder / "parts" / name, prompts={"query": "query: ", "document": ""}, dim=DIM)
        else:
            bag(folder / "tokens", dim=DIM, seed=seed)[0].save(folder / "parts" / name)
    parts = ModelParts(**{name: folder / "parts" / name for name in names}, codebooks=random_codebooks(DIM, 4, 16))
    (folder / "model").mkdir()
    text = TextSettings(titles="prepend", query_length=16, document_length=64)
    model = save_model(folder / "model", parts, text, candidates=20, training={"note": "made"})
    vectors = clustered(60, DIM)
    stamp = ModelReference(model.fingerprint, str(folder / "model"))
    codes = model.codebooks.encode(vectors)
    about = {"documents": documents(60), "model": stamp, "lexical": "prepend", "engine": "scan"}
    build_index(folder / "index", codebooks=model.codebooks, codes=codes, vectors=vectors, **about)
    shutil.rmtree(folder / "parts")
    shutil.rmtree(folder / "tokens", ignore_errors=True)


def _exported(folder: Path) -> None:
    """An encoded index with an ONNX export of its model, and an evaluation whose recall curve a server shows."""
    from bidr.export.onnx import export_onnx
    from bidr.search.evaluation import EVALUATED

    _encoded(folder)
    export_onnx(folder / "model", folder / "onnx")
    generation = list(read_current(folder / "index"))
    curve = {"model": "m", "recall_curve": [[10, 0.5], [100, 0.9]], "measures": {"R@10": 0.5}, "generation": generation}
    (folder / "index" / EVALUATED).write_text(json.dumps(curve))


def _live(folder: Path, **how: Any) -> None:
    _build(folder, 60, 16, lexical="prepend", unit=True, **how)
    _add(folder)


BASES: dict[str, Callable[[Path], None]] = {
    "scan": lambda folder: _build(folder, 60, 256, engine="scan", lexical="prepend"),
    "ordered": lambda folder: _build(folder, 200, 16, engine="scan", stored="int8", lexical="ignore"),
    "lists": lambda folder: _build(folder, 300, 16, engine="lists", learned=True, dims=8, unit=True),
    "means": lambda folder: _build(folder, 600, 256, engine="lists", nameless=True),
    "hnsw": lambda folder: _build(folder, 300, 256, engine="hnsw", stored="int8"),
    "blocks": lambda folder: _build(folder, 400, 16, engine="lists", lexical="prepend"),
    "live": lambda folder: _live(folder, engine="scan"),
    "live-hnsw": lambda folder: _live(folder, engine="hnsw"),
    "frozen": _frozen,
    "summed": _summed,
    "encoded": _encoded,
    "transformer": lambda folder: _encoded(folder, transformer=True),
    "exported": _exported,
}
BY_BLOCK = 512
"""Bytes from which files of "blocks" have checksums by block."""


@contextmanager
def settings(base: str) -> Iterator[None]:
    """Constants under which a base is made and opened: what large indexes have, in a small one."""
    saved = clusters.MIN_ORDERED_DOCUMENTS, block_centroids.MIN_BLOCKS, checksums.WHOLE_FILE_BYTES
    clusters.MIN_ORDERED_DOCUMENTS, block_centroids.MIN_BLOCKS = 100, 16
    checksums.WHOLE_FILE_BYTES = BY_BLOCK if base in ("blocks", "live-hnsw") else checksums.WHOLE_FILE_BYTES
    try:
        yield
    finally:
        clusters.MIN_ORDERED_DOCUMENTS, block_centroids.MIN_BLOCKS, checksums.WHOLE_FILE_BYTES = saved


def make_bases(root: Path, names: list[str]) -> None:
    for name in names:
        (root / name).mkdir(parents=True)
        with settings(name):
            BASES[name](root / name)


# -- what is done with a variant


def _writer(folder: Path) -> LiveWriter:
    model = folder / "model"
    return open_writer(folder / "index", model if model.exists() else None, device="cpu", warn=lambda text: None)


FILTERS: list[Any] = [
    {"kind": "pearl"},
    {"tags": {"any": ["night", "girl"]}},
    {"kind": {"gte": "m", "lt": "p"}, "new": True},
    {"year": {"gte": 2005, "lt": 2012}},
    {"share": {"any": [0.0, 1 / 7, 3.5]}},
    {"or": [{"year": {"any": [2001, 2019, 10**12]}}, {"not": {"new": False}}]},
]


def exercise(folder: Path, *, thorough: bool) -> list[str]:
    """Do with a folder whatever can be done with one; what it was refused with."""
    refused: list[str] = []

    def attempt(action: Callable[[], Any]) -> Any:
        try:
            return action()
        except BidrError as error:
            if not any(usual in str(error) for usual in USUAL):
                refused.append(f"{type(error).__name__}: {error}")
            return None

    model = folder / "model"
    index = attempt(lambda: open_index(folder / "index", model if model.exists() else None))
    if index is not None:
        _look(index, attempt, text=model.exists())
        index.reader.close()
    attempt(lambda: load_recall_curve(folder / "index", "m"))
    if (folder / "onnx").exists():
        attempt(lambda: verify_export(folder / "onnx"))
        encoders = attempt(lambda: load_onnx_encoders(folder / "onnx", {"queries": False, "documents": False}, 1))
        for inputs in encoders.roles.values() if encoders else ():
            attempt(lambda inputs=inputs: encoders.encode(inputs.codes, ["night watch", ""]))
    reader = attempt(lambda: IndexReader.open(folder / "index"))
    if reader is not None:
        rows = np.arange(min(reader.count, 64))
        attempt(lambda: reader.documents.ids(reader.rows_of(rows)))
        attempt(lambda: reader.vectors.read(rows))
        attempt(lambda: reader.candidates.unpack_codes(rows))
        attempt(reader.load_learned_lists)
        names = attempt(lambda: IdIndex(reader.generation, reader.manifest, reader.count))
        for row in (0, 5, 59, 1000):
            attempt(lambda row=row: names and names.find(f"doc-{row}"))
        attempt(reader.verify)
        reader.close()
    writer = attempt(lambda: _writer(folder))
    if writer is not None:
        try:
            _write(writer, attempt, text=model.exists(), thorough=thorough)
        finally:
            writer.close()
    if thorough:
        attempt(lambda: write_snapshot(folder / "index", folder / "copy"))
        index = attempt(lambda: open_index(folder / "index", model if model.exists() else None))
        if index is not None:
            _look(index, attempt, text=False)
    return refused


def _look(index: OpenIndex, attempt: Callable[[Any], Any], *, text: bool) -> None:
    queries, reader = clustered(2, DIM, seed=5), index.reader
    attempt(reader.describe)
    asked = attempt(lambda: index.query_vectors(queries))
    if text:
        attempt(lambda: index.search(["night watch", "pearl"], 3))
        attempt(lambda: index.search("a girl", 3, lexical=3))
    if asked is not None:
        words = ["night watch pearl", "girl"]
        options: list[dict[str, Any]] = [{}, {"codes_only": True}, *({"filter": each} for each in FILTERS)]
        options += [{"words": words, "lexical": 5, "lexical_weight": 0.5}]
        options += [{"words": words, "lexical": 5, "filter": FILTERS[3]}]
        for number, each in enumerate(options):
            k = (1, 5, 40)[number % 3]
            attempt(lambda k=k, each=each: index.load_results(index.search_vectors(asked, k, 30, **each)))
        attempt(lambda: index.load_results(index.search_vectors(asked, 10_000, 10_000)))
        attempt(lambda: index.search_vectors(asked, 3, 5, filter={"year": 2003}))
    view = reader.latest()
    places = attempt(view.places)
    if places is not None:
        rows = attempt(lambda: view.rows_of(places[:80]))
        for row in (rows[:40] if rows is not None else np.arange(3)).tolist():
            attempt(lambda row=row: view.documents.record(row))
        attempt(lambda: view.documents.ids(rows) if rows is not None else None)
        attempt(lambda: view.vectors.read(places[:80]))
    attempt(reader.verify)


def _write(writer: LiveWriter, attempt: Callable[[Any], Any], *, text: bool, thorough: bool) -> None:
    vectors = None if text and not (writer.folder.parent / "model/sparse/adapter.safetensors").exists() else clustered
    attempt(lambda: writer.find_existing(["doc-1", "doc-1001", "x"]))
    attempt(lambda: writer.add(documents(3, 2000), vectors and vectors(3, DIM, seed=9)))
    attempt(lambda: writer.delete(["doc-4", "doc-1001", "doc-2001"], missing_ok=True))
    attempt(lambda: writer.add(documents(2, 10), vectors and vectors(2, DIM, seed=9)))
    attempt(writer.flush)
    if thorough:
        attempt(writer.compact)


# -- each variant in a process of its own


def make_variant(root: Path, base: str, number: int, folder: Path) -> str:
    """Copy a base and change it; what was changed. The same number gives the same variant."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(root / base, folder)
    others = [each for each in sorted(root.iterdir()) if each.name in BASES]
    with settings(base):
        return mutate(folder, random.Random(number), others)


def run_variant(root: Path, base: str, number: int, folder: Path) -> Found:
    changes = make_variant(root, base, number, folder)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _in_child(folder, base, number, writing)
    os.close(writing)
    os.set_blocking(reading, False)
    kind, told = _awaited(child, reading, folder)
    os.close(reading)
    return Found(number, base, kind, told, changes)


def _in_child(folder: Path, base: str, number: int, out: int) -> None:
    trace = (folder.parent / "trace").open("w")
    faulthandler.enable(trace)
    faulthandler.dump_traceback_later(WALL - 5, file=trace)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + LIMIT, held + LIMIT))
    resource.setrlimit(resource.RLIMIT_CPU, (TIME, TIME + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        with settings(base):
            refused = exercise(folder, thorough=number % COMPACTED == 0)
        result = ["refused" if refused else "works", refused[0] if refused else ""]
    except BaseException as error:
        result = [type(error).__name__, traceback.format_exc()]
    with suppress(OSError):
        os.write(out, json.dumps(result).encode()[-60_000:])
    os._exit(0)


def _awaited(child: int, reading: int, folder: Path) -> tuple[str, str]:
    ends = time.monotonic() + WALL
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > ends:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "hangs", (folder.parent / "trace").read_text(errors="replace")
        time.sleep(0.002)
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        trace = (folder.parent / "trace").read_text(errors="replace")
        return ("hangs" if name in ("SIGXCPU",) else name), trace
    try:
        kind, told = json.loads(os.read(reading, 1 << 16))
        return kind, told
    except (OSError, ValueError) as error:
        return "lost", str(error)


def run(root: Path, first: int, last: int, names: list[str], kept: Path | None = None) -> Iterator[Found]:
    """Variants by number, from each base in turn. kept: where those are left with which something went wrong."""
    warnings.simplefilter("ignore")
    if {"encoded", "transformer", "exported"} & set(names):
        with suppress(ImportError):  # which takes longer than all that a child does
            import_module("sentence_transformers")
    make_bases(root, [name for name in names if not (root / name).exists()])
    for name in names:  # what is compiled for them is then there in all children
        shutil.copytree(root / name, root / "tried")
        if (root / "tried/model").exists():
            sign_model(root / "tried/model")
        with settings(name):
            refused = exercise(root / "tried", thorough=True)
        if refused:
            raise SystemExit(f"{name}: {refused}")
        shutil.rmtree(root / "tried")
    for number in range(first, last):
        found = run_variant(root, names[number % len(names)], number, root / "variant")
        if found.kind not in ("works", "refused") and kept is not None:
            target = kept / str(number)
            with suppress(OSError):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.with_suffix(".txt").write_text(f"{found.base}\n{found.changes}\n\n{found.kind}\n{found.told}")
        yield found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--only", default=",".join(BASES))
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--again", type=int)
    parser.add_argument("--within", type=Path)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    names = given.only.split(",")
    with TemporaryDirectory(dir=given.within) as aside:
        root = Path(aside)
        if given.again is not None:
            make_bases(root, list(BASES))
            base = names[given.again % len(names)]
            print(base, make_variant(root, base, given.again, root / "variant"))
            with settings(base):
                print(exercise(root / "variant", thorough=given.again % COMPACTED == 0))
            return
        kinds, classes = Counter[str](), Counter[str]()
        for found in run(root, given.first, given.last, names, given.folder):
            kinds[found.kind] += 1
            if found.kind not in ("works", "refused"):
                where = [line.strip() for line in found.told.splitlines() if "/bidr/" in line]
                classes[f"{found.kind} {where[-1] if where else ''} {(found.told.splitlines() or [''])[-1][:150]}"] += 1
                if given.json:
                    print(json.dumps(found._asdict()), flush=True)
            if not given.json and kinds.total() % 250 == 0:
                print(json.dumps(kinds), flush=True)
        print(json.dumps({"kinds": kinds, "classes": classes.most_common()}, indent=None if given.json else 1))


if __name__ == "__main__":
    main()
