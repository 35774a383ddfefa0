"""PyTorch's op database as test cases: which op in which dtype, its samples, and one run of them on a device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from tests.conformance import accuracy, surface
from tests.conformance.harness import check_refused, check_sample, find, tensors

OPS: dict[str, list[Any]] = {}
for info in op_db:
    if (info.name, info.variant_test_name) in surface.OTHER_FUNCTIONS:
        continue
    OPS.setdefault(info.name, []).append(info)
_MORE = [name for name in OPS if name not in {*surface.NAMES, *surface.NOT_COMPARED} and find(name) is not None]
NAMES = [*surface.NAMES, *_MORE]
ALL_DTYPES = {*surface.ALL_DTYPES, *(name for name in _MORE if name not in surface.NOT_IN_16_BITS)}
WITH_ERRORS = [name for name in NAMES if any(op.error_inputs_func for op in OPS.get(name, ()))]
ITS_WARNINGS = (
    "ignore:Using padding='same'", "ignore:reduction. 'mean' divides", "ignore:.*upsample",
    "ignore:linear_cross_entropy", "ignore:Using torch.cross", "ignore:torch.cholesky", "ignore:torch.searchsorted",
    "ignore:.nn.functional.upsample", "ignore:torch.lu_solve",
    "ignore:index_reduce", "ignore:torch.qr", "ignore:torch.triangular_solve",
)  # fmt: skip  # PyTorch's own, in its samples


def cases(everywhere: Sequence[torch.dtype] = (), where_all: Sequence[torch.dtype] = ()) -> Iterator[Any]:
    """Parameters (op, dtype): each op in float32 and in the dtypes `everywhere`; those of ALL_DTYPES also in
    the dtypes `where_all`."""
    for name in NAMES:
        for op in OPS.get(name, ()):
            main = torch.float32 if torch.float32 in op.dtypes else torch.int64
            variant = f"{name}-{op.variant_test_name}" if op.variant_test_name else name
            extra = () if {name, variant} & surface.NOT_IN_16_BITS.keys() else everywhere
            extra = (*extra, *(where_all if name in ALL_DTYPES else ()))
            for dtype in [dtype for dtype in dict.fromkeys((main, *extra)) if dtype in op.dtypes]:
                yield pytest.param(op, dtype, id=f"{variant}-{str(dtype).removeprefix('torch.')}")


_LARGEST = {"mode": 300}  # elements, each of which is compared with each other


def check_samples(
    op: Any, dtype: torch.dtype, device: str = "cpu", most: int | None = None, most_measured: int | None = 0
) -> None:
    """Every sample of an op on a device, or the number `most` of them, spread over those that are small.

    most_measured: for so many of them, or all, the distance from float64 is compared with PyTorch's too. Where it is
        too far for few, all are measured.
    """
    ours = find(op.name)
    assert ours is not None, f"genesis.{op.name} is missing"
    refused = surface.DEVIATIONS.get(op.name, ("", lambda sample: False))[1]
    draws, draws_anywhere = draws_of(op, device), draws_of(op)
    gradients = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    samples = list(enumerate(op.sample_inputs("cpu", dtype, requires_grad=gradients)))
    largest = _LARGEST.get(op.name, 3000)
    measured = dict(_spread(samples, most_measured if accuracy.is_measured(op, dtype) else 0, largest))
    distances: list[accuracy.Distances] = []
    for number, sample in (dict(_spread(samples, most, largest)) | measured).items():
        if device == "cuda" and op.name in surface.ON_CPU_ONLY:
            check_refused(ours, sample, "complex tensors are on the CPU only", device)
            continue
        if refused(sample):
            check_refused(ours, sample, surface.DEVIATIONS[op.name][0], device)
            continue
        if draws(sample):
            continue
        into = distances if number in measured and not draws_anywhere(sample) else None
        try:
            check_sample(ours, op.op, sample, device, gradients, into)
        except Exception as error:
            raise AssertionError(f"{op.name} sample {number}: {sample}\n{type(error).__name__}: {error}") from error
    try:
        accuracy.check(distances, accuracy.rounding(op.name, device))
    except AssertionError:
        if not most_measured:
            raise
        check_samples(op, dtype, device, most, None)  # of few, single roundings may decide: all of them tell


def draws_of(op: Any, device: str = "cuda") -> Callable[[Any], bool]:
    """Whether a sample draws numbers that are not PyTorch's."""
    tables = [surface.DRAWS_OTHERWISE] if device == "cpu" else [surface.DRAWS_OTHERWISE, surface.DRAWS]
    asked = [table[op.name] for table in tables if op.name in table]
    return lambda sample: any(ask(sample) for ask in asked)


class Sample(NamedTuple):
    """As PyTorch's."""

    input: Any
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}


def comparable_samples(op: Any, dtype: torch.dtype, device: str, most: int | None = None) -> Iterator[Any]:
    """Those whose values can be compared with float64: not refused, and nothing is drawn."""
    refused = surface.DEVIATIONS.get(op.name, ("", lambda sample: False))[1]
    draws = draws_of(op)
    gradients = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    samples = list(enumerate(op.sample_inputs("cpu", dtype, requires_grad=gradients)))
    for _, sample in _spread(samples, most):
        if not refused(sample) and not draws(sample):
            yield sample


def _spread(samples: list[tuple[int, Any]], most: int | None, largest: int = 3000) -> list[tuple[int, Any]]:
    if most is None:
        return samples

    def size(numbered: tuple[int, Any]) -> int:
        sample = numbered[1]
        return sum(tensor.numel() for tensor in tensors((sample.input, sample.args, sample.kwargs), torch.Tensor))

    small = sorted((numbered for numbered in samples if size(numbered) <= largest), key=size)
    return small[:: math.ceil(len(small) / most)] if small and most else []


def check_errors(name: str, device: str = "cpu") -> None:
    """Every call that PyTorch refuses ends in an error with a message."""
    ours = find(name)
    assert ours is not None, f"genesis.{name} is missing"
    refused = surface.DEVIATIONS.get(name, ("", lambda sample: False))[1]
    for op in OPS[name]:
        for error_input in op.error_inputs("cpu") if op.error_inputs_func else ():
            sample = error_input.sample_input
            if name in surface.TAKEN:
                continue
            if not refused(sample):
                check_refused(ours, sample, error_input.error_regex, device)
