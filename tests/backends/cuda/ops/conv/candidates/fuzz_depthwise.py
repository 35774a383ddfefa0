"""Random depthwise problems and shapes of the kernels, run on the host and compared with float64:

python -m tests.backends.cuda.ops.conv.candidates.fuzz_depthwise --problems 300
python -m tests.backends.cuda.ops.conv.candidates.fuzz_depthwise --only 17        one of them again
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time

import numpy as np
import torch

from genesis import backends, dtypes
from genesis.backends.cuda.engine.candidate import Candidate
from genesis.backends.cuda.ops.conv import accuracy
from genesis.backends.cuda.ops.conv.candidates import programs
from genesis.backends.cuda.ops.conv.candidates.depthwise.candidate import Depthwise
from genesis.backends.cuda.ops.conv.candidates.depthwise.shape import Shape
from genesis.backends.cuda.ops.conv.candidates.depthwise.toeplitz import Patch, Toeplitz
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from genesis.settings import override
from tests.backends.cuda.ops.conv import fuzz
from tests.backends.cuda.ops.conv.candidates import host_programs


def draw(seed: int) -> tuple[ConvProblem, Candidate[ConvProblem]]:
    """A problem, and a candidate that supports it."""
    chance = random.Random(seed)
    while True:
        problem, candidate = _products(chance) if chance.random() < 0.2 else _multiply_adds(chance)
        fits = min(problem.output_shape) > 0 and problem.flops < 2e6
        if fits and candidate.supports(problem) and problem.epilogue.parts <= candidate.fuses(problem):
            return problem, candidate


def _multiply_adds(chance: random.Random) -> tuple[ConvProblem, Candidate[ConvProblem]]:
    channels, multiplier = chance.choice([2, 3, 4, 6, 8, 16, 33, 40]), chance.choice([1, 1, 1, 1, 2, 3, 4, 9, 11])
    taps, stride, dilation = (
        tuple(chance.choice(choice) for _ in range(2)) for choice in ([1, 2, 3, 3, 5, 7], [1, 1, 2, 3], [1, 1, 1, 2, 3])
    )
    padding = tuple(chance.randint(0, d * (k - 1) + 1) for k, d in zip(taps, dilation, strict=True))
    geometry = (taps, stride, padding, dilation)
    problem = _problem(
        chance, chance.choice([FORWARD, INPUT_GRAD, WEIGHT_GRAD]), channels, multiplier, geometry,
        chance.choice([dtypes.float32, dtypes.float16, dtypes.bfloat16]),
    )  # fmt: skip
    rows, columns = chance.randint(1, 4), chance.randint(1, 7)
    if problem.direction == INPUT_GRAD:
        rows, columns = -(-rows // stride[0]) * stride[0], -(-columns // stride[1]) * stride[1]
    shape = Shape(
        chance.choice([1, 1, 2, 4, 8]), rows, columns, chance.randint(1, 6), chance.choice([32, 64, 128]),
        chance.choice([1, 2]),
    )  # fmt: skip
    return problem, Depthwise(shape)


def _products(chance: random.Random) -> tuple[ConvProblem, Candidate[ConvProblem]]:
    taps = (chance.randint(1, 11), chance.randint(1, 9))
    padding = (chance.randint(0, taps[0]), chance.randint(0, taps[1]))
    problem = _problem(
        chance, chance.choice([FORWARD, INPUT_GRAD]), 8 * chance.randint(1, 4), 1, (taps, (1, 1), padding, (1, 1)),
        chance.choice([dtypes.float16, dtypes.bfloat16]),
    )  # fmt: skip
    patch = Patch(*chance.choice([(1, 1), (2, 1), (1, 2)]), 1, chance.randint(1, 2), chance.randint(1, 3), 1)
    return problem, Toeplitz(patch)


def _problem(
    chance: random.Random, direction: str, channels: int, multiplier: int, geometry: tuple[tuple[int, ...], ...],
    dtype: dtypes.DType,
) -> ConvProblem:  # fmt: skip
    taps, stride, padding, dilation = geometry
    sizes = [
        max(1, d * (k - 1) + 1 - 2 * p) + chance.randint(0, 14) for k, d, p in zip(taps, dilation, padding, strict=True)
    ]
    wanted = [direction != WEIGHT_GRAD and chance.random() < 0.3 for _ in range(2)]
    relu = "relu" if direction == FORWARD and chance.random() < 0.3 else None
    return ConvProblem(
        direction, (chance.randint(1, 3), channels, *sizes), (channels * multiplier, 1, *taps), stride, padding,
        dilation, channels, dtype=dtype, bias=wanted[0], residual=wanted[1], activation=relu,
    )  # fmt: skip


def check(seed: int) -> str:
    """The candidate's name. Its kernel runs on the host: see patched()."""
    problem, candidate = draw(seed)
    torch.manual_seed(seed)
    cuda = backends.get("cuda")
    put, get = fuzz.ways(cuda)
    scale = 1 if problem.direction == WEIGHT_GRAD else 1 / math.sqrt(problem.num_terms)
    host = [fuzz.operand(problem.first_shape, problem), fuzz.operand(problem.second_shape, problem) * scale]
    bias = fuzz.operand((problem.result_shape[1],), problem) if problem.bias else None
    residual = fuzz.operand(problem.result_shape, problem) if problem.residual else None
    operands = [*host, bias, residual]
    expected = fuzz.expected(problem, operands)
    result = fuzz.run(cuda, candidate, problem, [None if each is None else put(each) for each in operands])
    size = max(
        float(np.linalg.norm(expected.ravel())), math.sqrt(expected.size * (problem.num_terms if scale == 1 else 1))
    )
    error = float(np.linalg.norm((get(result).double().numpy() - expected).ravel())) / size
    bound = accuracy.error_bound(problem) * (2 if expected.size < 200 else 1)
    assert error <= bound, f"{problem}: {candidate.name}: {error:.2e}, at most {bound:.2e}"
    return candidate.name


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=300)
    parser.add_argument("--only", type=int, nargs="+", metavar="SEED", help="these problems")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no problem after that time")
    arguments = parser.parse_args()
    programs.prepare, programs.is_available = host_programs.prepare, lambda device: True  # type: ignore[assignment]
    begin, done, failed = time.monotonic(), 0, 0
    with override(cuda="simulated"):
        for seed in arguments.only or range(arguments.problems):
            if time.monotonic() - begin > arguments.seconds:
                break
            done += 1
            try:
                check(seed)
            except Exception as error:
                failed += 1
                print(f"python -m {__spec__.name} --only {seed}   # {type(error).__name__}: {error}", flush=True)
    print(f"{done} problems in {time.monotonic() - begin:.0f} s, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
