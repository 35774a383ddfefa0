"""The Triton kernels of optimizer steps, scaling and norms over many arrays."""
