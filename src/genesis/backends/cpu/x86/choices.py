"""Convolutions as problems of the host's engine: which algorithms may compute them, and the guess among these.

| candidate | |
|---|---|
| `direct/pixels`, `direct/weights` | our direct kernels; threads share the pixels, or the weights |
| `winograd/2x2` | our F(2×2, 3×3) |
| `depthwise/rows` | ours for one filter per channel, and its weight gradient |
| `direct/taps` | our kernel for the weight gradient |
| `product/unpacked` | ours for few pixels, with the weight as it lies |
| `columns/gemm` | one matrix product |
| `onednn/blocked`, `onednn/plain` | oneDNN, with a weight in its own layout, or with the weight as it is |
"""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor

from genesis import dtypes
from genesis.backends.cpu.x86 import product, weight_grad, winograd
from genesis.backends.cpu.x86.problem import Problem
from genesis.backends.engine import accuracy

PACKED, FORWARD, INPUT_GRAD, WEIGHT_GRAD = "packed", "forward", "input_grad", "weight_grad"
STRIDED_INPUT_GRAD = "strided_input_grad"
PIXELS, WEIGHTS, TILES, DEPTHWISE = "direct/pixels", "direct/weights", "winograd/2x2", "depthwise/rows"
TAPS, COLUMNS, BLOCKED, PLAIN = "direct/taps", "columns/gemm", "onednn/blocked", "onednn/plain"
PRODUCT = "product/unpacked"

_LARGEST_ERROR = 3e-7  # of float32, see docs/convolution.md
_COLD_BYTES = 48 << 20  # more than the caches that a network's weights stay in


@dataclass(frozen=True)
class ConvChoice:
    """A convolution, or one of its gradients.

    Attributes:
        direction: PACKED: the weight has been packed once; FORWARD and INPUT_GRAD: it is packed in each call.
        problem: of an input's gradient without strides: the convolution of grad that gives it.
        guess: the candidate without measuring.
    """

    direction: str
    problem: Problem
    guess: str
    vectors: str | None
    num_threads: int
    precision: str

    @property
    def platform(self) -> str:
        return _platform(self.vectors)

    @property
    def key(self) -> str:
        p = self.problem
        return json.dumps({
            "op": f"conv {self.direction}", "input": p.input_shape, "strides": p.strides, "weight": p.weight_shape,
            "geometry": p.geometry, "bias": p.has_bias, "residual": p.has_residual, "activation": p.activation,
            "precision": self.precision, "threads": self.num_threads,
        })  # fmt: skip

    @property
    def flops(self) -> int:
        return 2 * math.prod(self.problem.output_shape) * math.prod(self.problem.weight_shape[1:])

    @property
    def error_bound(self) -> float:
        terms = math.prod(self.problem.weight_shape[1:])
        if self.direction == WEIGHT_GRAD:
            terms = self.problem.output_shape[0] * math.prod(self.problem.output_shape[2:])
        elif self.direction == STRIDED_INPUT_GRAD:
            terms = terms // self.problem.weight_shape[1] * self.problem.weight_shape[0]
        if self.precision != "highest":
            return accuracy.LOWERED[self.precision]
        return max(1e-7, min(_LARGEST_ERROR, accuracy.chain_error(dtypes.float32, terms)))

    @functools.cached_property
    def candidates(self) -> tuple[str, ...]:
        p, wide = self.problem, self.vectors == "avx512"
        if self.direction == STRIDED_INPUT_GRAD:
            return tuple(dict.fromkeys([self.guess, PRODUCT, PLAIN]))
        if self.direction == WEIGHT_GRAD and p.geometry.groups != 1:
            return tuple(dict.fromkeys([self.guess, PLAIN]))
        if self.direction == WEIGHT_GRAD:
            ours = [TAPS] if self.vectors is not None and weight_grad.is_supported(p, wide) else []
            return tuple(dict.fromkeys([self.guess, *ours, PLAIN, COLUMNS]))
        if p.geometry.groups != 1:
            own = [DEPTHWISE]
        else:
            own = [PIXELS, WEIGHTS, *([TILES] if winograd.is_supported(p, wide) else [])]
        if self.direction == PACKED:
            others = [BLOCKED, *([COLUMNS] if is_product(p) else [])]
        else:
            others = [PLAIN, *([PRODUCT] if self._is_product else [])]
        return tuple(dict.fromkeys([self.guess, *own, *others]))

    @property
    def _is_product(self) -> bool:
        p = self.problem
        pixels = p.output_shape[0] * math.prod(p.output_shape[2:])
        if self.direction == FORWARD:
            return product.is_supported(pixels, p.weight_shape, p.geometry.groups)
        pixels = p.input_shape[0] * math.prod(p.input_shape[2:])
        shape = p.weight_shape[1], p.weight_shape[0], *p.weight_shape[2:]
        return product.has_input_grad(pixels, shape, p.geometry.groups, self.vectors == "avx512")


