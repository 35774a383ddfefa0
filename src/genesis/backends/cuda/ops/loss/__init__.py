"""Losses by class index, and the embedding's gradient."""
