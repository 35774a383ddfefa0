"""Activations and their gradients."""
