"""Random calls of every op on the CUDA backend, compared with the CPU backend in float64.

    python -m tests.conformance.fuzz --op add --seed 17        one call; what a failure prints
    python -m tests.conformance.fuzz --op add --count 1000     seeds 0 to 999
    GENESIS_CUDA=simulated python -m tests.conformance.fuzz    a few of every op, without a GPU

A result may be as far from float64 as the CPU's is in the dtype at hand, and the tolerance of that dtype.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

from genesis import backends, dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.runtime.array import DeviceArray
from tests.conformance import fuzz_decompositions, fuzz_networks, fuzz_ops  # noqa: F401  (they fill OPS)
from tests.conformance.fuzz_draw import OPS, Call, Draw

TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def check(op: str, seed: int) -> None:
    """One random call. Raises: AssertionError with the line that repeats it."""
    call = OPS[op](Draw(seed, op))
    try:
        _compare(call)
    except Exception as error:
        line = f"python -m tests.conformance.fuzz --op {op} --seed {seed}"
        raise AssertionError(f"{line}\n{describe(call)}\n{type(error).__name__}: {error}") from error


def describe(call: Call) -> str:
    """The arguments, tensors by their dtype, shape and strides."""

    def text(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        name = str(leaf.dtype).removeprefix("torch.")
        return f"{name}{tuple(leaf.shape)} strides {leaf.stride()} offset {leaf.storage_offset()}"

    return str(tree_map(text, call.arguments))


def _compare(call: Call) -> None:
    cpu, cuda = backends.get("cpu"), backends.get("cuda")
    floats = [leaf.dtype for leaf in _tensors(call.arguments) if leaf.dtype.is_floating_point]
    tolerance = call.slack * max((TOLERANCE[dtype] for dtype in floats), default=0.0)
    exact = _tensors(call.run(cpu, *tree_map(_widened, call.arguments)))
    try:
        rounded = _tensors(call.run(cpu, *tree_map(_copied, call.arguments)))
    except (RuntimeError, NotImplementedError):  # torch has not every op in 16 bits
        rounded = exact
    results = _tensors(call.run(cuda, *tree_map(lambda leaf: put(cuda, leaf), call.arguments)))
    assert len(results) == len(exact), f"expected {len(exact)} results, got {len(results)}"
    for number, (result, wanted, ideal) in enumerate(zip(results, rounded, exact, strict=True)):
        actual = get(cuda, result)
        assert actual.shape == ideal.shape, f"result {number}: expected shape {tuple(ideal.shape)}, got {actual.shape}"
        if rounded is not exact:
            assert actual.dtype is wanted.dtype, f"result {number}: expected {wanted.dtype}, got {actual.dtype}"
        actual, wanted, ideal = actual.double(), wanted.double(), ideal.double()
        equal = (actual == wanted) | (actual.isnan() & wanted.isnan())
        allowed = (wanted - ideal).abs() + tolerance * (1 + ideal.abs())
        excess = ((actual - ideal).abs() - allowed).masked_fill(equal, -1.0)
        assert (excess <= 0).all(), f"result {number}: {excess.max().item():.3g} further from float64 than allowed"


def _tensors(value: Any) -> list[Any]:
    return [leaf for leaf in tree_flatten(value)[0] if isinstance(leaf, torch.Tensor | DeviceArray)]


def _widened(leaf: Any) -> Any:
    """float64 for floats; row-major."""
    if not isinstance(leaf, torch.Tensor):
        return dtypes.float64 if isinstance(leaf, dtypes.DType) and leaf.is_floating_point else leaf
    return (leaf.double() if leaf.is_floating_point() else leaf).clone(memory_format=torch.contiguous_format)


def _copied(leaf: Any) -> Any:
    return leaf.clone(memory_format=torch.contiguous_format) if isinstance(leaf, torch.Tensor) else leaf


def put(cuda: Backend, leaf: Any) -> Any:
    """A torch tensor as an array with the same strides and offset; anything else as it is."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    memory = torch.as_strided(leaf, (leaf.untyped_storage().nbytes() // leaf.itemsize,), (1,), 0)
    bits = memory.view(torch.uint16) if leaf.dtype is torch.bfloat16 else memory
    whole = cuda.from_cpu(bits.numpy(), dtypes.BY_NAME[str(leaf.dtype).removeprefix("torch.")])
    return cuda.view(whole, tuple(leaf.shape), leaf.stride(), leaf.storage_offset())


def get(cuda: Backend, x: DeviceArray) -> torch.Tensor:
    host = torch.from_numpy(cuda.to_cpu(x))
    return host.view(torch.bfloat16) if x.dtype is dtypes.bfloat16 else host


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--op", choices=sorted(OPS), help="default: all")
    parser.add_argument("--seed", type=int, help="one call; default: the seeds from 0 on")
    parser.add_argument("--count", type=int, default=10, help="how many seeds")
    arguments = parser.parse_args()
    seeds = range(arguments.count) if arguments.seed is None else [arguments.seed]
    failures = 0
    for op in [arguments.op] if arguments.op else OPS:
        for seed in seeds:
            try:
                check(op, seed)
            except AssertionError as error:
                failures += 1
                print(error, flush=True)
    print(f"{failures} failures")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
