"""Forward passes whose backward is still to come: what these keep must not be overwritten by another capture's replay.

PyTorch's trees of CUDA graphs take the next call after any backward for a new step, which may reuse all memory. In a
GAN's loop, the discriminator's backward comes between the generator's forward and backward. So the trees are told, at
each call, while there are such passes.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from typing import Protocol

import torch
from torch.utils._pytree import tree_leaves

_waiting: weakref.WeakSet[Pass] = weakref.WeakSet()
_in_backward: weakref.WeakSet[Pass] = weakref.WeakSet()
_step = 0  # what a replay may overwrite is that of earlier steps


class Manager(Protocol):
    """The manager of a device's trees."""

    running_forwards_with_pending_backwards: bool


class Pass:
    """A captured forward pass, alive as long as the autograd graph of its results.

    It waits until its backward has ended: of a model in several graphs, all but the last still need what they kept
    while a hook runs another one. A backward that fails has ended too.
    """

    __slots__ = ("__weakref__", "name", "step")

    def __init__(self, name: str) -> None:
        self.name, self.step = name, _step

    def begin_backward(self, _: object) -> None:
        """Called by autograd. Raises: RuntimeError: what the pass kept has been overwritten."""
        if self.step != _step:
            raise RuntimeError(
                f"genesis.torch.compile: backward through {self.name} again, after another step: the CUDA graphs have "
                "overwritten what it needs. Call backward before the next step, or compile with mode='default'."
            )
        _waiting.discard(self)
        _in_backward.add(self)
        torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)

    def _end_backward(self) -> None:
        _in_backward.discard(self)


def before_call() -> None:
    """Before captured graphs run: a new step begins unless a pass waits for its backward."""
    global _step
    if not any_waits():
        _step += 1
        return
    for manager in _managers():
        manager.running_forwards_with_pending_backwards = True


def any_waits() -> bool:
    """Whether any pass waits for its backward, or for the end of the one that is running."""
    return bool(_waiting) or (bool(_in_backward) and torch._C._current_graph_task_id() >= 0)


def after_call(results: object, name: str) -> None:
    """After captured graphs have run."""
    nodes = {x.grad_fn for x in tree_leaves(results) if isinstance(x, torch.Tensor) and x.grad_fn is not None}
    if nodes:
        one = Pass(name)
        _waiting.add(one)
        for node in nodes:
            node.register_prehook(one.begin_backward)


def _managers() -> Iterator[Manager]:
    """PyTorch's, of the devices on which anything has been captured."""
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    containers = {} if trees is None else trees.get_obj(trees.local, "tree_manager_containers")
    for container in containers.values():
        if container.tree_manager is not None:
            yield container.tree_manager
