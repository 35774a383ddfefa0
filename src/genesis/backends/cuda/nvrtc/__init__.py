"""Kernels in CUDA C++: what their signatures say, compiling and keeping them.

types.py knows the parameter types, signature.py finds the kernels in a source, headers.py what it includes, store.py
keeps what was compiled, program.py puts these together.
"""
