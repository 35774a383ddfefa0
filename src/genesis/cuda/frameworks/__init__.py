"""The libraries whose tensors kernels are called with, a file each; interface.py says what a launch asks of one."""
