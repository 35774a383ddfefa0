"""Convolution, batch norm, sum and ReLU in one op, and its gradient."""
