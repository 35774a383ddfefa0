"""Softmax and its logarithm, and their gradients."""
