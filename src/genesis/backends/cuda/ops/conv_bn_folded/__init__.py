"""Inference of convolution, batch norm, sum and ReLU, with the norm folded into the weight at each call."""
