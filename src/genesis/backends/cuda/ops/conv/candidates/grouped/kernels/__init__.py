"""Kernels of grouped convolution."""
