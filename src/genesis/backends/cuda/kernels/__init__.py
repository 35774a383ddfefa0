"""Triton kernels, a file per family; each file ends with the SPECIMENS that the tests compile."""
