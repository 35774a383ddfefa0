"""The Triton kernels of normalisation."""
