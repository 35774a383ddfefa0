"""Hopper's kernels for a network's first convolution, of an image with a few channels, in 16 bits."""
