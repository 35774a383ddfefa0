"""Every kernel family once on small arrays, in about a minute under compute-sanitizer; PyTorch stays on the CPU.

    compute-sanitizer --tool memcheck python -m tests.gpu_sanitize
    compute-sanitizer --tool racecheck python -m tests.gpu_sanitize --only sum var argmax softmax layer_norm
    GENESIS_CUDA=simulated python -m tests.gpu_sanitize

Results are compared with the CPU's too. The calls of the contract's ops are the fuzzer's; the steps beside them are
those of optimizers, generators and layers that the fuzzer does not draw.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import itertools
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import numpy as np

import genesis
import genesis.nn.functional as F
from genesis import amp, dtypes, growth, nn, optim
from genesis.backends.cuda.engine.bench import build
from genesis.backends.cuda.engine.candidate import Candidate
from genesis.backends.cuda.engine.passes import WithPass
from genesis.backends.cuda.ops.attention.bench import AttentionBench
from genesis.backends.cuda.ops.attention.forward import Flash
from genesis.backends.cuda.ops.attention.problem import AttentionProblem
from genesis.backends.cuda.ops.conv import families
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from genesis.backends.cuda.ops.random import launch as random
from genesis.backends.cuda.ops.storage import launch as storage
from genesis.backends.cuda.runtime import array, streams
from genesis.backends.cuda.runtime.array import DeviceArray
from tests.conformance import fuzz
from tests.conformance.fuzz import OPS
from tests.cuda.test_custom_op import square

_MOST_TRIALS = 3  # candidates of a family: they differ in tiles, and each is compiled


def draw_numbers() -> None:
    genesis.manual_seed(0)
    for made in (genesis.rand(1025, device="cuda"), F.dropout(genesis.ones(1025, device="cuda"), 0.5)):
        assert 0.3 < (made > 0.5).float().mean().item() < 0.7
    assert abs(genesis.randn(4096, device="cuda").mean().item()) < 0.1
    assert sorted(genesis.randperm(300, device="cuda").tolist()) == list(range(300))
    assert set(genesis.randint(0, 3, (100,), device="cuda").tolist()) == {0, 1, 2}


def step_optimizers() -> None:
    """All of them on vectors of several lengths: gradient clipping, scaling and the steps are one launch for all."""
    sizes = (1, 130, 1025)
    for make in (optim.SGD, optim.Adam, optim.AdamW, optim.LARS):
        results = []
        for device in ("cpu", "cuda"):
            weights = [genesis.full((size,), 2.0, device=device).requires_grad_() for size in sizes]
            optimizer, scaler = make(weights, lr=0.01), amp.GradScaler(device, init_scale=8.0)
            for _ in range(2):
                optimizer.zero_grad()
                scaler.scale(sum([weight.square().sum() for weight in weights[1:]], weights[0].sum())).backward()
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(weights, 1.0)
                scaler.step(optimizer)
                scaler.update()
            results.append([weight[-1].item() for weight in weights])
        assert all(abs(a - b) < 1e-5 for a, b in zip(*results, strict=True)), f"{make.__name__}: {results}"


def attend_in_16_bits() -> None:
    """Blocks that the copy engine fetches, whole and cut off, forward and backward; heads of 64 and 128."""
    for size, length, causal in ((64, 200, True), (128, 130, False), (128, 261, True)):
        genesis.manual_seed(0)
        operands = [genesis.randn(2, length, size).to(genesis.bfloat16) for _ in range(3)]
        results = []
        for device, dtype in (("cpu", genesis.float32), ("cuda", genesis.bfloat16)):
            qkv = [x.to(device=device, dtype=dtype).requires_grad_() for x in operands]
            y = F.scaled_dot_product_attention(*qkv, is_causal=causal)
            y.square().sum().backward()
            results.append([x.detach().cpu().to(genesis.float32) for x in (y, *(x.grad for x in qkv))])
        for expected, result in zip(*results, strict=True):
            assert ((result - expected).norm() / expected.norm()).item() < 0.02


def compare_attentions() -> None:
    """What cuDNN's attention is compared by, on equal results. (Its kernels are not ours to be checked.)"""
    side = ((2, 2, 261, 80), (41760, 20880, 80, 1))
    problem = AttentionProblem(0, dtypes.bfloat16, side, side, side, True, 0.1)
    built = build(Flash(), problem, 0)
    assert built is not None
    assert AttentionBench(problem).error(built) == 0


