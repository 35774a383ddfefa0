"""Convolution to a few output channels, and its gradients."""
