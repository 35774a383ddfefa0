"""The layers, a file per kind; genesis.nn re-exports them all."""
