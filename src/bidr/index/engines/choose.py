"""Which engine suits a corpus."""

from bidr.errors import ConfigError

ENGINES = ("auto", "scan", "lists", "hnsw")
# Up to here a scan is taken, by bits of a code: beyond, lists save more than half of its time (docs/engines.md).
AUTO_SCAN_DOCUMENTS = {4: 400_000, 8: 200_000}


def choose_engine(engine: str, count: int, bits: int = 8) -> str:
    """The engine that "auto" stands for, or the one that was named."""
    if engine not in ENGINES:
        raise ConfigError(f"engine: given {engine!r}, expected one of {', '.join(ENGINES)}")
    if engine == "auto":
        return "scan" if count <= AUTO_SCAN_DOCUMENTS[bits] else "lists"
    return engine
