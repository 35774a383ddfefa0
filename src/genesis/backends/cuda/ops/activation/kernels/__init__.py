"""Kernels of activations, by themselves and in fused ops."""
