"""1×1 convolutions of few pixels: products of a few rows, whose sums the threads of a block share."""
