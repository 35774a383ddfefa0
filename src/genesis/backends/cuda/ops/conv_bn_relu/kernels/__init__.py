"""The Triton kernels of conv_bn_relu."""
