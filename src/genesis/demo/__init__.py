"""What `genesis demo` is made of: the photograph, the crops, the training, the progress, the picture of the result."""
