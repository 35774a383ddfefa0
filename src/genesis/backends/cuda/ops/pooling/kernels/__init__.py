"""The Triton kernels of pooling."""
