"""The argument `dynamic`, and the examples of other sizes by which its effects are found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from genesis.creation import from_numpy
from genesis.errors import DTypeError, ShapeError, describe
from genesis.export.sizes import Size
from genesis.export.tracing import Named
from genesis.tensor import Tensor

Axes: TypeAlias = "Mapping[int, str] | Sequence[int]"
Dynamic: TypeAlias = "Mapping[str, Axes] | Mapping[int, str] | Sequence[int] | None"
Symbols = dict[str, dict[int, str]]  # of each input, the names of its dynamic dimensions

MOST_DOWNSAMPLED = 32  # how much smaller than its input a network's tensors usually become
UNITS = (1, 2, 4, 8, 16, 32, 64)  # steps from one size to the next that are tried, for networks that halve sizes


def parse(dynamic: Dynamic, inputs: Named, outputs: Sequence[str] = ()) -> Symbols:
    """dynamic by input and dimension.

    Args:
        outputs: names that may stand in it too, as in torch.onnx.export; their sizes follow from the inputs'.
    Raises: ValueError: an unknown name or dimension. TypeError: another form.
    """
    if not dynamic:
        return {}
    is_one = not isinstance(dynamic, Mapping) or all(isinstance(key, int) for key in dynamic)
    if is_one and len(inputs) > 1:
        raise ValueError(describe("export.onnx", "dynamic", f"dimensions by input ({', '.join(inputs)})", dynamic))
    by_input = {next(iter(inputs)): dynamic} if is_one else dynamic
    symbols: Symbols = {}
    assert isinstance(by_input, Mapping)
    for name, axes in by_input.items():
        if name in outputs:
            continue
        if name not in inputs:
            raise ValueError(describe("export.onnx", "dynamic", f"names of inputs ({', '.join(inputs)})", repr(name)))
        symbols[str(name)] = _of_input(str(name), axes, inputs[str(name)].ndim)
    return symbols


def _of_input(name: str, axes: object, ndim: int) -> dict[int, str]:
    if isinstance(axes, Mapping):
        pairs = list(axes.items())
    elif isinstance(axes, list | tuple | set):
        pairs = [(axis, f"{name}_dim_{axis}") for axis in axes]
    else:
        raise DTypeError(describe("export.onnx", "dynamic", "{dimension: name} or dimensions", repr(axes)))
    found = {}
    for axis, symbol in pairs:
        if not isinstance(axis, int) or isinstance(axis, bool) or not -ndim <= axis < ndim:
            raise ShapeError(
                describe("export.onnx", "dynamic", f"dimensions of '{name}', which has {ndim}", repr(axis))
            )
        if not isinstance(symbol, str) or not symbol:
            raise DTypeError(describe("export.onnx", "dynamic", "a name for each dimension", repr(symbol)))
        found[axis % ndim] = symbol
    return found


def check_example(symbols: Symbols, inputs: Named) -> None:
    """Dimensions of one name must have one size."""
    sizes: dict[str, int] = {}
    for name, axes in symbols.items():
        for axis, symbol in axes.items():
            size = inputs[name].shape[axis]
            if sizes.setdefault(symbol, size) != size:
                raise ShapeError(describe("export.onnx", "dynamic", f"one size for '{symbol}'", (sizes[symbol], size)))


def other_sizes(symbols: Symbols, inputs: Named) -> Iterator[tuple[int, list[Named]]]:
    """For each unit, two more examples: each symbol grows by other multiples of the unit; a batch, by other numbers."""
    names = list(dict.fromkeys(symbol for axes in symbols.values() for symbol in axes.values()))
    batches = {symbol for axes in symbols.values() for axis, symbol in axes.items() if axis == 0}
    grow = [inputs[name].shape[axis] for name, axes in symbols.items() for axis in axes if axis != 0]
    for unit in UNITS:
        if any(size % unit for size in grow):
            return
        runs = []
        for run in (0, 1):
            steps = {
                symbol: index + 1 + 2 * run if symbol in batches else _step(index, run, unit) * unit
                for index, symbol in enumerate(names)
            }
            runs.append({name: _grown(tensor, symbols.get(name, {}), steps) for name, tensor in inputs.items()})
        yield unit, runs
        if batches.issuperset(names):
            return


def _step(index: int, run: int, unit: int) -> int:
    """By how many units the symbol of this index grows in a run.

    Sizes that are downsampled must not become equal: one symbol grows little and then much, the next one the other way
    round, and much is more than a network divides by. Sizes and their halves must be even and odd, which shows what a
    remainder decides: little is 3 modulo 4, and much is 2.
    """
    is_even, more = index % 2 == 0, index // 2 * 4
    if (run == 0) is not is_even:
        return 3 + more
    much = 0 if unit >= MOST_DOWNSAMPLED else -(-(MOST_DOWNSAMPLED // unit) // 4) * 4
    return much + 2 + 4 * is_even + more


def _grown(tensor: Tensor, axes: Mapping[int, str], steps: Mapping[str, int]) -> Tensor:
    if not axes:
        return tensor
    shape = [size + steps[axes[axis]] if axis in axes else size for axis, size in enumerate(tensor.shape)]
    array = tensor.detach().cpu().numpy() if tensor.dtype.name != "bfloat16" else tensor.detach().float().cpu().numpy()
    return from_numpy(np.resize(array, shape)).to(tensor.dtype).to(tensor.device)


def named_sizes(symbols: Symbols, runs: Sequence[Named]) -> dict[Size, str]:
    """The symbols by the sizes that they had in each run."""
    found: dict[Size, str] = {}
    for name, axes in symbols.items():
        for axis, symbol in axes.items():
            found.setdefault(Size(tuple([inputs[name].shape[axis] for inputs in runs])), symbol)
    return found
