"""Builds an index within a budget of RAM, kills the build many times, and compares what comes out.

python bench/budget.py million.npy --budget 1GiB --engine lists --kills 20
python bench/budget.py million.npy --budget 1GiB --engine hnsw --kills 20 --queries queries.npy
python bench/budget.py million.npy --budget 450MiB --attributes --kills 3
python bench/budget.py million.npy --budget 450MiB --attributes --compact --kills 5

First a build that is left alone, then one that gets SIGKILL at random moments and is started again. Printed for both:
wall and CPU time, the peak of anonymous memory (RssAnon, looked at every 5 ms from outside), and of everything that the
process has mapped (VmHWM; pages of files count there, though the kernel takes them back when it needs them). Then
whether the two indexes are the same bytes; with queries, the recall of both. --attributes gives every document an id
and six values of made attributes, one of them a word that no other document has. --compact deletes every fifth document
of the index that was left alone, and compacts two copies of it within the budget: one left alone, one killed.
"""

import json
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import tyro
from tyro.conf import Positional

LOOK_SECONDS = 0.005


@dataclass
class Took:
    """What one or several runs took."""

    wall: float = 0.0
    cpu: float = 0.0
    anonymous: int = 0
    mapped: int = 0
    said: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.wall:.0f} s, {self.cpu:.0f} s of CPU time; peak {self.anonymous / 1024:.0f} MiB anonymous, "
            f"{self.mapped / 1024:.0f} MiB with pages of files"
        )


def run(command: list[str], took: Took, kill_after: float | None = None) -> bool:
    """Run a build, looking at its memory; whether it came to its end."""
    with tempfile.TemporaryFile("w+") as log:
        started = time.monotonic()
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        cpu, killed = 0.0, False
        while process.poll() is None:
            cpu = look(process.pid, took) or cpu
            if kill_after is not None and not killed and time.monotonic() - started > kill_after:
                process.send_signal(signal.SIGKILL)
                killed = True
            time.sleep(LOOK_SECONDS)
        took.wall += time.monotonic() - started
        took.cpu += cpu
        log.seek(0)
        took.said = log.read().splitlines()
    if process.returncode not in (0, -signal.SIGKILL):
        raise SystemExit("\n".join(took.said))
    return process.returncode == 0


def run_killed(command: list[str], out: Path, kills: int, pace: float, seed: int) -> None:
    """Run a build that is killed again and again, and then left to come to its end."""
    took, chance, done = Took(), random.Random(seed), 0
    for _ in range(kills):
        # Imports take some seconds; then twice the share of the work, so that kills fall all over it.
        if run([*command, str(out)], took, 6 + chance.uniform(0, 2 * pace)):
            break
        done += 1
        print(f"killed {done}: {took.said[-1] if took.said else 'before it said anything'}", flush=True)
    if not (out / "CURRENT").exists():
        run([*command, str(out)], took)
    print(f"killed {done} times: {took}", flush=True)


