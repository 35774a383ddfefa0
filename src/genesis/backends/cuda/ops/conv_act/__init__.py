"""Convolution and activation as one op."""
