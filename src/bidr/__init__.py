"""Bi-granular document representation: codes in RAM find candidates, vectors on disk decide among them."""
