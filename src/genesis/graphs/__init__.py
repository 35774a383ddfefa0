"""genesis.compile: records inference or a training step once and replays it without its Python code."""

from genesis.graphs.api import compile as compile
from genesis.graphs.compiled import Compiled as Compiled
from genesis.graphs.inference import CompiledModule as CompiledModule
from genesis.graphs.step import CompiledStep as CompiledStep
