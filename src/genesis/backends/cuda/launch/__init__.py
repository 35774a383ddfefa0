"""Shared by launchers: launching a Triton kernel, packing its arguments, tiles, grids of reductions."""
