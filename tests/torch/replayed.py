"""Captured graphs without a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Replayed:
    """Stands for a graph that Inductor has compiled and CUDA graphs have captured: its results are always the same
    memory. That forward passes whose backward is still to come keep theirs is not simulated."""

    def __init__(self, graph: Any) -> None:
        self._boxed_call = True
        self._graph = graph
        self._memory: dict[int, Tensor] = {}
        self.current_callable = self._replay

    def __call__(self, inputs: Any) -> Any:
        return self.current_callable(inputs)

    def _replay(self, inputs: Any) -> Any:
        given = {x.untyped_storage().data_ptr() for x in inputs if isinstance(x, Tensor)}
        results = list(self._graph(*inputs))
        inputs.clear()
        for index, result in enumerate(results):
            if isinstance(result, Tensor) and result.untyped_storage().data_ptr() not in given:
                kept = self._memory.setdefault(index, torch.empty_like(result))
                results[index] = kept.copy_(result).detach()
        return results
