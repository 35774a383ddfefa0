"""The input's gradient where the input has a few channels."""
