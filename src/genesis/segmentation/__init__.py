"""The parts of `genesis segment` and `genesis train`: pictures, networks and their recipes, tiles, training."""
