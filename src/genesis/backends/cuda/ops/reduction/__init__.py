"""Sums, means, extrema, variance and cumulative sums."""
