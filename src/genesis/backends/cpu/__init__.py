"""The CPU backend: the contract on torch's CPU tensors. A handle is a torch.Tensor."""

from genesis.backends.backend import Backend
from genesis.backends.cpu import (
    activation,
    attention,
    complex_numbers,
    conv,
    conv_act,
    decomposition,
    elementwise,
    indexing,
    linalg,
    loss,
    memory,
    norm,
    optimizer,
    order,
    pooling,
    random,
    recurrent,
    reduction,
    replay,
    storage,
)

MODULES = (
    storage, order, elementwise, complex_numbers, activation, reduction, linalg, decomposition, indexing, random,
    conv, conv_act, pooling, norm, attention, recurrent, loss, optimizer, replay,
)  # fmt: skip


def load() -> Backend:
    memory.keep_freed_memory()
    return Backend.from_modules("cpu", MODULES)
