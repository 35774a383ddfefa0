"""The package safetensors as redirected code sees it: what it gives and takes of torch's are Genesis' tensors."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Protocol, Self, cast

import safetensors

from genesis import Tensor, interop
from genesis.nn import Module

if TYPE_CHECKING:
    import torch

_BESIDE = "safetensors.torch"


def in_place_of(module: ModuleType) -> ModuleType:
    """The module that an import of redirected code gives: ours for safetensors and safetensors.torch.

    Args:
        module: what Python's import gives.
    """
    if module.__name__ == "safetensors":
        return _package()
    return _torch_module() if module.__name__ == _BESIDE else module


@functools.cache
def _package() -> ModuleType:
    made = _twin(safetensors)
    vars(made).update(safe_open=safe_open, torch=_torch_module())
    return made


@functools.cache
def _torch_module() -> ModuleType:
    import safetensors.torch

    made = _twin(safetensors.torch)
    own = (save, save_file, load, load_file, save_model, load_model)
    vars(made).update({each.__name__: each for each in own})
    return made


def _twin(module: ModuleType) -> ModuleType:
    made = ModuleType(module.__name__, module.__doc__)
    vars(made).update({name: value for name, value in vars(module).items() if name != "__builtins__"})
    vars(made)["__getattr__"] = functools.partial(getattr, module)  # submodules that are imported later
    return made


class _Called(Protocol):
    def __call__(self, *args: object) -> object: ...


def _theirs(name: str) -> _Called:
    import safetensors.torch

    found: _Called = getattr(safetensors.torch, name)
    return found


def _to_torch(value: object) -> object:
    return value.cpu().to_torch() if isinstance(value, Tensor) else value


def _all_to_torch(tensors: Mapping[str, object]) -> dict[str, object]:
    return {name: _to_torch(value) for name, value in tensors.items()}


def _from_torch(value: object, device: object) -> Tensor:
    return interop.from_torch(cast("torch.Tensor", value)).to(
        str(device) if not isinstance(device, int) else f"cuda:{device}"
    )


def _items(found: object) -> Iterable[tuple[str, object]]:
    return cast("dict[str, object]", found).items()


def save(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """See safetensors.torch.save."""
    return cast("bytes", _theirs("save")(_all_to_torch(tensors), metadata))


def save_file(
    tensors: Mapping[str, Tensor], filename: str | os.PathLike[str], metadata: Mapping[str, str] | None = None
) -> None:
    """See safetensors.torch.save_file."""
    _theirs("save_file")(_all_to_torch(tensors), filename, metadata)


def load(data: bytes) -> dict[str, Tensor]:
    """See safetensors.torch.load."""
    return {name: _from_torch(value, "cpu") for name, value in _items(_theirs("load")(data))}


def load_file(filename: str | os.PathLike[str], device: object = "cpu") -> dict[str, Tensor]:
    """See safetensors.torch.load_file."""
    return {name: _from_torch(value, device) for name, value in _items(_theirs("load_file")(filename))}


def save_model(
    model: Module, filename: str, metadata: dict[str, str] | None = None, force_contiguous: bool = True
) -> None:
    """See safetensors.torch.save_model: of tensors that share memory, it stores one."""
    _theirs("save_model")(_Twin(model), filename, metadata, force_contiguous)


def load_model(
    model: Module, filename: str | os.PathLike[str], strict: bool = True, device: object = "cpu"
) -> tuple[list[str], list[str]]:
    """See safetensors.torch.load_model."""
    return cast("tuple[list[str], list[str]]", _theirs("load_model")(_Twin(model), filename, strict, "cpu"))


class _Twin(SimpleNamespace):
    """A module whose state is in PyTorch's tensors, as safetensors wants it."""

    def __init__(self, model: Module) -> None:
        super().__init__(model=model)

    def state_dict(self) -> dict[str, object]:
        return _all_to_torch(self.model.state_dict())

    def load_state_dict(self, state: Mapping[str, object], strict: bool) -> tuple[list[str], list[str]]:
        given = {name: _from_torch(value, "cpu") for name, value in state.items()}
        found = self.model.load_state_dict(given, strict=strict)
        return found.missing_keys, found.unexpected_keys


class safe_open:  # noqa: N801  (its name there)
    """See safetensors.safe_open: with the framework "pt", tensors are Genesis'."""

    def __init__(self, filename: str | os.PathLike[str], framework: str, device: object = "cpu") -> None:
        self._is_ours, self._device = framework in ("pt", "torch", "pytorch"), device
        self._file = safetensors.safe_open(filename, framework, "cpu" if self._is_ours else device)

    def __enter__(self) -> Self:
        self._file.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.__exit__(*exception)

    def __getattr__(self, name: str) -> object:  # keys, metadata, offset_keys, …
        return getattr(self._file, name)

    def get_tensor(self, name: str) -> object:
        """The tensor of this name."""
        return self._converted(self._file.get_tensor(name))

    def get_slice(self, name: str) -> _Slice:
        """A tensor that is read where it is indexed."""
        return _Slice(self._file.get_slice(name), self._converted)

    def _converted(self, value: object) -> object:
        return _from_torch(value, self._device) if self._is_ours else value


class Sliced(Protocol):
    """A tensor in a file, read where it is indexed."""

    def __getitem__(self, index: object) -> object: ...


class _Slice:
    def __init__(self, part: Sliced, converted: Callable[[object], object]) -> None:
        self._part, self._converted = part, converted

    def __getitem__(self, index: object) -> object:
        return self._converted(self._part[index])

    def __getattr__(self, name: str) -> object:  # get_shape, get_dtype
        return getattr(self._part, name)
