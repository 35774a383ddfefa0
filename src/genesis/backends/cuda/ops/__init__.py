"""The ops, a folder per family: launch.py holds the contract's functions, kernels what they launch."""
