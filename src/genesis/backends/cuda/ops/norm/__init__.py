"""Batch, layer, group and RMS norm, and their gradients."""
