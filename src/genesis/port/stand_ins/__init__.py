"""Names of PyTorch's that model code mentions, and that mean little or nothing here: a file per module of PyTorch's.

Dots of the module's name are underscores in the file's. What would change results is not here: it raises when used.
"""
