"""Arithmetic, comparisons and elementary functions, element by element."""
