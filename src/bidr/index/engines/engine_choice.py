"""Choice of the engine for a corpus."""

from bidr.errors import ConfigError

ENGINES = ("auto", "scan", "lists", "hnsw")
# The names that Faiss has for them; files and results hold those above.
ALIASES = {"flat": "scan", "ivf": "lists", "graph": "hnsw"}
_LABELS = {name: label for label, name in ALIASES.items()}
# Largest corpus for a scan, by bits per code. At equal R@100, including reads of the additional candidates, lists are
# faster from some 400,000 documents with 4-bit codes; with 8-bit codes from some 50,000, but with as many candidates as
# a scan they miss .022 of the exact top 100 at 100,000 and .015 at 200,000
# (docs/reports/engine-crossover.md).
AUTO_SCAN_DOCUMENTS = {4: 400_000, 8: 200_000}


def get_engine_label(engine: str) -> str:
    """Return the name of an engine in tables and messages: flat, ivf or graph."""
    return _LABELS.get(engine, engine)


def choose_engine(engine: str, count: int, bits: int = 8) -> str:
    """Return the engine that "auto" stands for, or the named one."""
    engine = ALIASES.get(engine, engine)
    if engine not in ENGINES:
        expected = ", ".join((ENGINES[0], *ALIASES, *ENGINES[1:]))
        raise ConfigError(f"engine: given {engine!r}, expected one of {expected}")
    if engine == "auto":
        return "scan" if count <= AUTO_SCAN_DOCUMENTS[bits] else "lists"
    return engine
