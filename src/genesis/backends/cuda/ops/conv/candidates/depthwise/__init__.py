"""Depthwise convolution and its gradients, bound by memory."""
