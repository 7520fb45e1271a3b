"""Adapters, one per library. `harness.py` runs each in the Python that has the library; numpy is needed too.

An adapter has two functions:

    build(vectors, folder, settings)   vectors: (documents, dim) float32, a memmap; writes an index to the folder
    open_index(folder, settings)       returns search(query, count, setting) -> up to `count` rows, best first

`settings["threads"]` is for building. Searching is on one thread, one query at a time.
"""
