"""Words as lexical search compares them: lower case, English stems, without stop words."""

from typing import Any

WORD = r"(?u)[^\W_]+"
K1, B = 0.9, 0.4  # of BM25, as Anserini sets them


def words(texts: list[str], *, as_numbers: bool = False) -> Any:
    """The words of every text, as strings; or as numbers, and which number is which word (`ids`, `vocab`)."""
    import bm25s
    import Stemmer

    return bm25s.tokenize(
        texts,
        stopwords="en",
        token_pattern=WORD,
        stemmer=Stemmer.Stemmer("english"),
        return_ids=as_numbers,
        show_progress=False,
    )
