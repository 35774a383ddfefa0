"""Kernels of our own for x86-64 processors: machine code, generated for each problem."""