def compacted(index: Path, budget: str, kills: int, seed: int, seconds: float | None = None) -> None:
    """Delete every fifth document, and compact two copies: one that is left alone, one that is killed."""
    from bidr.index.live.live_reader import LiveIndex

    both = [index.with_name(f"{index.name}-{name}") for name in ("compacted", "compacted-killed")]
    with LiveIndex.open(index) as opened:
        view = opened.latest()
        ids = [view.documents.id(row) for row in range(0, view.count, 5)]
    listed = index.with_name("deleted.txt")
    listed.write_text("\n".join(ids) + "\n")
    command = [sys.executable, "-m", "bidr"]
    for copy in both:
        shutil.rmtree(copy, ignore_errors=True)
        subprocess.run([*command, "snapshot", str(index), str(copy)], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([*command, "delete", str(copy), "--file", str(listed)], check=True, stdout=subprocess.DEVNULL)
    command += ["compact", "--ram-budget", budget]
    alone, often, chance, done = Took(), Took(), random.Random(seed), 0
    run([*command, str(both[0])], alone)
    print(f"compacted, left alone: {alone}", flush=True)
    pace = seconds or alone.wall / (kills + 1)
    while done < kills and not run([*command, str(both[1])], often, 4 + chance.uniform(0, 2 * pace)):
        done += 1
    if done == kills:
        run([*command, str(both[1])], often)
    print(f"compacted, killed {done} times: {often}", flush=True)
    folders = []
    for copy in both:
        with LiveIndex.open(copy) as opened:
            (part,) = opened.latest().segments
            folders.append(copy / part.entry.name)
    differ = differing(*folders)
    left = [path.name for path in both[1].iterdir() if path.name.startswith(".compact")]
    print("the same bytes" if not differ else f"different: {', '.join(differ)}", f"left behind: {left or 'nothing'}")


def look(pid: int, took: Took) -> float:
    """Memory now, into the peaks; CPU seconds so far."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return 0.0
    found = {name: int(size) for name, size in re.findall(r"^(RssAnon|VmHWM):\s+(\d+) kB", status, re.MULTILINE)}
    took.anonymous = max(took.anonymous, found.get("RssAnon", 0))
    took.mapped = max(took.mapped, found.get("VmHWM", 0))
    return (int(fields[11]) + int(fields[12])) / 100


def same(one: Path, other: Path) -> list[str]:
    """Files of two generations that differ."""
    return differing(*(folder / (folder / "CURRENT").read_text().split()[0] for folder in (one, other)))


def differing(*folders: Path) -> list[str]:
    """Files of two folders that differ."""
    names = [sorted(path.name for path in folder.iterdir()) for folder in folders]
    if names[0] != names[1]:
        return [f"{names[0]} against {names[1]}"]
    return [name for name in names[0] if subprocess.call(["cmp", "-s", *(str(each / name) for each in folders)])]


def recall(index: Path, vectors: Path, queries: np.ndarray, k: int = 100) -> tuple[float, float]:
    """Of the exact top k, the share in the answers; and of the codes' own top k, the share that the engine finds."""
    from bidr.data.vector_source import open_vectors
    from bidr.index.reader import IndexReader
    from bidr.quantization.exact_search import search_codes
    from bidr.search.searcher import Searcher
    from bidr.search.types import QueryVectors

    rows, best = open_vectors(vectors, "vectors", "cosine"), [np.empty((len(queries), 0)) for _ in range(2)]
    for start in range(0, len(rows), 100_000):
        scores = queries @ rows[start : start + 100_000].T
        part = np.argpartition(-scores, k, axis=1)[:, :k]
        best[0] = np.hstack([best[0], np.take_along_axis(scores, part, 1)])
        best[1] = np.hstack([best[1], part + start])
        keep = np.argsort(-best[0], axis=1)[:, :k]
        best = [np.take_along_axis(each, keep, 1) for each in best]
    with IndexReader.open(index) as reader:
        found = Searcher(reader).search_vectors(QueryVectors(queries, queries), k, 1_000).rows
        near = reader.candidates.search(queries, k)[1]
        scanned = search_codes(queries, reader.codebooks, reader.candidates.unpack_codes(), k).rows
    shares = [
        np.mean([len(np.intersect1d(a, b)) / k for a, b in zip(*pair, strict=True)])
        for pair in ((best[1], found), (scanned, near))
    ]
    return float(shares[0]), float(shares[1])


def made_corpus(folder: Path, count: int) -> Path:
    """Documents without text, with attributes of every kind."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "corpus.jsonl").open("w") as out:
        for row in range(count):
            own = {"url": f"https://example.org/{row * 7919 % count:09d}/page", "year": row % 60, "score": row / 7}
            own |= {"tags": [f"t{row % 90}", f"u{row % 70}"], "open": row % 2 == 0}
            out.write(json.dumps({"_id": f"document-{row:09d}", "text": "", "metadata": own}) + "\n")
    return folder


def main(
    vectors: Positional[Path],
    budget: str = "1GiB",
    engine: str = "lists",
    kills: int = 20,
    bytes_per_doc: int = 16,
    codewords: int = 256,
    queries: Path | None = None,
    seed: int = 0,
    folder: Path | None = None,
    seconds: float | None = None,
    attributes: bool = False,
    compact: bool = False,
) -> None:
    """Measure.

    folder:  where both indexes are left; by default they are removed. One that was left alone there is not built again.
    seconds: mean time from a start to its kill, beside 6 s for imports; by default what the build takes, shared out.
    """
    place = folder or Path(tempfile.mkdtemp())
    alone, killed = place / f"{engine}-alone", place / f"{engine}-killed"
    command = [sys.executable, "-m", "bidr", "build", "--vectors", str(vectors), "--engine", engine]
    command += ["--bytes-per-doc", str(bytes_per_doc), "--codewords", str(codewords), "--ram-budget", budget]
    if attributes:
        command += ["--data", str(made_corpus(place / "corpus", len(np.load(vectors, mmap_mode="r"))))]
    command.append("--out")
    shutil.rmtree(killed, ignore_errors=True)
    whole = Took()
    if not (alone / "CURRENT").exists():
        run([*command, str(alone)], whole)
        print(f"left alone: {whole}", flush=True)
    if compact:
        compacted(alone, budget, kills, seed, seconds)
        return
    run_killed(command, killed, kills, seconds or whole.wall / (kills + 1), seed)
    differ = same(alone, killed)
    print("the same bytes" if not differ else f"different: {', '.join(differ)}", flush=True)
    if queries is not None:
        asked = np.load(queries)[:300].astype(np.float32)
        asked /= np.linalg.norm(asked, axis=1, keepdims=True)
        for index in (alone, killed):
            exact, scan = recall(index, vectors, asked)
            print(f"{index.name}: R@100 of exact at 1,000 candidates {exact:.4f}, of the codes' scan {scan:.4f}")
    if folder is None:
        shutil.rmtree(place)


if __name__ == "__main__":
    tyro.cli(main)
