"""What launchers share: launching a Triton kernel, packing its arguments, tiles, grids of reductions."""
