"""Decompositions of matrices, which the host computes."""
