"""A plan in words."""

from typing import Any

GIB = 1 << 30
# What a person looks for on disk, by the files that it is made of.
ON_DISK = {
    "vectors": ("vectors.npy",),
    "checksums": (),
    "codes": ("codes.npy", "codebooks.safetensors"),
    "order": ("order.npy", "lists.npy", "centroids.npy", "means.npy", "means.safetensors"),
    "links": ("graph.npy",),
    "ids": ("ids.blob", "ids.offsets.npy", "ids.hashes.npy", "ids.rows.npy"),
    "text": ("documents.blob", "documents.offsets.npy"),
    "words": tuple(f"words.{each}.npy" for each in ("hashes", "offsets", "places", "counts", "lengths")),
}


def as_text(plan: dict[str, Any]) -> str:
    """The whole plan: what each engine takes and needs, then of what that is made."""
    docs, engines = plan["documents"], plan["engines"]
    names = [f"{each['engine']}, {each['bits']} bits" for each in engines]
    ram_parts = list(dict.fromkeys(part for each in engines for part in each["ram"]["bytes"]))
    disk = [_on_disk(each["disk"]["bytes"]) for each in engines]
    written = {part for parts in disk for part in parts if part != "words" or plan["words"]}
    blocks = [
        [
            f"{docs:,} documents of {plan['dimensions']} dimensions; codes of {plan['code_bytes']} bytes, vectors in "
            f"{plan['stored']}{_cut(plan)}; "
            f"{plan['ram_budget'] / GIB:,.1f} GiB of RAM and {plan['cores']} cores a machine"
        ],
        _table("", names, _summary(plan)),
        _table(
            "RAM, bytes a document",
            names,
            {part: [_each(each["ram"]["bytes"].get(part, 0) / docs) for each in engines] for part in ram_parts},
        ),
        _table(
            "disk, bytes a document",
            names,
            {
                part: [_each(parts.get(part, 0) / docs) for parts in disk]
                for part in [*ON_DISK, "other"]
                if part in written
            },
        ),
        _notes(plan),
    ]
    return "\n\n".join("\n".join(block) for block in blocks)


def _cut(plan: dict[str, Any]) -> str:
    return f", the first {plan['stored_dims']} dimensions" if plan["stored_dims"] < plan["dimensions"] else ""


def _summary(plan: dict[str, Any]) -> dict[str, list[str]]:
    engines = plan["engines"]
    build = [each["build_seconds_a_machine"] for each in engines]
    return {
        "RAM a document, bytes": [_each(each["ram"]["per_document"]) for each in engines],
        "RAM in all": [size(each["ram"]["total"]) for each in engines],
        "fits one machine": ["yes" if each["fits"] else "no" for each in engines],
        "largest codes that fit": [_largest(each["largest_code_bytes"]) for each in engines],
        "machines": [f"{each['machines']:,}" for each in engines],
        "disk in all": [size(each["disk"]["total"]) for each in engines],
        "codes compared a query": [f"{each['compared_a_query']:,}" for each in engines],
        "vectors read a query": [f"{each['reads_a_query']['candidates']:,}" for each in engines],
        "pages read, cold": [f"{each['reads_a_query']['pages_cold']:,.0f}" for each in engines],
        "build, each machine": [duration(sum(parts.values())) for parts in build],
        "of it, clusters": [duration(parts.get("clusters", 0)) for parts in build],
        "of it, links": [duration(parts.get("links", 0)) for parts in build],
        "RAM to build, at its peak": [size(max(each["build_peak_a_machine"].values())) for each in engines],
    }


def _notes(plan: dict[str, Any]) -> list[str]:
    machines = max(each["machines"] for each in plan["engines"])
    text = f"titles and texts of {plan['text_bytes']:g}" if plan["text_bytes"] else "no texts"
    lines = [
        f"Ids of {plan['id_bytes']:g} bytes on average, {text}. While an index is built again the old one stays: twice "
        "the disk.",
        "Pages are at most so many, of a file that is not in memory: candidates often lie side by side.",
        "RAM is for one query at a time; page tables as if every vector had been read once.",
        *_rates(plan["rates"]),
        _counted(plan["learned_codes"]),
    ]
    if plan["words"]:
        often, texts = plan["words"]["postings"], plan["words"]["texts"]
        known = f"counted in {texts:,} of them" if texts > 1 else "guessed (see --data)"
        lines.append(f"Words: {often:,.0f} different ones a text, {known}.")
    if machines > 1:
        lines.append("With several machines each holds a share of the documents, and each answers every query.")
    return lines


def _rates(rates: dict[str, Any]) -> list[str]:
    """Where build times come from."""
    lines = [
        "Build times are by rates of one core of an AMD EPYC with AVX-512, and may be off by 2 times: --measure takes",
        "those of this machine, in about half a minute.",
    ]
    if rates["measured"]:
        took = f"Build times are by rates of one core of this machine ({rates['processor']}), measured now in "
        lines = [f"{took}{rates['seconds']:.0f} s."]
    return lines


def _counted(learned_codes: bool) -> str:
    fitted = (
        "Codes are a model's, and making them is"
        if learned_codes
        else "Codes are fitted to the vectors; encoding texts is"
    )
    return f"{fitted} not in it, nor are attributes. What cores share is divided by them."


def _on_disk(files: dict[str, int]) -> dict[str, int]:
    parts = {part: sum(files.get(name, 0) for name in names) for part, names in ON_DISK.items()}
    parts["checksums"] = sum(size for name, size in files.items() if ".checks" in name)
    return {**parts, "other": sum(files.values()) - sum(parts.values())}


def _table(title: str, head: list[str], rows: dict[str, list[str]]) -> list[str]:
    first = max(len(title), *(len(name) for name in rows))
    widths = [max(len(name), *(len(row[place]) for row in rows.values())) for place, name in enumerate(head)]
    lines = [(title, head), *rows.items()]
    return [
        f"{name:<{first}}  " + "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
        for name, row in lines
    ]


def _largest(code_bytes: int | None) -> str:
    return "none" if code_bytes is None else f"{code_bytes:,} bytes"


def _each(number: float) -> str:
    return "0" if not number else f"{number:,.2f}" if number >= 0.005 else "0.00"


def size(count: float) -> str:
    """Bytes in the units that RAM is sold in."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def duration(seconds: float) -> str:
    """Time as a person says it."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.0f} {unit}" if seconds >= 10 * length else f"{seconds / length:,.1f} {unit}"
    return f"{seconds:,.0f} s"
