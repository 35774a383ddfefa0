"""Concatenation, padding, gathering and scattering."""
