"""Data sets: documents, queries and judgments, vectors, and the formats they are read from."""
