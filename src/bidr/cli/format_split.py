"""Format divisions of RAM between codes and cached vectors, and the commands of the chosen one."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bidr.cli.format_plan import format_bytes

if TYPE_CHECKING:
    from bidr.index.cost_model.memory_split import SplitChoice
    from bidr.planning.disk_benchmark import DiskSpeed


def describe_split(choice: "SplitChoice", disk: "DiskSpeed | None") -> dict[str, Any]:
    """Return the divisions as JSON."""
    splits = []
    for split in choice.splits:
        milliseconds = {} if disk is None else {"disk_ms": round(disk.estimate_ms(split.reads), 3)}
        splits.append({**split._asdict(), "reads": round(split.reads, 1), **milliseconds})
    chosen = {"bytes_per_doc": choice.chosen.code_bytes, "candidates": choice.chosen.candidates}
    return {**chosen, "recall": choice.recall, "k": choice.k, "sampled": choice.sampled, "alternatives": splits}


def format_split(choice: "SplitChoice", disk: "DiskSpeed | None") -> list[str]:
    """Return a table of all divisions, and the sentence that explains the choice."""
    head = ["bytes", "candidates", "RAM without cache", "cached vectors", "reads a query"]
    head += ["ms on the disk"] if disk else []
    rows = []
    for split in choice.splits:
        cache = "-" if split.cache_bytes is None else format_bytes(split.cache_bytes)
        cells = [str(split.code_bytes), f"{split.candidates:,}", format_bytes(split.index_bytes), cache]
        cells += [f"{split.reads:,.0f}", *([f"{disk.estimate_ms(split.reads):.2f}"] if disk else [])]
        rows.append(cells)
    widths = [max(len(row[place]) for row in [head, *rows]) for place in range(len(head))]
    table = ["  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in [head, *rows]]
    return [*table, "", choice.explain()]


def format_disk(folder: Path, disk: "DiskSpeed") -> str:
    """Say how many reads a second a disk answers."""
    rates = ", ".join(f"{iops:,.0f} at depth {depth}" for depth, iops in disk.iops.items())
    return f"disk of {folder}: random 4 KiB reads a second: {rates}"


def make_split_commands(choice: "SplitChoice", vectors: Path, options: list[str]) -> list[str]:
    """Return the commands that build and search with the chosen division."""
    size, candidates = str(choice.chosen.code_bytes), str(choice.chosen.candidates)
    build = ["bidr", "build", "--vectors", str(vectors), "--out", "INDEX", "--bytes-per-doc", size, *options]
    search = ["bidr", "search", "--index", "INDEX", "--query-vectors", "FILE", "--k", str(choice.k)]
    return [shlex.join(build), shlex.join([*search, "--candidates", candidates])]
