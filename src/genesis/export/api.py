"""genesis.export.onnx."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from genesis.errors import DTypeError, GenesisError, describe
from genesis.export import (
    checking,
    ops_activation,
    ops_dense,
    ops_elementwise,
    ops_reduction,
    ops_selection,
    ops_special,
    ops_views,
    ops_windows,
    runtime,
    writing,
)
from genesis.export import dynamic as sizes_asked_for
from genesis.export.converting import Converted, convert
from genesis.export.dynamic import Dynamic, Symbols
from genesis.export.folding import drop_unused, fold_batch_norms
from genesis.export.sizes import DependsOnSizeError, merge
from genesis.export.tracing import Named, Trace, trace
from genesis.nn import Module
from genesis.tensor import Tensor

# Imported for their entries in the table.
OPS = (
    ops_activation, ops_dense, ops_elementwise, ops_reduction, ops_selection, ops_special, ops_views, ops_windows
)  # fmt: skip
Example: TypeAlias = "Tensor | Sequence[Tensor] | Mapping[str, Tensor]"


class Exported(NamedTuple):
    """The file that onnx() wrote.

    Attributes:
        inputs, outputs: their names.
        multiples: of dynamic sizes that the model does not take in all numbers, the step from one to the next.
        difference: of ONNX Runtime from the model, relative to the largest value; None: it was not asked.
    """

    path: Path
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    multiples: dict[str, int]
    difference: float | None


def onnx(
    model: Module, example: Example, path: str | os.PathLike[str], dynamic: Dynamic = None, *, opset: int = 18,
    fold_batch_norm: bool = True, metadata: Mapping[str, object] | None = None, check: bool | None = None,
) -> Exported:  # fmt: skip
    """Write a model's inference as an ONNX file.

    The model runs on the example in eval mode and is recorded. With dynamic sizes it runs on two more examples of other
    sizes: numbers that differ between the runs become expressions of the sizes; where Python does something else for
    other sizes, the export is refused with the line.

    Args:
        example: a tensor, several for several arguments of forward, or a dictionary by their names. The file's inputs
            have forward's names; its outputs are "output", or the keys or places of several.
        path: the file, replaced atomically. Above 2 GB the weights are in `path`.data.
        dynamic: the dimensions that vary: {"input": {0: "batch", 2: "height"}}, {"input": [0, 2]}, or, of a single
            input, {0: "batch"} or [0].
        opset: 18 to 24. The file has the IR version that came with it.
        fold_batch_norm: into the weights of the convolutions before; else norms stay as they are.
        metadata: written into the file, all but strings as JSON.
        check: run the file in ONNX Runtime on the examples and compare. Default: if it is installed.
    Raises: NotExportableError: an op that ONNX cannot say, or a number that depends on a dynamic size in a way that it
        cannot; names the op and the user's line. MismatchError: ONNX Runtime computes something else.
        ImportError: a package of the extra `export` is missing.

    Example:
        >>> import tempfile
        >>> model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU())
        >>> path = tempfile.mkdtemp() + "/model.onnx"
        >>> genesis.export.onnx(model, genesis.ones(1, 1, 8, 8), path, dynamic={0: "batch"}).outputs
        ('output',)
    """
    _require(model, opset, check)
    target = Path(path)
    inputs, keywords = _named_inputs(model, example)
    first = trace(model, inputs, keywords)
    if not first.outputs:
        raise DTypeError(describe("export.onnx", "model", "a model that returns tensors", "one that returns none"))
    symbols = sizes_asked_for.parse(dynamic, inputs, list(first.outputs))
    sizes_asked_for.check_example(symbols, inputs)
    converted, traces, unit = _converted(model, first, inputs, keywords, symbols, opset)
    if fold_batch_norm:
        fold_batch_norms(converted.graph, converted.outputs)
    drop_unused(converted.graph, converted.outputs)
    multiples = _multiples(symbols, unit)
    notes = dict(metadata or {}) | ({"multiples": multiples} if multiples else {})
    made = writing.model_of(converted, type(model).__name__, checking.as_text(notes))
    is_checked = runtime.is_installed() if check is None else check
    runs = [(run, each.results) for run, each in traces]
    compare = (lambda file: checking.compare_all(file, runs)) if is_checked else None
    difference = writing.write(made, target, compare)
    return Exported(target, tuple(converted.inputs), tuple(converted.outputs), multiples, difference)


def _converted(
    model: Module, first: Trace, inputs: Named, keywords: Sequence[str], symbols: Symbols, opset: int
) -> tuple[Converted, list[tuple[Named, Trace]], int]:
    """The graph, the runs that it was made of, and the step between their sizes."""
    if not symbols:
        return convert(merge([first]), opset, {}), [(inputs, first)], 1
    reason: Exception | None = None
    for unit, others in sizes_asked_for.other_sizes(symbols, inputs):
        try:
            runs = [(inputs, first), *[(other, trace(model, other, keywords)) for other in others]]
            named = sizes_asked_for.named_sizes(symbols, [run for run, _ in runs])
            return convert(merge([each for _, each in runs]), opset, named), runs, unit
        except DependsOnSizeError as error:
            reason = error if not isinstance(reason, DependsOnSizeError) else reason
        except (GenesisError, ValueError, IndexError, TypeError) as error:
            if isinstance(error, NotImplementedError):
                raise
            reason = reason or error  # the model takes no such sizes
    assert reason is not None
    if isinstance(reason, DependsOnSizeError):
        raise reason
    raise DependsOnSizeError(f"the model takes no other sizes than the example's: {reason}") from reason


def _multiples(symbols: Symbols, unit: int) -> dict[str, int]:
    varying = {symbol for axes in symbols.values() for axis, symbol in axes.items() if axis != 0}
    return dict.fromkeys(sorted(varying), unit) if unit > 1 else {}


def _named_inputs(model: Module, example: Example) -> tuple[Named, list[str]]:
    """The example by the names of forward's parameters, and which of them are passed by name."""
    if isinstance(example, Mapping):
        inputs, keywords = dict(example), list(example)
    else:
        given = [example] if isinstance(example, Tensor) else list(example)
        named = [
            parameter.name
            for parameter in inspect.signature(model.forward).parameters.values()
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
        named += [f"input_{index}" for index in range(len(named), len(given))]
        inputs, keywords = dict(zip(named, given, strict=False)), []
    for name, tensor in inputs.items():
        if not isinstance(tensor, Tensor):
            raise DTypeError(describe("export.onnx", "example", f"a tensor for '{name}'", type(tensor).__name__))
    if not inputs:
        raise ValueError(describe("export.onnx", "example", "at least one tensor", example))
    return inputs, keywords


def _require(model: Module, opset: int, check: bool | None) -> None:
    """Refuse bad arguments before any work."""
    if not isinstance(model, Module):
        raise DTypeError(describe("export.onnx", "model", "a Module", type(model).__name__))
    if opset not in writing.OPSETS:
        raise ValueError(describe("export.onnx", "opset", f"one of {', '.join(map(str, writing.OPSETS))}", opset))
    try:
        import onnx_ir  # noqa: F401
    except ImportError as error:
        from genesis.distribution import install_command

        needs = f"export.onnx: needs the package '{error.name}'; {install_command('export')}"
        raise ModuleNotFoundError(needs, name=error.name) from error
    if check and not runtime.is_installed():
        raise ModuleNotFoundError("export.onnx: argument 'check': needs the package 'onnxruntime'", name="onnxruntime")
