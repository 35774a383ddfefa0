"""Convolution of a few input channels, such as those of an image."""
