"""BM25 analyzer: lower case, English stop words and stemming."""

from typing import Any

TERM_PATTERN = r"(?u)[^\W_]+"
K1, B = 0.9, 0.4  # BM25 parameters, as in Anserini


def tokenize_texts(texts: list[str], *, as_numbers: bool = False) -> Any:
    """Return the terms of every text as strings, or as numbers with their vocabulary (`ids`, `vocab`)."""
    import bm25s
    import Stemmer

    return bm25s.tokenize(
        texts,
        stopwords="en",
        token_pattern=TERM_PATTERN,
        stemmer=Stemmer.Stemmer("english"),
        return_ids=as_numbers,
        show_progress=False,
    )
