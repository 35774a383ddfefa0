"""Genesis inside PyTorch programs: what works on PyTorch's own tensors and with its autograd."""
