"""Convolution: forward, both gradients, and the forward with a prepacked weight."""
