"""Convolutions of few channels in 16 bits, from patches of an image in shared memory."""
