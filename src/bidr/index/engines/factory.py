"""Which engine suits a corpus."""

from bidr.errors import ConfigError

ENGINES = ("auto", "scan", "lists", "hnsw")
# Up to here a scan is taken, by bits of a code. At equal R@100, the reads of the candidates that lists need more of
# counted in, lists are quicker from some 400,000 documents of 4-bit codes on; of 8-bit codes from some 50,000 on, but
# with as many candidates as a scan they miss .022 of the exact top 100 at 100,000, .015 at 200,000 (docs/engines.md).
AUTO_SCAN_DOCUMENTS = {4: 400_000, 8: 200_000}


def choose_engine(engine: str, count: int, bits: int = 8) -> str:
    """The engine that "auto" stands for, or the one that was named."""
    if engine not in ENGINES:
        raise ConfigError(f"engine: given {engine!r}, expected one of {', '.join(ENGINES)}")
    if engine == "auto":
        return "scan" if count <= AUTO_SCAN_DOCUMENTS[bits] else "lists"
    return engine
