"""What `genesis segment` and `genesis train` are made of: pictures, networks and their recipes, tiles, training."""
