"""Recorded runs: the inference of a module, or a training step, is recorded once and replayed without its Python."""

from genesis.graphs.api import compile as compile
from genesis.graphs.compiled import Compiled as Compiled
from genesis.graphs.inference import CompiledModule as CompiledModule
from genesis.graphs.step import CompiledStep as CompiledStep
