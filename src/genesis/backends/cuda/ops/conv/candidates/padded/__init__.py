"""Convolutions of odd channels, computed with as many more as kernels take: see candidate.py."""
