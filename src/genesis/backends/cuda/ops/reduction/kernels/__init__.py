"""The Triton kernels of reductions."""
