"""Compiled inference of a module."""

from __future__ import annotations

from collections.abc import Sequence

from genesis.graphs.compiled import Compiled, Entry, Run
from genesis.graphs.forward import Inference
from genesis.graphs.trace import Executed
from genesis.nn import Module
from genesis.tensor import Tensor


class CompiledModule(Compiled):
    """A module with recordings of its inference; see genesis.compile."""

    target: Module

    def __init__(self, module: Module) -> None:
        super().__init__(module, type(module).__name__)
        self.module = module

    def _may_replay(self, tensors: Sequence[Tensor]) -> bool:
        return not self.module.training

    def _circumstances(self) -> None:
        return None

    def _in_reach(self, arguments: object, executed: Executed) -> Sequence[Tensor]:
        return [*self.module.parameters(), *self.module.buffers()]

    def _new_entry(self, run: Run, executed: Executed) -> Entry:
        arena = self._arena(run.device)
        if arena is None:
            return Inference(self.module, run.backend, executed)
        from genesis.graphs.inference_captured import CapturedInference  # and with it genesis.cuda

        return CapturedInference(self.module, run.backend, executed, arena)
