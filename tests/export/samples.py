"""PyTorch's samples of each op as models of one call: exported, run by ONNX Runtime, compared.

`python -m tests.export.samples [name …]` runs all samples and says what is refused and what differs.
"""

from __future__ import annotations

import collections
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

import genesis
from genesis import nn
from genesis.export import NotExportableError, checking
from tests.conformance import opinfo
from tests.conformance.harness import find, tensors, to_genesis

# No tensor goes in, or none comes out.
NOT_EXPORTED = {  # what gives no tensor, or depends on none
    "zeros", "ones", "full", "eye", "arange", "linspace", "item", "allclose", "equal",
}  # fmt: skip
# ONNX Runtime has no kernel for what a sample asks, or computes it in another way.
RUNTIME_LACKS = ("NOT_IMPLEMENTED", "INVALID_ARGUMENT", "No corresponding Numpy type")


class OneCall(nn.Module):
    """function(*args, **kwargs) as a model of the floating tensors in them; the others are constants."""

    def __init__(self, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        super().__init__()
        self.function = function
        leaves, self.tree = tree_flatten((args, kwargs))
        self.places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, genesis.Tensor)]
        self.leaves = leaves

    @property
    def inputs(self) -> list[genesis.Tensor]:
        return [self.leaves[i].detach() for i in self.places]

    def forward(self, *inputs: genesis.Tensor) -> Any:
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, inputs, strict=True):
            leaves[place] = tensor
        args, kwargs = tree_unflatten(leaves, self.tree)
        return self.function(*args, **kwargs)


class Outcome(NamedTuple):
    said: str  # "equal", "refused", "differs", "no kernel", "failed"
    text: str = ""


def outcomes(name: str, most: int | None = None) -> Iterator[tuple[str, Outcome]]:
    """What becomes of each sample of an op."""
    ours = find(name)
    assert ours is not None
    for op in opinfo.OPS.get(name, ()):
        dtype = torch.int64 if name in opinfo.surface.INTEGERS_ONLY else torch.float32
        if dtype not in op.dtypes:
            continue
        for sample in opinfo.comparable_samples(op, dtype, "cuda", most):
            arguments, kwargs = to_genesis(((sample.input, *sample.args), sample.kwargs))
            model = OneCall(ours, arguments, kwargs)
            if model.places and not any(0 in tensor.shape for tensor in tensors((arguments, kwargs), genesis.Tensor)):
                yield str(sample), exported(model)


def exported(model: OneCall) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        try:
            genesis.export.onnx(model, model.inputs, path, check=False)
            return _compared(model, path)
        except NotExportableError as error:
            return Outcome("refused", str(error))
        except Exception as error:
            if any(said in str(error) for said in RUNTIME_LACKS):
                return Outcome("no kernel", str(error))
            return Outcome("failed", f"{type(error).__name__}: {error}")


def _compared(model: OneCall, path: Path) -> Outcome:
    names = [f"input_{i}" for i in range(len(model.inputs))]
    with genesis.no_grad():
        results = tensors(model(*model.inputs), genesis.Tensor)
    found = checking.run(path, dict(zip(names, model.inputs, strict=True)))
    assert len(found) == len(results)
    for actual, wanted in zip(found, results, strict=True):
        expected = wanted.numpy()
        if actual.shape != expected.shape or actual.dtype != expected.dtype:
            return Outcome("differs", f"{actual.dtype} {actual.shape} for {expected.dtype} {expected.shape}")
        difference = checking.relative_difference(actual, expected)
        largest = max(np.abs(expected[np.isfinite(expected)]).max(initial=0), 1e-30)
        allowed = max(1e-5, 1e-6 / largest) if wanted.dtype.is_floating_point else 0
        if not difference <= allowed:
            return Outcome("differs", f"{difference:.2g}\n{actual}\n{expected}")
    return Outcome("equal")


def main(names: list[str]) -> None:

    for name in names or opinfo.NAMES:
        if name in NOT_EXPORTED or find(name) is None:
            continue
        counts: dict[str, int] = collections.Counter()
        examples: dict[str, tuple[str, str]] = {}
        for sample, outcome in outcomes(name):
            counts[outcome.said] += 1
            examples.setdefault(outcome.said, (sample, outcome.text))
        print(name, dict(counts))
        for said, (sample, text) in examples.items():
            if said != "equal":
                print("   ", said, "|", text[:300].replace("\n", " "), "|", " ".join(sample.split())[:160])


if __name__ == "__main__":
    main(sys.argv[1:])
