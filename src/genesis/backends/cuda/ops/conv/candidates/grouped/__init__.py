"""Convolution in groups of a few channels: several groups share one matrix product."""
