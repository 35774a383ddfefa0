"""The Triton kernels of the implicit matrix product."""
