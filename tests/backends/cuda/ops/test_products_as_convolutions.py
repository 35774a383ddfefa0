"""Products as 1×1 convolutions: which direction they are, and on a GPU what the kernels compute."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.engine.bench import build
from genesis.backends.cuda.ops.conv.candidates import programs
from genesis.backends.cuda.ops.conv.candidates.skinny_gemm.candidate import SkinnyGemm, SkinnyGemmFamily
from genesis.backends.cuda.ops.conv.candidates.wgmma import common as hopper
from genesis.backends.cuda.ops.conv.candidates.wgmma.forward import WgmmaFamily
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from genesis.backends.cuda.ops.matmul import operation
from genesis.backends.cuda.ops.matmul.as_convolutions import convolution
from genesis.backends.cuda.ops.matmul.operation import MATMUL
from genesis.backends.cuda.ops.matmul.problem import MatmulProblem

FAMILY = operation._SKINNY
# A layer's (rows, inputs, outputs), and its three products.
LAYERS = [(128, 784, 512), (128, 512, 256), (128, 256, 10), (1, 64, 64), (33, 100, 7), (200, 1, 48), (64, 40, 1)]
DIRECTIONS = [FORWARD, INPUT_GRAD, WEIGHT_GRAD]


def _problem(
    layer: tuple[int, int, int], direction: str, bias: bool = False, dtype: dtypes.DType = dtypes.float32,
    precision: str = "highest",
) -> MatmulProblem:  # fmt: skip
    """A product of a layer as F.linear and its gradients ask for it."""
    rows, inputs, outputs = layer
    (m, n, k), x, y = {
        FORWARD: ((rows, outputs, inputs), (inputs, 1), (1, inputs)),
        INPUT_GRAD: ((rows, inputs, outputs), (outputs, 1), (inputs, 1)),
        WEIGHT_GRAD: ((outputs, inputs, rows), (1, outputs), (inputs, 1)),
    }[direction]
    return MatmulProblem(0, dtype, m, n, k, x, y, (1,), (0,), (0,), bias, 16, precision)


def _product(conv: ConvProblem, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """What the convolution is, of operands as they lie in memory."""
    (pixels, channels), outputs = conv.input_shape[:2], conv.weight_shape[0]
    grad = (pixels, outputs)
    if conv.direction == FORWARD:
        return first.reshape(pixels, channels) @ second.reshape(outputs, channels).T
    if conv.direction == INPUT_GRAD:
        return first.reshape(grad) @ second.reshape(outputs, channels)
    return first.reshape(grad).T @ second.reshape(pixels, channels)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_a_layers_products_are_a_convolutions_directions(layer: tuple[int, int, int], direction: str) -> None:
    p, draw = _problem(layer, direction), np.random.default_rng(0)
    first, second = draw.normal(size=p.rows * p.terms), draw.normal(size=p.terms * p.columns)
    x, y = (
        np.lib.stride_tricks.as_strided(memory, shape, [8 * step for step in strides])
        for memory, shape, strides in (
            (first, (p.rows, p.terms), p.x_strides),
            (second, (p.terms, p.columns), p.y_strides),
        )
    )
    conv = convolution(p)
    assert conv is not None
    assert conv.direction == direction or 1 in layer  # where strides do not tell two of them apart
    np.testing.assert_allclose(_product(conv, first, second), x @ y, rtol=1e-10, atol=1e-10)
    assert conv.flops == p.flops
    assert conv.result_shape[1] == p.columns  # which the bias has


@pytest.mark.parametrize(
    "strides",
    [
        {"x_strides": (800, 1)},  # a part of rows
        {"x_strides": (0, 1)},
        {"y_strides": (2, 784)},
        {"x_strides": (1, 128)},  # both are transposed
        {"batch_shape": (2,), "x_batch_strides": (128 * 784,)},
    ],
    ids=str,
)
def test_others_are_none(strides: dict[str, tuple[int, ...]]) -> None:
    forward = _problem(LAYERS[0], FORWARD)
    assert convolution(MatmulProblem(**{**vars(forward), **strides})) is None
    assert list(FAMILY.trials(MatmulProblem(**{**vars(forward), **strides}))) == []


def test_a_bias_belongs_to_columns() -> None:
    assert convolution(_problem(LAYERS[0], WEIGHT_GRAD, bias=True)) is None  # a weight's gradient takes none
    forward = convolution(_problem(LAYERS[0], FORWARD, bias=True))
    assert forward is not None
    assert forward.bias


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_small_layers_are_guessed(direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "is_available", lambda device: True)
    for layer in LAYERS[:3]:
        problem = _problem(layer, direction)
        first = next(iter(FAMILY.variants(problem)))
        again = FAMILY.named(problem, first.name)
        assert again is not None
        assert again.name == first.name
        assert again.supports(problem)
    assert not FAMILY.variants(_problem((4096, 1024, 1024), direction)), "tensor cores, or a library"
    assert not FAMILY.variants(_problem((4, 5, 6), direction)), "not worth a compiler"
    assert FAMILY.trials(_problem((4, 5, 6), direction))
    assert FAMILY.named(_problem((4, 5, 6), direction), "skinny_gemm/of another version") is None


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_batches_of_many_sizes_share_kernels(direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "is_available", lambda device: True)
    programs_of = set()
    for rows in range(65, 129):
        conv = convolution(_problem((rows, 784, 512), direction))
        assert conv is not None
        candidate = SkinnyGemmFamily().variants(conv)[0]
        assert isinstance(candidate, SkinnyGemm)
        programs_of.add(str(candidate.program(conv)))
    assert len(programs_of) <= 3  # a tile may be too inaccurate for fewer terms than it was chosen for


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_large_layers_are_guessed_where_all_bits_count(
    direction: str, simulated: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hopper, "is_available", lambda device: True)
    problem = _problem((4096, 512, 1024), direction, bias=direction == FORWARD)
    guess = next(iter(MATMUL.candidates(problem)))
    assert guess.family == "wgmma"
    assert guess.supports(problem)
    conv = convolution(problem)
    assert conv is not None
    inner = WgmmaFamily().named(conv, guess.name)
    assert inner is not None
    assert guess.workspace(problem) == inner.workspace(conv)  # of the weight's parts, and of sums
    again = operation._HOPPER.named(problem, guess.name)
    assert again is not None
    assert again.name == guess.name
    names = {each.family for each in MATMUL.candidates(problem)}
    assert {"wgmma", "tiled", "implicit_gemm"} <= names


def test_where_they_are_not(simulated: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "wgmma" not in {each.family for each in MATMUL.candidates(_problem((4096, 512, 1024), FORWARD))}
    monkeypatch.setattr(hopper, "is_available", lambda device: True)
    others = [
        _problem((4096, 512, 1024), FORWARD, precision="high"),
        _problem((4096, 512, 1024), FORWARD, dtype=dtypes.bfloat16),
        _problem((4096, 512, 1024), FORWARD, dtype=dtypes.float64),
        _problem((4096, 510, 1024), FORWARD),  # no multiple of 16 bytes
        _problem((4096, 48, 1024), FORWARD),  # so few terms that the split costs more accuracy than the sums
        _problem((8, 512, 1024), FORWARD),
    ]
    assert [str(each) for each in others if next(iter(MATMUL.candidates(each))).family == "wgmma"] == []


@pytest.mark.gpu
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("layer", [(4096, 512, 1024), (1000, 1024, 260), (5000, 64, 128), (100, 4096, 4096)], ids=str)
def test_results_in_parts(layer: tuple[int, int, int], direction: str, gpu: Backend) -> None:
    problem = _problem(layer, direction, bias=direction != WEIGHT_GRAD)
    bench, bound = MATMUL.bench(problem), MATMUL.error_bound(problem)
    families = operation._HOPPER, operation._IMPLICIT_GEMM
    for candidate in [each for family in families for each in list(family.trials(problem))[:4]]:
        built = build(candidate, problem, 1 << 30)
        assert built is not None
        assert bench.error(built) <= bound, candidate.name
    torch.cuda.synchronize()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_their_results(layer: tuple[int, int, int], direction: str, dtype: dtypes.DType, gpu: Backend) -> None:
    problem = _problem(layer, direction, bias=direction != WEIGHT_GRAD, dtype=dtype)
    bench, bound = MATMUL.bench(problem), MATMUL.error_bound(problem)
    candidates = list(FAMILY.trials(problem))[:3]
    assert candidates
    for candidate in candidates:
        built = build(candidate, problem, 0)
        assert built is not None
        assert bench.error(built) <= bound, candidate.name
    torch.cuda.synchronize()
