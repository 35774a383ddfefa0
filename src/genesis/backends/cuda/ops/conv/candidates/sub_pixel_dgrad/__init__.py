"""The input's gradient of a strided convolution, as one without strides."""
