"""Format a plan."""

from typing import Any

from bidr.cli.base import format_count
from bidr.index.engines.engine_choice import get_engine_label
from bidr.index.ram_usage import get_part_label

GIB = 1 << 30
# Disk use by purpose, with the files of each.
ON_DISK = {
    "vectors": ("vectors.npy",),
    "checksums": (),
    "codes": ("codes.npy", "codebooks.safetensors"),
    "order": ("order.npy", "lists.npy", "centroids.npy", "means.npy", "means.safetensors"),
    "links": ("graph.npy",),
    "ids": ("ids.blob", "ids.offsets.npy", "ids.hashes.npy", "ids.rows.npy"),
    "text": ("documents.blob", "documents.offsets.npy"),
    "words": tuple(f"words.{name}.npy" for name in ("hashes", "offsets", "places", "counts", "lengths")),
}


def format_plan(plan: dict[str, Any]) -> str:
    """Format all engines, then RAM and disk by part."""
    docs, engines = plan["documents"], plan["engines"]
    names = [f"{get_engine_label(engine['engine'])}, {engine['bits']} bits" for engine in engines]
    ram_parts = list(dict.fromkeys(part for engine in engines for part in engine["ram"]["bytes"]))
    disk = [_group_files(engine["disk"]["bytes"]) for engine in engines]
    written = {part for parts in disk for part in parts if part != "words" or plan["words"]}
    blocks = [
        [
            f"{format_count(docs, 'document')} of {plan['dimensions']} dimensions; "
            f"codes of {plan['code_bytes']} bytes, vectors in {plan['stored']}{_cut(plan)}; "
            f"{plan['ram_budget'] / GIB:,.1f} GiB of RAM and {plan['cores']} cores a machine"
        ],
        _format_table("", names, _summarize(plan)),
        _format_table(
            "RAM, bytes a document",
            names,
            {
                get_part_label(part): [_format_number(engine["ram"]["bytes"].get(part, 0) / docs) for engine in engines]
                for part in ram_parts
            },
        ),
        _format_table(
            "disk, bytes a document",
            names,
            {
                part: [_format_number(parts.get(part, 0) / docs) for parts in disk]
                for part in [*ON_DISK, "other"]
                if part in written
            },
        ),
        _list_notes(plan),
    ]
    return "\n\n".join("\n".join(block) for block in blocks)


def _cut(plan: dict[str, Any]) -> str:
    return f", the first {plan['stored_dims']} dimensions" if plan["stored_dims"] < plan["dimensions"] else ""


def _summarize(plan: dict[str, Any]) -> dict[str, list[str]]:
    engines = plan["engines"]
    build = [engine["build_seconds_a_machine"] for engine in engines]
    return {
        "RAM a document, bytes": [_format_number(engine["ram"]["per_document"]) for engine in engines],
        "RAM in all": [format_bytes(engine["ram"]["total"]) for engine in engines],
        "fits one machine": ["yes" if engine["fits"] else "no" for engine in engines],
        "largest codes that fit": [_format_largest(engine["largest_code_bytes"]) for engine in engines],
        "machines": [f"{engine['machines']:,}" for engine in engines],
        "disk in all": [format_bytes(engine["disk"]["total"]) for engine in engines],
        "codes compared a query": [f"{engine['compared_a_query']:,}" for engine in engines],
        "vectors read a query": [f"{engine['reads_a_query']['candidates']:,}" for engine in engines],
        "pages read, cold": [f"{engine['reads_a_query']['pages_cold']:,.0f}" for engine in engines],
        "build, each machine": [format_duration(sum(parts.values())) for parts in build],
        "  clustering": [format_duration(parts.get("clusters", 0)) for parts in build],
        "  graph construction": [format_duration(parts.get("links", 0)) for parts in build],
        "RAM to build, at its peak": [format_bytes(max(engine["build_peak_a_machine"].values())) for engine in engines],
    }


def _list_notes(plan: dict[str, Any]) -> list[str]:
    machines = max(engine["machines"] for engine in plan["engines"])
    text = f"titles and texts of {plan['text_bytes']:g}" if plan["text_bytes"] else "no texts"
    lines = [
        f"Ids of {plan['id_bytes']:g} bytes on average, {text}. While an index is built again the old one stays: twice "
        "the disk.",
        "Pages read is an upper bound for a cold cache; neighboring candidates share pages.",
        "RAM a document is the index's, as inspect, evaluate and compare count it: without page tables (as if every",
        "vector had been read once), a query and the process, which RAM in all has too.",
        *_note_rates(plan["rates"]),
        _note_codes(plan["learned_codes"]),
    ]
    if plan["words"]:
        postings, texts = plan["words"]["postings"], plan["words"]["texts"]
        source = f"counted in {texts:,} of them" if texts > 1 else "guessed (see --data)"
        lines.append(f"Words: {postings:,.0f} different ones a text, {source}.")
    if machines > 1:
        lines.append("With several machines each holds a share of the documents, and each answers every query.")
    return lines


def _note_rates(rates: dict[str, Any]) -> list[str]:
    """Explain the source of build times."""
    lines = [
        "Build times assume one core of an AMD EPYC with AVX-512 and may be off by a factor of 2; use --measure to",
        "calibrate on this machine, in about half a minute.",
    ]
    if rates["measured"]:
        took = f"Build times are calibrated on one core of this machine ({rates['processor']}), measured now in "
        lines = [f"{took}{rates['seconds']:.0f} s."]
    return lines


def _note_codes(learned_codes: bool) -> str:
    excluded = "training and computing the codes of the model" if learned_codes else "text encoding (codes are fitted)"
    return f"Excludes {excluded} and attributes. Parallel steps are divided by the number of cores."


def _group_files(files: dict[str, int]) -> dict[str, int]:
    parts = {part: sum(files.get(name, 0) for name in names) for part, names in ON_DISK.items()}
    parts["checksums"] = sum(format_bytes for name, format_bytes in files.items() if ".checks" in name)
    return {**parts, "other": sum(files.values()) - sum(parts.values())}


def _format_table(title: str, head: list[str], rows: dict[str, list[str]]) -> list[str]:
    first = max(len(title), *(len(name) for name in rows))
    widths = [max(len(name), *(len(row[place]) for row in rows.values())) for place, name in enumerate(head)]
    lines = [(title, head), *rows.items()]
    return [
        f"{name:<{first}}  " + "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
        for name, row in lines
    ]


def _format_largest(code_bytes: int | None) -> str:
    return "none" if code_bytes is None else f"{code_bytes:,} bytes"


def _format_number(number: float) -> str:
    return "0" if not number else f"{number:,.2f}" if number >= 0.005 else "0.00"


def format_bytes(count: float) -> str:
    """Format bytes in binary units."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def format_duration(seconds: float) -> str:
    """Format a duration in its largest unit."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.0f} {unit}" if seconds >= 10 * length else f"{seconds / length:,.1f} {unit}"
    return f"{seconds:,.0f} s"
