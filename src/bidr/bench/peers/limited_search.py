"""Measure a peer within a memory cgroup: how much it needs, which settings reach a recall, and what these cost.

Queries come in parts (see `bidr.bench.limited_run.QueryParts`): those that settings are chosen by, those that are
reported, others to warm up, and others for throughput. Each phase is a process of its own.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from bidr.bench.memory_cgroup import MemoryCgroup
from bidr.bench.peers.harness import (
    ANSWERS,
    evict,
    make_ranker,
    measure_resident_share,
    read_memory,
)

FIRST_QUERIES = 3
SWEEP_WARM_UP = 20
MAX_RESIDENT = 0.01
Say = Callable[..., None]
Ask = Callable[[np.ndarray, dict[str, Any]], np.ndarray]


def enter_cgroup(request: dict[str, Any]) -> None:
    """Move this process into the cgroup, before it imports the library and opens anything."""
    _get_cgroup(request).add_process(os.getpid())


def measure_index(peer: Any, request: dict[str, Any], say: Say) -> None:
    """Say how much anonymous memory the index adds to a process that has opened and searched a small one."""
    queries, folder, cgroup = np.load(request["queries"]), Path(request["folder"]), _get_cgroup(request)
    small = _open(peer, request, folder / "small")
    _ask_first(small, queries, request)
    unopened, charged = read_memory()["anonymous"], cgroup.read_memory().anonymous
    ask = _open(peer, request, folder / "whole")
    _ask_first(ask, queries, request)
    # A database is a process of its own: only the cgroup counts it.
    added = max(read_memory()["anonymous"] - unopened, cgroup.read_memory().anonymous - charged)
    say(event="index", bytes=max(0, added))


def measure_need(peer: Any, request: dict[str, Any], say: Say) -> None:
    """Say what anonymous memory the process needs, with the most clients and without a limit."""
    queries, cgroup, clients = np.load(request["queries"]), _get_cgroup(request), max(request["clients"])
    ask = _open(peer, request, Path(request["folder"]) / "whole")
    _ask_first(ask, queries, request)
    _measure_clients(ask, request["grid"][0], itertools.cycle(queries), clients, clients, cgroup)
    say(event="need", bytes=cgroup.read_memory().anonymous)


def sweep(peer: Any, request: dict[str, Any], say: Say) -> None:
    """Measure every setting on the queries for choosing settings."""
    parts, cgroup = _load_parts(request), _get_cgroup(request)
    ask = _open_evicted(peer, request, say)
    for query in parts["warm_up"]:
        ask(query, request["grid"][0])
    for number, setting in enumerate(request["grid"]):
        for query in parts["warm_up"][:SWEEP_WARM_UP]:
            ask(query, setting)
        ids, _, figures = _measure(ask, setting, parts["sweep"], cgroup)
        _save(say, request, number, ids, event="swept", setting=setting, **figures)


def report(peer: Any, request: dict[str, Any], say: Say) -> None:
    """Measure the first setting of the grid with fresh queries: one client, then several."""
    parts, cgroup, setting = _load_parts(request), _get_cgroup(request), request["grid"][0]
    ask = _open_evicted(peer, request, say)
    for query in parts["warm_up"]:
        ask(query, setting)
    ids, _, figures = _measure(ask, setting, parts["report"], cgroup)
    memory = cgroup.read_memory()
    figures |= {"anonymous_bytes": memory.anonymous, "cache_bytes": memory.cache}
    fresh = itertools.cycle(parts["throughput"])
    size = len(parts["report"])
    levels = [_measure_clients(ask, setting, fresh, count, size, cgroup) for count in request["clients"]]
    _save(say, request, 0, ids, event="reported", setting=setting, clients=levels, **figures)


def _measure(
    ask: Ask, setting: dict[str, Any], queries: np.ndarray, cgroup: MemoryCgroup
) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    ids, seconds = np.full((len(queries), ANSWERS), -1, dtype=np.int64), np.empty(len(queries))
    with _count(cgroup, len(queries)) as figures:
        for number, query in enumerate(queries):
            start = time.perf_counter()
            results = ask(query, setting)
            seconds[number] = time.perf_counter() - start
            ids[number, : len(results)] = results
    return ids, seconds, {**figures, **_summarize(seconds)}


def _measure_clients(
    ask: Ask, setting: dict[str, Any], fresh: Iterator[np.ndarray], clients: int, per_client: int, cgroup: MemoryCgroup
) -> dict[str, Any]:
    """Return throughput and latency of several threads, each asking one query after the other."""
    total = max(per_client, clients)
    queries, seconds, lock = [next(fresh) for _ in range(total)], np.zeros(total), threading.Lock()
    places, errors = iter(range(total)), list[BaseException]()

    def run() -> None:
        try:
            while True:
                with lock:
                    place = next(places, None)
                if place is None:
                    return
                start = time.perf_counter()
                ask(queries[place], setting)
                seconds[place] = time.perf_counter() - start
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(clients)]
    with _count(cgroup, total) as figures:
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wall = time.perf_counter() - started
    if errors:
        raise errors[0]
    return {"clients": clients, "qps": total / wall, **figures, **_summarize(seconds)}


@contextmanager
def _count(cgroup: MemoryCgroup, queries: int) -> Iterator[dict[str, Any]]:
    """Count reads, major faults and CPU time per query of a block."""
    figures: dict[str, Any] = {}
    clock = _get_cpu_clock(cgroup)
    cpu, disk, faults, read_bytes = clock(), cgroup.read_disk(), cgroup.read_major_faults(), _read_own_bytes()
    yield figures
    figures["cpu_ms"] = 1000 * (clock() - cpu) / queries
    figures["major_faults"] = (cgroup.read_major_faults() - faults) / queries
    after = cgroup.read_disk()
    if after is not None and disk is not None:
        figures["reads"] = (after.requests - disk.requests) / queries
        figures["read_bytes"] = (after.bytes - disk.bytes) / queries
    else:
        figures["read_bytes"] = (_read_own_bytes() - read_bytes) / queries


def _get_cpu_clock(cgroup: MemoryCgroup) -> Callable[[], float]:
    """Return a clock of CPU seconds: of this process, or in coarser steps of all where there are several."""
    return time.process_time if len(cgroup.list_processes()) == 1 else cgroup.read_cpu_seconds


def _summarize(seconds: np.ndarray) -> dict[str, float]:
    return {f"p{rank}_ms": float(1000 * np.percentile(seconds, rank)) for rank in (50, 95, 99)}


def _open(peer: Any, request: dict[str, Any], folder: Path) -> Ask:
    _, rank = make_ranker(request["rank"], Path(request["rows"]))
    find = peer.open_index(folder, request["settings"])

    def ask(query: np.ndarray, setting: dict[str, Any]) -> np.ndarray:
        ids = find(query, setting["candidates"] if rank else ANSWERS, setting)
        if rank:
            ids = rank(ids[ids >= 0], query, ANSWERS)
        return np.asarray(ids[:ANSWERS])

    return ask


def _open_evicted(peer: Any, request: dict[str, Any], say: Say) -> Ask:
    """Open the index after its files left the page cache, so that all that enters it is charged to the cgroup."""
    folder = Path(request["folder"]) / "whole"
    paths = [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size]
    if request["rank"]:
        paths.append(Path(request["rows"]))
    for path in paths:
        evict(path)
    largest = max(paths, key=lambda path: path.stat().st_size)
    resident = measure_resident_share(largest)
    if resident > MAX_RESIDENT:
        raise RuntimeError(f"{resident:.1%} of {largest.name} stay in memory: the limit would not count them")
    started = time.perf_counter()
    ask = _open(peer, request, folder)
    seconds = time.perf_counter() - started
    _ask_first(ask, np.load(request["queries"])[request["parts"]["warm_up"][0] :], request)
    with suppress(OSError):  # EBUSY: more than the limit is in use and cannot be reclaimed yet
        _get_cgroup(request).set_limit(request["limit_bytes"])
    say(event="opened", seconds=seconds)
    return ask


def _ask_first(ask: Ask, queries: np.ndarray, request: dict[str, Any]) -> None:
    for query in queries[:FIRST_QUERIES]:
        ask(query, request["grid"][-1])


def _get_cgroup(request: dict[str, Any]) -> MemoryCgroup:
    version, memory, io = request["cgroup"]
    return MemoryCgroup(version, Path(memory), None if io is None else Path(io))


def _load_parts(request: dict[str, Any]) -> dict[str, np.ndarray]:
    queries = np.load(request["queries"])
    return {name: queries[start:stop] for name, (start, stop) in request["parts"].items()}


def _save(say: Say, request: dict[str, Any], number: int, ids: np.ndarray, **line: Any) -> None:
    path = request["found"].format(f"{request['phase']}-{number}")
    np.save(path, ids)
    say(found=path, **line)


def _read_own_bytes() -> int:
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return int(dict(line.split(": ") for line in lines)["read_bytes"])
