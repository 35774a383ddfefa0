"""Random programs on Genesis and on PyTorch: after each statement every tensor must hold the same on both.

    python -m tests.conformance.programs --seed 17                 one program; what a failure prints
    python -m tests.conformance.programs --count 3000              seeds 0 to 2999, on the CPU; --first 3000: from there
    GENESIS_CUDA=simulated python -m tests.conformance.programs --device cuda --count 600

A program is Python source: views, slices, changes in place through views and aliases, mixed dtypes, Python numbers,
empty and 0-d tensors, NaN. That all tensors are compared after each statement is what finds a wrong alias. Every third
program records gradients, and compares those of its leaves.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import warnings
from typing import Any

import torch

import genesis
import genesis.nn.functional as F
from genesis.errors import GenesisError, GraphError
from tests.conformance import program_draw
from tests.conformance.fuzz_draw import Draw
from tests.conformance.harness import DTYPES

CONSTANTS = {"nan": math.nan, "inf": math.inf}
LENGTH, MOST_TENSORS, MOST_ELEMENTS = 12, 8, 600
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}
# What docs/deviations.md says of changes in place.
DEVIATIONS = (
    "that was saved for the gradient has been",
    "elements of this expanded tensor",
)
# Of torch alone: its CPU has no kernel for a dtype, divides integers by zero with an error, or cannot view permuted
# memory without a copy, and what it calls overlapping.
LENIENT = (
    "not implemented for",
    "ZeroDivisionError",
    "view size is not compatible",
    "single memory location",
    "source and destination dtypes match",
    "does not support bool input",
    "Autograd not support dtype",
)
# Of torch alone, where the result has no gradient: it asks for the graph's node although it does not need it.
STALE_VIEW = "is a view and its base or another view of its base has been modified inplace"


INSIDE = re.compile(r"at::|c10|aten|invalid combination|not implemented for '|\bTensor\b|cpu_|_cpu\b|scalar_t")


class DifferenceError(AssertionError):
    """Genesis and PyTorch disagree."""


class Program:
    """One random program, and the tensors that it has so far on both sides."""

    def __init__(self, seed: int, device: str) -> None:
        self.draw, self.device = Draw(seed, "program"), device
        self.gradients = seed % 3 == 2
        self.lines: list[str] = []
        self.mine: dict[str, Any] = {"lib": genesis, "F": F, "device": device, **CONSTANTS}
        self.theirs: dict[str, Any] = {"lib": torch, "F": torch.nn.functional, "device": "cpu", **CONSTANTS}
        self.pool: dict[str, torch.Tensor] = {}
        self.leaves: list[tuple[Any, torch.Tensor]] = []
        self._count = 0
        for _ in range(self.draw.integer(2, 3)):
            tensor = program_draw.tensor(self.draw, self.gradients)
            self._start(tensor)

    def _start(self, tensor: torch.Tensor) -> None:
        name = self._new_name()
        ours = genesis.empty(0)
        ours.data = _with_strides(tensor, self.device)
        if self.gradients:
            leaf, leaf_theirs = (
                ours.requires_grad_(),
                tensor.clone(memory_format=torch.preserve_format).requires_grad_(),
            )
            self.leaves.append((leaf, leaf_theirs))
            ours, tensor = leaf * 1, leaf_theirs * 1
        kind = str(tensor.dtype).removeprefix("torch.")
        self.lines.append(f"{name}: {kind}{tuple(tensor.shape)} strides {tensor.stride()} {tensor.tolist()}")
        self.mine[name], self.theirs[name], self.pool[name] = ours, tensor, tensor

    def _new_name(self) -> str:
        self._count += 1
        return f"t{self._count - 1}"

    def run(self) -> None:
        for _ in range(LENGTH):
            self._step(program_draw.statement(self.draw, self.pool, self.gradients))
        if self.gradients:
            self._compare_gradients()

    def _step(self, drawn: str) -> None:
        name = self._new_name()
        line = drawn.replace("new", name, 1) if drawn.startswith("new = ") else drawn
        self.lines.append(line)
        code = compile(line, "<program>", "exec")
        ours = _error_of(code, self.mine)
        if isinstance(ours, GenesisError) and any(text in str(ours) for text in DEVIATIONS):
            return
        theirs = _error_of(code, self.theirs)
        if theirs is not None and ours is None:
            made = self.mine.get(name)
            asks = STALE_VIEW in str(theirs) and made is not None and not made.requires_grad
            if not asks and not any(text in str(theirs) for text in LENIENT):
                raise DifferenceError(f"PyTorch refuses: {theirs}")
            if not drawn.startswith("new"):
                raise _Unfinished  # Genesis has changed a tensor that PyTorch could not
            self.mine.pop(name, None)
        elif theirs is not None and "ZeroDivisionError" in str(theirs):
            raise _Unfinished  # PyTorch has changed what came before the zero
        elif ours is not None and theirs is None:
            raise DifferenceError(f"Genesis refuses: {type(ours).__name__}: {ours}")
        elif ours is not None and INSIDE.search(str(ours)):
            raise DifferenceError(f"the message is of torch's inside: {ours}")
        if name in self.theirs and name in self.mine:
            self._take(name)
        self._compare()

    def _take(self, name: str) -> None:
        """The result into the pool, unless it is too large; as a copy where one side could only give that."""
        ours, theirs = self.mine[name], self.theirs[name]
        if theirs.numel() > MOST_ELEMENTS or (theirs.requires_grad and not torch.isfinite(theirs.detach()).all()):
            self.mine.pop(name), self.theirs.pop(name)
            return
        if self._is_alias(self.mine, name) != self._is_alias(self.theirs, name):
            if not any(word in self.lines[-1] for word in ("view", "reshape", "contiguous", "flatten")):
                raise DifferenceError("the result shares memory on one side only")
            self.mine[name], self.theirs[name] = ours.clone(), theirs.clone()
        self.pool[name] = self.theirs[name]
        if len(self.pool) > MOST_TENSORS:
            gone = self.draw.choice(list(self.pool)[:-1])
            self.mine.pop(gone), self.theirs.pop(gone), self.pool.pop(gone)

    def _is_alias(self, side: dict[str, Any], name: str) -> bool:
        def storage(tensor: Any) -> Any:
            if isinstance(tensor, torch.Tensor):
                return tensor.untyped_storage().data_ptr() if tensor.numel() else None
            handle = tensor.array.handle
            if isinstance(handle, torch.Tensor):
                return storage(handle)
            return handle.storage.pointer if tensor.numel() else None

        mine = storage(side[name])
        return mine is not None and any(storage(side[key]) == mine for key in self.pool if key != name)

    def _compare(self) -> None:
        for name in self.pool:
            self.pool[name] = self.theirs[name]
            _same(name, self.mine[name], self.theirs[name])
            if not self.gradients:  # errors of rounding are not to grow into differences of steps
                with genesis.no_grad():
                    source = genesis.from_torch(self.theirs[name].contiguous()).to(self.device)
                    if not self.mine[name].array.is_expanded and self.device != "cpu":
                        self.mine[name].copy_(source)

    def _compare_gradients(self) -> None:
        names = [name for name, tensor in self.pool.items() if tensor.requires_grad and tensor.numel()]
        if not names:
            return
        try:
            sum((self.theirs[name].double() * 0.5).sum() for name in names).backward()
        except RuntimeError:  # a value that was saved has been changed in place: here it may have been copied
            return
        try:
            sum((self.mine[name].double() * 0.5).sum() for name in names).backward()
        except GraphError as error:
            if any(text in str(error) for text in DEVIATIONS):
                return
            raise DifferenceError(f"Genesis refuses backward: {error}") from error
        for number, (ours, theirs) in enumerate(self.leaves):
            if theirs.grad is not None:
                if ours.grad is None:
                    raise DifferenceError(f"leaf {number} has no gradient")
                _same(f"the gradient of leaf {number}", ours.grad, theirs.grad, 1e-4)


class _Unfinished(Exception):  # noqa: N818  (no error: the program ends early)
    pass


def _with_strides(tensor: torch.Tensor, device: str) -> Any:
    """A copy with the same strides, in memory of its own."""
    storage = tensor.untyped_storage().nbytes() // tensor.itemsize
    whole = torch.as_strided(tensor, (storage,), (1,), 0).clone()
    array = genesis.from_torch(whole).to(device).array
    return genesis.Tensor(array.view(tuple(tensor.shape), tensor.stride(), tensor.storage_offset()))


def _error_of(code: Any, names: dict[str, Any]) -> Exception | None:
    try:
        exec(code, names)
        if names["lib"] is genesis and names["device"] != "cpu":
            genesis.cuda.synchronize()
    except Exception as error:  # whatever it is, the other side is to have one too
        return error
    return None


def _same(name: str, ours: Any, theirs: torch.Tensor, tolerance: float | None = None) -> None:
    if ours.shape != tuple(theirs.shape) or ours.dtype is not DTYPES[theirs.dtype]:
        raise DifferenceError(f"{name}: expected {theirs.dtype}{tuple(theirs.shape)}, got {ours.dtype}{ours.shape}")
    tolerance = TOLERANCE.get(theirs.dtype, 0.0) if tolerance is None else tolerance
    values, expected = ours.detach().cpu().to_torch(), theirs.detach()
    if not torch.allclose(values.double(), expected.double(), rtol=tolerance, atol=tolerance, equal_nan=True):
        raise DifferenceError(f"{name}: expected {expected.tolist()}, got {values.tolist()}")


def check(seed: int, device: str = "cpu") -> None:
    """One program. Raises: DifferenceError, with the program and the line that repeats it."""
    program = Program(seed, device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's, on statements of odd shapes
        try:
            program.run()
        except _Unfinished:
            pass
        except Exception as error:
            on = "" if device == "cpu" else f" --device {device}"
            listed = "\n    ".join(program.lines)
            line = f"python -m tests.conformance.programs --seed {seed}{on}"
            raise DifferenceError(f"{line}\n    {listed}\n{type(error).__name__}: {error}") from error


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, help="one program; default: those from --first on")
    parser.add_argument("--first", type=int, default=0, help="the first of several seeds")
    parser.add_argument("--count", type=int, default=100, help="how many seeds")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.count) if arguments.seed is None else [arguments.seed]
    failures = 0
    for seed in seeds:
        try:
            check(seed, arguments.device)
        except DifferenceError as error:
            failures += 1
            print(error, flush=True)
    print(f"{failures} differences in {len(seeds)} programs")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
