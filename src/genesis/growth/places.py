"""Places in a network: modules by object or dotted name, and replacing one."""

from __future__ import annotations

from collections.abc import Iterable

from genesis.errors import GrowthError, describe
from genesis.nn.module import Module
from genesis.tensor import Tensor


def name_of(op: str, model: Module, where: str | Module) -> str:
    """The dotted name of a module of model, which may be given itself.

    Raises: GrowthError: the model has no such module.
    """
    if isinstance(where, str):
        try:
            model.get_submodule(where)
        except AttributeError as error:
            raise GrowthError(f"{op}: argument 'where': {error}") from None
        return where
    for name, module in model.named_modules():
        if module is where:
            return name
    given = f"a {type(where).__name__} that is not in it" if isinstance(where, Module) else repr(where)
    raise GrowthError(describe(op, "where", "a module of the network, or its name", given))


def tensors_of(modules: Iterable[Module]) -> list[Tensor]:
    """The parameters and buffers of these modules themselves, each once."""
    found = {
        id(tensor): tensor
        for module in modules
        for tensor in (*module._parameters.values(), *module._buffers.values())
        if tensor is not None
    }
    return list(found.values())


def put(model: Module, name: str, module: Module) -> None:
    """Put module in the place of the one of this name, at its position among its siblings."""
    path, _, member = name.rpartition(".")
    model.get_submodule(path)._modules[member] = module


def insert_after(container: Module, member: str, module: Module) -> None:
    """Put module into container right after its member of this name; the names of the others stay."""
    entries = list(container._modules.items())
    fresh = unused(container, f"{member}_deeper")
    container._modules.clear()
    for key, entry in entries:
        container._modules[key] = entry
        if key == member:
            container._modules[fresh] = module


def unused(container: Module, name: str) -> str:
    """name with the first number that container does not have."""
    number = 1
    while f"{name}{number}" in container._modules:
        number += 1
    return f"{name}{number}"
