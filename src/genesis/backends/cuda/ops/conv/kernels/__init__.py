"""The Triton kernels that several candidates share."""
