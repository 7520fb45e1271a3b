"""Candidate engines over codes in RAM: one interface, one layout of codes, one way to score them."""