def grow_and_go_back() -> None:
    """The copies for rollback and the selections of all arrays, a launch each; one array takes several chunks."""
    genesis.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 130), nn.ReLU(), nn.Linear(130, 200)).to("cuda")
    optimizer, x = optim.SGD(model.parameters(), lr=0.01, momentum=0.9), genesis.randn(3, 7, device="cuda")
    model(x).sum().backward()
    optimizer.step()
    before = [parameter.tolist() for parameter in model.parameters()]
    step = growth.grow_width(model, "0", channels=200, optimizer=optimizer, example=x)
    assert step.deviation is not None
    assert step.deviation < 1e-5
    growth.rollback(step)
    assert [parameter.tolist() for parameter in model.parameters()] == before


def infer_with_packed_weights() -> None:
    layer, x = nn.ConvBNReLU(3, 20, 3).eval(), genesis.randn(2, 3, 9, 9)
    with genesis.no_grad():
        expected = layer(x)
        difference = layer.to("cuda")(x.to("cuda")).cpu() - expected
    assert difference.abs().max().item() < 1e-4


def train_fused_convolutions() -> None:
    """In bfloat16: 1×1 convolutions to more channels, whose output is never written, and one that writes it; and their
    inputs go another way too, whose gradient is added."""
    for num_inputs, num_outputs in ((20, 40), (40, 256), (40, 20)):
        x, residual = genesis.randn(2, num_inputs, 9, 9), genesis.randn(2, num_outputs, 9, 9)
        genesis.manual_seed(0)
        layer = nn.ConvBNReLU(num_inputs, num_outputs, 1)
        results = []
        for device in ("cpu", "cuda"):
            layer.zero_grad()
            layer.to(device)
            layer.conv.to(genesis.bfloat16)
            mine = x.to(device).bfloat16().requires_grad_()
            y = layer(mine, residual.to(device).bfloat16())
            (y.float().square().sum() + mine.float().square().sum()).backward()
            found = [y, layer.conv.weight.grad, layer.norm.weight.grad, mine.grad]
            results.append([each.detach().float().cpu() for each in found])
        for expected, actual in zip(*results, strict=True):
            assert (actual - expected).norm().item() < 0.03 * expected.norm().item()


def launch_kernels_of_users() -> None:
    """Those of examples/kernels; the simulated device has no CUDA C++, so there it is one in Triton."""
    if genesis.cuda.get_device_name() == "simulated":
        x = genesis.randn(100, device="cuda")
        assert square(x).tolist() == (x * x).tolist()
        return
    with mock.patch("torch.cuda.is_available", return_value=False):  # PyTorch stays on the CPU
        for path in sorted((Path(__file__).parents[1] / "examples" / "kernels").glob("*.py")):
            importlib.import_module(f"examples.kernels.{path.stem}").check()


def convolve_in_float32() -> None:
    convolve_with_own_kernels(dtypes.float32, "highest", 1e-5)


def convolve_in_rounded_float32() -> None:
    convolve_with_own_kernels(dtypes.float32, "high", 4e-3)


def convolve_in_bfloat16() -> None:
    convolve_with_own_kernels(dtypes.bfloat16, "highest", 0.02)


