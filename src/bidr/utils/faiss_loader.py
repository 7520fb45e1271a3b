"""Faiss and its OpenMP threads, in forked children too."""

import os
from importlib import import_module
from typing import Any

from bidr.errors import MissingExtraError

_imported_in = os.getpid()


def load_faiss() -> Any:
    """Import Faiss, untyped: the stubs that come with it lag behind what it exports.

    GNU OpenMP keeps its threads between parallel regions. In a forked child they do not exist, and the first parallel
    region would wait for them without end. A child therefore runs with one thread, which needs no others.
    """
    try:
        faiss: Any = import_module("faiss")
    except ModuleNotFoundError as error:
        raise MissingExtraError("this index, training or export", "faiss", "faiss") from error
    if os.getpid() != _imported_in:
        faiss.omp_set_num_threads(1)
    return faiss
