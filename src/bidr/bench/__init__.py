"""Ours and the peers on the same vectors, in one run."""
