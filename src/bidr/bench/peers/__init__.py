"""Adapters, one a library. Each is run by `harness.py` in the Python that has the library, and needs numpy beside it.

An adapter has two functions:

    build(vectors, folder, settings)   vectors: (documents, dim) float32, a memmap; leaves an index in the folder
    open_index(folder, settings)       returns search(query, count, setting) -> up to `count` rows, best first

`settings["threads"]` is for building. Searching is on one thread, one query at a time.
"""
