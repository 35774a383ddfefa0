"""genesis.compile."""

from __future__ import annotations

from genesis.errors import DTypeError, describe
from genesis.graphs.compiled import Compiled, Target
from genesis.graphs.inference import CompiledModule
from genesis.graphs.step import CompiledStep
from genesis.nn import Module


def compile(target: Module | Target) -> Compiled:
    """A module's inference, or a training step, recorded on the CPU and replayed without the Python between ops.

    For each kind of arguments (shapes, strides, dtypes, and all that is no tensor) the first call runs as it stands,
    the second is recorded, the later ones replay: op after op, each array let go after its last use. What has changed
    since is noticed (a parameter, a submodule, a mode, any Python value that the run read), and it is recorded anew.

    A step is a function of tensors that works on the modules and optimizers that it names or is given: it may go
    forward, through backward(), and take the optimizers' steps. A replay does the same to parameters, buffers,
    gradients and optimizers, bit for bit; learning rates and the like are those of the moment, random ops draw anew.
    Gradients that the step lets go of are let go of first, and its results have no graph.

    What runs as it stands: a module in training mode or whose gradients are recorded; under autocast, GENESIS_CHECK or
    GENESIS_DEBUG; with hooks; on other devices, with a warning. What cannot be replayed runs as it stands too, with one
    warning that says why: it reads values (.item(), a condition on a tensor), changes an argument in place, uses a
    tensor that is neither an argument nor part of a module or optimizer, or reads what cannot be watched.

    Args:
        target: a Module in eval mode, or a function.
    Returns: a callable with the arguments and results of target.
    Raises: TypeError: target cannot be called.

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
