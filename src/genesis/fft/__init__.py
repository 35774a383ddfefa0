"""PyTorch's torch.fft: discrete Fourier transforms on the CPU, with gradients of gradients; frequencies everywhere."""

from genesis.fft.frequencies import *
from genesis.fft.transforms import *
