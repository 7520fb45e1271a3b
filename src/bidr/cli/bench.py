"""`bidr bench`: measure bidr and other libraries on the same vectors."""

import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import tyro

from bidr.cli.base import Command, CommandResult, OptionalFile, OptionalFolder
from bidr.cli.config_parsing import suggest_name
from bidr.errors import ConfigError, DataError

if TYPE_CHECKING:
    from bidr.bench.recall_plot import Axes
    from bidr.bench.run import Limits
    from bidr.bench.variants import Variant
    from bidr.data.vector_source import VectorSource

Peers = tuple[str, ...]
FEWEST = 1_000


@dataclass(frozen=True, kw_only=True)
class Bench(Command):
    """Build and measure bidr and other libraries on the same vectors, each in its own process.

    Recall is against exact search; times are CPU time of one query at a time on one thread, with all vectors in
    memory. With --memory-limit, memory holds only a part of them, and queries were never asked before. A library that
    cannot be installed or run gets a row with the reason.
    """

    help_groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "vectors": ("vectors", "queries", "query-count", "metric"),
        "libraries": ("peers", "skip", "install", "peer-python"),
        "measurement": ("code-bytes", "rounds", "threads", "cold", "limit", "work"),
        "less memory than data": ("memory-limit", "clients"),
        "output": ("json", "curves"),
    }

    vectors: Annotated[Path, tyro.conf.arg(metavar="FILE")]
    """Document vectors (.npy)."""
    queries: Annotated[Path, tyro.conf.arg(metavar="FILE")]
    """Query vectors (.npy)."""
    memory_limit: Annotated[str | None, tyro.conf.arg(metavar="SIZE", help_behavior_hint="(optional)")] = None
    """Measure with less memory than data: each library gets this page cache, a share of the fp16 vectors (10%) or a
    size (2GiB), beside the anonymous memory it needs. Needs a writable memory cgroup."""
    clients: tuple[int, ...] = (1, 2, 4, 8, 16)
    """With --memory-limit: numbers of threads that ask at once."""
    peers: Peers = ()
    """Libraries to measure; by default all."""
    skip: Annotated[Peers, tyro.conf.arg(metavar="NAME")] = ()
    """Index to leave out, by its name in the tables, such as 'usearch f16', which is slow to build."""
    peer_python: Annotated[Peers, tyro.conf.arg(metavar="NAME=PATH")] = ()
    """Python interpreter that has a library installed."""
    install: OptionalFolder = None
    """Create a virtual environment per library in this folder, with pip; later runs reuse them."""
    code_bytes: tuple[int, ...] = (32, 48)
    """Code sizes in bytes per document, for all libraries with codes."""
    metric: Literal["cosine", "ip"] = "cosine"
    """Similarity: 'cosine' (vectors are L2-normalized) or inner product."""
    query_count: Annotated[int, tyro.conf.arg(aliases=["--asked"])] = 300
    """Number of queries to measure, drawn from --queries."""
    rounds: int = 3
    """Rounds in which all indexes are searched in turn; the fastest round of a setting counts."""
    threads: int = os.cpu_count() or 1
    """Build threads; searches use one."""
    cold: int = 20
    """Queries measured with their vectors evicted from the page cache (checked with mincore)."""
    limit: float = 3_600.0
    """Maximum seconds to build or search one index."""
    work: OptionalFolder = None
    """Folder on the disk to measure; by default the folder of temporary files. Its contents are removed afterwards."""
    curves: OptionalFile = None
    """Write a plot of recall against speed to this SVG file."""

    def list_outputs(self) -> list[Path]:
        return [path for path in (self.json, self.curves) if path]

    def run(self) -> CommandResult:
        from bidr.bench.limited_variants import list_limited_variants
        from bidr.bench.variants import list_variants
        from bidr.data.vector_source import check_same_dim, open_vectors

        pythons = self._check_settings()
        documents = open_vectors(self.vectors, "vectors", self.metric)
        queries = open_vectors(self.queries, "queries", self.metric)
        check_same_dim(documents, queries)
        if len(documents) < FEWEST:
            raise DataError(f"{self.vectors} holds {len(documents):,} vectors, expected {FEWEST:,} or more")
        list_all = list_variants if self.memory_limit is None else list_limited_variants
        variants_to_run = self._select_variants(
            list_all(self._list_peers(), len(documents), documents.dim, self.code_bytes)
        )
        compare = self._compare_warm if self.memory_limit is None else self._compare_limited
        return compare(variants_to_run, documents, queries, pythons)

    def _compare_warm(
        self, variants: list["Variant"], documents: "VectorSource", queries: "VectorSource", pythons: dict[str, str]
    ) -> CommandResult:
        from bidr.bench.recall_plot import WARM_AXES
        from bidr.bench.report import render_tables
        from bidr.bench.run import compare, prepare

        failed = self._install_peers(pythons)
        with tempfile.TemporaryDirectory(dir=self.work, prefix="bench-") as folder:
            prepared = prepare(Path(folder), documents, queries, self.query_count)
            summary = {"documents": len(documents), "dim": documents.dim, "queries": len(prepared.exact)}
            keep = self._make_keeper(summary)
            rows = compare(
                variants, prepared, lambda peer: pythons.get(peer, sys.executable), failed, self._get_limits(), keep
            )
        self._draw(rows, documents, WARM_AXES)
        return CommandResult(render_tables(rows), {**summary, "threads": self.threads, "rows": rows})

    def _compare_limited(
        self, variants: list["Variant"], documents: "VectorSource", queries: "VectorSource", pythons: dict[str, str]
    ) -> CommandResult:
        from bidr.bench.limited_report import render_limited_tables
        from bidr.bench.limited_run import (
            LimitedConfig,
            compare_limited,
            get_read_ahead,
            parse_memory_limit,
            prepare_limited,
        )
        from bidr.bench.memory_cgroup import MemoryCgroup
        from bidr.bench.recall_plot import LIMITED_AXES

        MemoryCgroup.create().remove()  # an error before anything is written
        failed = self._install_peers(pythons)
        with tempfile.TemporaryDirectory(dir=self.work, prefix="bench-") as folder:
            prepared, parts = prepare_limited(Path(folder), documents, queries, self.query_count)
            cache = parse_memory_limit(self.memory_limit or "", prepared.rows.stat().st_size)
            summary = {
                "documents": len(documents),
                "dim": documents.dim,
                "queries": self.query_count,
                "cache_bytes": cache,
            }
            summary["read_ahead_bytes"] = get_read_ahead(prepared.folder)
            config = LimitedConfig(cache, self.clients)
            keep, limits = self._make_keeper(summary), self._get_limits()
            rows = compare_limited(
                variants, prepared, parts, lambda peer: pythons.get(peer, sys.executable), failed, limits, config, keep
            )
        self._draw(rows, documents, LIMITED_AXES)
        text = render_limited_tables(rows, cache, summary["read_ahead_bytes"])
        return CommandResult(text, {**summary, "threads": self.threads, "rows": rows})

    def _get_limits(self) -> "Limits":
        from bidr.bench.run import Limits

        return Limits(self.threads, self.limit, self.cold, self.rounds)

    def _make_keeper(self, summary: dict[str, Any]) -> Callable[[list[dict[str, Any]]], None]:
        """Return a function that writes the rows so far to --json."""
        from bidr.utils.files import write_json

        def keep(rows: list[dict[str, Any]]) -> None:
            if self.json:
                write_json(self.json, {**summary, "threads": self.threads, "rows": rows})

        return keep

    def _draw(self, rows: list[dict[str, Any]], documents: "VectorSource", axes: "Axes") -> None:
        from bidr.bench.recall_plot import render_svg
        from bidr.utils.files import write_atomically

        if self.curves:
            drawn = render_svg(rows, f"{len(documents):,} vectors of {documents.dim} dimensions", axes)
            write_atomically(self.curves, drawn.encode())

    def _list_peers(self) -> Peers:
        from bidr.bench.limited_variants import PEERS
        from bidr.bench.variants import NAMES

        return self.peers or (NAMES if self.memory_limit is None else PEERS)

    def _check_settings(self) -> dict[str, str]:
        """Validate settings before anything is installed or built; return the named Python interpreters."""
        from bidr.bench.limited_variants import PEERS
        from bidr.bench.variants import NAMES

        for name, value in (
            *(("clients", count) for count in self.clients),
            ("query-count", self.query_count),
            ("threads", self.threads),
            ("rounds", self.rounds),
            ("limit", self.limit),
        ):
            if value < 1:
                raise ConfigError(f"--{name}: given {value}, expected 1 or more")
        if self.cold < 0:
            raise ConfigError(f"--cold: given {self.cold}, expected 0 or more queries")
        if self.work is not None and not self.work.is_dir():
            raise ConfigError(f"--work: the folder {self.work} does not exist; create it first")
        if not self.clients:
            raise ConfigError("--clients: given none, expected one number or more")
        peers = NAMES if self.memory_limit is None else PEERS
        pythons = {}
        for argument in self.peer_python:
            peer, equals, path = argument.partition("=")
            if not equals or not path:
                raise ConfigError(
                    f"--peer-python: given {argument!r}, expected NAME=PATH, such as scann=venv/bin/python"
                )
            pythons[peer] = path
        for peer in (*self.peers, *pythons):
            if peer not in peers:
                raise ConfigError(
                    f"unknown peer {peer!r}{suggest_name(peer, peers) or ';'} known are {', '.join(peers)}"
                )
        return pythons

    def _select_variants(self, variants: list["Variant"]) -> list["Variant"]:
        """Return the variants that --skip does not name."""
        names = [variant.name for variant in variants]
        for name in self.skip:
            if name not in names:
                argument = f"--skip: given {name!r}, which is none of the indexes of --peers"
                raise ConfigError(f"{argument}{suggest_name(name, names) or ';'} these are {', '.join(names)}")
        return [variant for variant in variants if variant.name not in self.skip]

    def _install_peers(self, pythons: dict[str, str]) -> dict[str, str]:
        """Install peers without an interpreter of their own; return the reason for each that failed."""
        from bidr.bench.install import get_python, install
        from bidr.bench.variants import PACKAGES

        if self.install is None:
            return {}
        variants_to_run = tuple(peer for peer in self._list_peers() if peer in PACKAGES and peer not in pythons)
        failed = install(self.install, variants_to_run)
        pythons.update({peer: str(get_python(self.install, peer)) for peer in variants_to_run if peer not in failed})
        return failed
