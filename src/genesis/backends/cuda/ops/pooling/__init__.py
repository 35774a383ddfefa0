"""Maximum and average pooling, and their gradients."""
