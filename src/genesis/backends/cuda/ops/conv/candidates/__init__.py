"""The implementations of convolution among which the engine chooses."""