def convolve_with_own_kernels(dtype: dtypes.DType, precision: str, tolerance: float) -> None:
    """Each family of kernels beside cuDNN, forward and both gradients, against the plain ones."""
    layers = {
        (24, 16, 3, 3): (2, 1), (3, 16, 3, 3): (2, 1), (8, 3, 5, 5): (2, 1), (64, 64, 3, 3): (1, 1),
        (24, 1, 3, 3): (2, 24), (40, 1, 7, 7): (1, 40), (18, 10, 3, 3): (1, 1), (12, 18, 1, 1): (1, 1),
        (26, 37, 1, 1): (1, 1), (80, 40, 3, 3): (1, 2), (64, 32, 1, 3): (2, 2),
    }  # (stride, groups) by the weight's shape  # fmt: skip
    found = {}
    for (weight, (stride, groups)), direction in itertools.product(layers.items(), (FORWARD, INPUT_GRAD, WEIGHT_GRAD)):
        padding = 0 if weight[2] == 1 else 1
        problem = ConvProblem(
            direction, (2, weight[1] * groups, 9, 8), weight, (stride, stride), (padding, padding), groups=groups,
            dtype=dtype, precision=precision,
        )  # fmt: skip
        found[problem] = [*candidates(problem), (problem, families.reference(problem))]
    with ThreadPoolExecutor() as compilers:  # one after the other, they would take most of the time
        list(compilers.map(lambda each: each[1].prepare(each[0]), itertools.chain(*found.values())))
    for problem, ways in found.items():
        operands = (problem.first_shape, problem.second_shape)
        first, second = (random.randn(shape, seed, dtype) for seed, shape in enumerate(operands))
        *results, expected = (convolve(way, candidate, first, second) for way, candidate in ways)
        for (_, candidate), result in zip(ways, results, strict=False):
            distance = abs(result - expected).max()
            assert distance <= tolerance * abs(expected).max(), f"{candidate.name}: {problem}: {distance}"


def candidates(problem: ConvProblem) -> list[tuple[ConvProblem, Candidate[ConvProblem]]]:
    """Some of each family, and all that find statistics, with the problem that each computes."""
    found = [
        (problem, candidate)
        for family in families.FAMILIES
        if not family.prefix.endswith(("cublaslt", "cudnn"))
        for candidate in itertools.islice(family.trials(problem), _MOST_TRIALS)
    ]
    both = dataclasses.replace(problem, statistics=True)
    if problem.direction == FORWARD and families.gives_statistics(both):
        found += [(both, each) for each in CONV.candidates(both) if type(each) is not WithPass]
    return found


def convolve(problem: ConvProblem, candidate: Candidate, *operands: DeviceArray) -> np.ndarray:
    """The candidate's result; operands and result are row-major where the kernels see channels inside."""
    out = array.empty(problem.result_shape, problem.dtype)
    workspace = array.empty((max(candidate.workspace(problem), 1),), dtypes.uint8)
    addresses = [x.data_pointer for x in (out, *operands)]
    candidate.prepare(problem)(streams.current_handle(0), *addresses, 0, 0, workspace.data_pointer)
    return storage.to_cpu(storage.cast(out, dtypes.float32))


STEPS: dict[str, Callable[[], None]] = {
    step.__name__: step
    for step in (
        draw_numbers,
        step_optimizers,
        attend_in_16_bits,
        compare_attentions,
        grow_and_go_back,
        infer_with_packed_weights,
        launch_kernels_of_users,
        convolve_in_float32,
        convolve_in_rounded_float32,
        convolve_in_bfloat16,
        train_fused_convolutions,
    )
}


def run(names: list[str], num_seeds: int = 1) -> list[str]:
    """Run these ops and steps; what failed."""
    failures = []
    for name in names:
        print(name, flush=True)  # a kernel's fault ends the process
        try:
            if name in STEPS:
                STEPS[name]()
            else:
                for seed in range(num_seeds):
                    fuzz.check(name, seed)
        except Exception:
            failures.append(f"{name}\n{traceback.format_exc()}")
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = [*OPS, *STEPS]
    parser.add_argument("--only", nargs="+", choices=every, metavar="NAME", default=every, help="ops and steps")
    parser.add_argument("--seeds", type=int, default=1, help="calls per op")
    arguments = parser.parse_args()
    failures = run(arguments.only, arguments.seeds)
    for failure in failures:
        print(f"FAILED {failure}")
    print(f"{len(arguments.only)} ops and steps, {len(failures)} failed")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
