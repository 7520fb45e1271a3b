"""What goes in: documents, queries and judgements from many formats, and their tokens on disk."""

from bidr.text.beir import write_beir
from bidr.text.dataset import Corpus, Dataset, Split, Titles, check, check_corpus, check_split, document_text, load
from bidr.text.ids import Ids
from bidr.text.records import Document, Qrel, Query
from bidr.text.tokeniser import tokenise, tokenise_texts
from bidr.text.tokens import Tokens, TokenStore
from bidr.text.trec import Qrels, Run, read_qrels, read_run, write_qrels, write_run
from bidr.text.wordpieces import train_wordpieces

__all__ = [
    "Corpus",
    "Dataset",
    "Document",
    "Ids",
    "Qrel",
    "Qrels",
    "Query",
    "Run",
    "Split",
    "Titles",
    "TokenStore",
    "Tokens",
    "check",
    "check_corpus",
    "check_split",
    "document_text",
    "load",
    "read_qrels",
    "read_run",
    "tokenise",
    "tokenise_texts",
    "train_wordpieces",
    "write_beir",
    "write_qrels",
    "write_run",
]
