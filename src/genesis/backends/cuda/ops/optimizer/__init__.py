"""The steps of optimizers, on many parameters at once."""
