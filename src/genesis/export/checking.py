"""Runs a file in ONNX Runtime and compares its outputs with the model's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from genesis.errors import MismatchError
from genesis.export.converting import elements
from genesis.export.graph import Array
from genesis.export.runtime import Session
from genesis.export.tracing import Named

# Of the largest value of an output. Rounding adds up through a network, in another order in each runtime.
TOLERANCES = {"float64": 1e-5, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}


def run(path: Path, inputs: Named, outputs: Sequence[str] | None = None) -> list[Array]:
    """The outputs of a file (all, in order, by default) for these inputs, by ONNX Runtime on the CPU."""
    arrays = {name: elements(tensor, tensor.dtype) for name, tensor in inputs.items()}
    return Session(path).run(arrays, outputs)


def compare(path: Path, inputs: Named, results: Named) -> float:
    """The largest difference between file and model, relative to the largest value of its output.

    Raises: MismatchError: a shape differs, or an output by more than its dtype's tolerance.
    """
    worst = 0.0
    for (name, expected), actual in zip(results.items(), run(path, inputs, list(results)), strict=True):
        wanted = elements(expected, expected.dtype)
        if actual.shape != wanted.shape:
            raise MismatchError(
                f"export.onnx: output '{name}': ONNX Runtime gives shape {actual.shape}, Genesis {wanted.shape}"
            )
        difference = relative_difference(actual, wanted)
        if not difference <= TOLERANCES.get(expected.dtype.name, 0.0):
            raise MismatchError(
                f"export.onnx: output '{name}': ONNX Runtime differs from Genesis by {difference:.2g}, relative to the "
                "largest value"
            )
        worst = max(worst, difference)
    return worst


def relative_difference(actual: Array, expected: Array) -> float:
    """max |actual − expected| / max |expected|; equal infinities and NaNs do not differ."""
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return 0.0
    if not (np.isfinite(a) | same).all() or not (np.isfinite(b) | same).all():
        return float("inf")
    finite = np.abs(b[np.isfinite(b)])
    return float(np.abs(a - b)[~same].max() / max(finite.max(initial=0.0), 1e-30))


def compare_all(path: Path, runs: Sequence[tuple[Named, Named]]) -> float:
    return max(compare(path, inputs, results) for inputs, results in runs)


def as_text(metadata: Mapping[str, object]) -> dict[str, str]:
    """Metadata as a file holds it: strings as they are, all else as JSON."""
    import json

    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in metadata.items()}
