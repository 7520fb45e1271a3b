"""What goes in: documents, queries and judgements from many formats, and their tokens on disk."""

from bidr.data.dataset import Corpus, Dataset, Split, Titles, check, check_corpus, check_split, document_text, load
from bidr.data.id_map import Ids
from bidr.data.readers.beir import write_beir
from bidr.data.readers.trec import Qrels, Run, read_qrels, read_run, write_qrels, write_run
from bidr.data.types import Document, Qrel, Query
from bidr.tokenization.token_store import Tokens, TokenStore
from bidr.tokenization.tokenizer import tokenise, tokenise_texts
from bidr.tokenization.wordpieces import train_wordpieces

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
