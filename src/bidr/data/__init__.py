"""Datasets: documents, queries, judgments and vectors, and readers of their formats."""
