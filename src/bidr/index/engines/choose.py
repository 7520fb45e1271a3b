"""Which engine suits a corpus."""

from bidr.errors import ConfigError

ENGINES = ("auto", "scan", "lists", "hnsw")
# See docs/engines.md for the figures behind these.
AUTO_SCAN_DOCUMENTS = 200_000


def choose_engine(engine: str, count: int, bits: int = 8) -> str:
    """The engine that "auto" stands for, or the one that was named."""
    if engine not in ENGINES:
        raise ConfigError(f"engine: given {engine!r}, expected one of {', '.join(ENGINES)}")
    if engine == "auto":
        return "scan" if count <= AUTO_SCAN_DOCUMENTS else "lists"
    return engine
