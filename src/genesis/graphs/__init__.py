"""Recorded runs: a forward pass is recorded once and replayed without its Python."""

from genesis.graphs.compiled import Compiled as Compiled
from genesis.graphs.compiled import compile as compile