def is_product(problem: Problem) -> bool:
    """Is the convolution one of each pixel by itself, and do pixels lie one after the other?"""
    flat = problem.flattened()
    return flat.weight_shape[2:] == (1, 1) and flat.input_shape[:3:2] == (1, 1) and flat.strides[1] == 1


@functools.cache
def _platform(vectors: str | None) -> str:
    return f"{_processor()} {vectors}{_limits()}, torch {torch.__version__}"


def _processor() -> str:
    """Its model, by which the best choice goes; virtual machines often tell no more than the maker's name."""
    wanted = ("model name", "cpu family", "model", "stepping", "cache size")
    found: dict[str, str] = {}
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in wanted:
            found.setdefault(name.strip(), value.strip())
    return " ".join(found[name] for name in wanted if name in found).encode("ascii", "replace").decode()


def _limits() -> str:
    """The limit that keeps oneDNN from the newest instructions."""
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", os.environ.get("DNNL_MAX_CPU_ISA", ""))
    return f" {limit.lower()}" if limit else ""


class ConvBench:
    """Runs of the candidates on random operands, of which the input is in the cache and the weight is not."""

    def __init__(self, runs: Callable[[str], Callable[[], Tensor]], reference: Callable[[], Tensor], warm: Tensor):
        """runs: what computes the problem by the candidate of this name."""
        self._make, self._reference, self._warm = runs, reference, warm
        self._runs: dict[str, Callable[[], Tensor]] = {}
        self._cold = torch.zeros(_COLD_BYTES // 4)

    def milliseconds(self, name: str) -> float:
        run = self._run(name)
        self._cold.add_(1.0)
        self._warm.sum()
        start = perf_counter()
        run()
        return (perf_counter() - start) * 1e3

    def error(self, name: str) -> float:
        expected = self._expected
        distance = torch.linalg.vector_norm(self._run(name)().double() - expected) / torch.linalg.vector_norm(expected)
        return distance.item() if math.isfinite(distance) else math.inf

    @functools.cached_property
    def _expected(self) -> Tensor:
        return self._reference()

    def _run(self, name: str) -> Callable[[], Tensor]:
        if name not in self._runs:
            self._runs[name] = self._make(name)
        return self._runs[name]


def operands(problem: Problem) -> Mapping[str, Tensor]:
    """Random x, weight, and where the problem has them bias and residual."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    x = torch.empty_strided(problem.input_shape, problem.strides).copy_(random(*problem.input_shape))
    found = {"x": x, "weight": random(*problem.weight_shape).contiguous(memory_format=torch.channels_last)}
    if problem.has_bias:
        found["bias"] = random(problem.weight_shape[0])
    if problem.has_residual:
        found["residual"] = random(*problem.output_shape).contiguous(memory_format=torch.channels_last)
    return found


def reference(problem: Problem, given: Mapping[str, Tensor]) -> Tensor:
    """The result in float64."""
    wide = {name: each.double() for name, each in given.items()}
    y = torch.conv2d(wide["x"], wide["weight"], wide.get("bias"), *problem.geometry)
    if "residual" in wide:
        y = y + wide["residual"]
    if problem.activation is None:
        return y
    return y.relu() if problem.activation == "relu" else y.clamp(0.0, 6.0)
