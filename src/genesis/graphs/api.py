"""genesis.compile."""

from __future__ import annotations

from genesis.errors import DTypeError, describe
from genesis.graphs.compiled import Compiled, Target
from genesis.graphs.inference import CompiledModule
from genesis.graphs.step import CompiledStep
from genesis.nn import Module


def compile(target: Module | Target) -> Compiled:
    """Record a module's inference or a training step, and replay it without the Python between ops.

    For each input signature (shapes, strides and dtypes of tensors, values of all else), the first call runs eagerly,
    the second is recorded, and later ones replay: on the CPU op after op, each array freed after its last use; on CUDA
    as a CUDA graph, which the third call captures. Before a replay, guards check everything that the run read:
    parameters, submodules, modes, Python values. If one fails, the target is recorded again.

    A training step is a function of tensors that uses the modules and optimizers that it names or takes as arguments;
    it may run forward, backward() and optimizers' steps. A replay updates parameters, buffers, gradients and optimizers
    as the step does, bit for bit. Options of optimizers are read at each replay, and random ops draw anew. Gradients
    that the step replaces are freed at its start; its results have no graph.

    The target runs eagerly in training mode or where gradients are recorded (modules only), under GENESIS_CHECK or
    GENESIS_DEBUG, with hooks other than DistributedDataParallel's, and, on the CPU, under autocast. It also does, with
    one warning that gives the reason, if it reads values (.item(), a condition on a tensor), changes an argument in
    place, uses a tensor that is neither an argument nor part of a module or optimizer, reads what cannot be guarded, or
    does what a CUDA graph cannot hold. Its report() has recordings, reasons, memory and times.

    Args:
        target: a Module in eval mode, or a function.
    Returns: a callable with the arguments and results of target.
    Raises: DTypeError: target is not callable.

    Example:
        >>> model = genesis.compile(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU()).eval())
        >>> with genesis.no_grad():
        ...     for _ in range(3):
        ...         y = model(genesis.ones(1, 1, 8, 8))
        >>> y.shape, model.num_recordings
        ((1, 4, 6, 6), 1)
    """
    if isinstance(target, Module):
        return CompiledModule(target)
    if not callable(target):
        raise DTypeError(describe("compile", "target", "a Module or a function", type(target).__name__))
    return CompiledStep(target)
