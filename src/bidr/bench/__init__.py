"""Comparison of bidr and other libraries on the same vectors: `bidr bench`."""
