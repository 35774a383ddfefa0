"""Convolution on Hopper's warpgroup matrix instructions, in CUDA C++."""
