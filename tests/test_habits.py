"""What people write in PyTorch by habit gives here what it gives there."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import genesis
from genesis.errors import DTypeError
from genesis.settings import override

VALUES = [[3.0, 1.0, 2.0], [0.5, -1.0, 4.0]]
NUMPY_NAMES = [
    "x.sum(axis=1)", "x.sum(axis=1, keepdims=True)", "x.mean(axis=0)", "x.mean(axis=(0, 1), keepdims=True)",
    "x.prod(axis=1)", "x.std(axis=1)", "x.var(axis=0, keepdims=True)", "x.amax(axis=1)", "x.amin(axis=(0, 1))",
    "x.max(axis=1)[0]", "x.min(axis=1, keepdims=True)[1]", "x.argmax(axis=1)", "x.argmin(axis=0, keepdims=True)",
    "(x > 1).all(axis=1)", "(x > 3).any(axis=0, keepdims=True)", "x.sort(axis=1)[0]", "x.argsort(axis=0)",
    "lib.cat([x, x], axis=1)", "lib.stack([x, x], axis=1)", "lib.concatenate([x, x], axis=0)",
    "lib.softmax(x, axis=1)", "lib.sum(x, axis=0, keepdims=True)", "lib.mean(x, axis=1)",
]  # fmt: skip


@pytest.mark.parametrize("code", NUMPY_NAMES)
def test_numpys_names_of_arguments(code: str) -> None:
    ours = eval(code, {"x": genesis.tensor(VALUES), "lib": genesis})
    theirs = eval(code, {"x": torch.tensor(VALUES), "lib": torch})
    torch.testing.assert_close(ours.to_torch(), theirs)


@pytest.mark.parametrize(
    ("spec", "value"), [("", 3.5), (".3f", 3.14159), (".1%", 0.25), ("5d", 3), (">8", 2), ("e", 1e-7)]
)
def test_formats(spec: str, value: float) -> None:
    assert format(genesis.tensor(value), spec) == format(torch.tensor(value), spec)


@pytest.mark.parametrize(
    "options", [{"precision": 2}, {"sci_mode": False}, {"sci_mode": True, "precision": 1}, {"profile": "full"}]
)
def test_print_options(options: dict[str, Any]) -> None:
    try:
        genesis.set_printoptions(**options)
        torch.set_printoptions(**options)
        assert str(genesis.tensor([1.23456, 5.4321])) == str(torch.tensor([1.23456, 5.4321]))
    finally:
        genesis.set_printoptions(profile="default")
        torch.set_printoptions(profile="default")
    with pytest.raises(ValueError, match=r"argument 'profile': expected default, short, full, got 'bold'"):
        genesis.set_printoptions(profile="bold")


# --- random numbers ---------------------------------------------------------------------------------------------------

DRAWS: dict[str, tuple[Any, ...]] = {
    "uniform_": (-1, 1), "normal_": (1, 2), "exponential_": (2.0,), "cauchy_": (1.0, 2.0), "log_normal_": (0.0, 0.5),
    "geometric_": (0.3,), "random_": (3, 9), "bernoulli_": (0.3,),
}  # fmt: skip


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("method", DRAWS)
def test_draws(method: str, device: str) -> None:
    size = 20000 if device == "cpu" else 2000
    with override(cuda="simulated"):
        draw = getattr(genesis.empty(size, device=device), method)
        generator = genesis.Generator(device).manual_seed(1)
        before = genesis.cuda.get_rng_state() if device == "cuda" else genesis.get_rng_state()
        found = draw(*DRAWS[method], generator=generator).clone()
        again = draw(*DRAWS[method], generator=generator.manual_seed(1))
        assert found.cpu().tolist() == again.cpu().tolist()
        after = genesis.cuda.get_rng_state() if device == "cuda" else genesis.get_rng_state()
        assert after.tolist() == before.tolist()
        found = found.cpu()
    wanted = getattr(torch.empty(200000), method)(*DRAWS[method])
    near = 6 / math.sqrt(size)  # of quantiles, as a share of the draws
    for share in (0.1, 0.35, 0.6, 0.9):
        at = wanted.quantile(share).item() + 1e-3
        expected = (wanted <= at).float().mean().item()
        assert (found <= at).float().mean().item() == pytest.approx(expected, abs=near)


@pytest.mark.parametrize("call", [
    lambda lib: lib.zeros(2, 3, 7).bernoulli_(0.3), lambda lib: lib.zeros(17, dtype=lib.float64).bernoulli_(0.85),
    lambda lib: lib.bernoulli(lib.zeros(40, dtype=lib.int64), 0.6), lambda lib: lib.rand(size=(2, 3)),
    lambda lib: lib.empty(40).bernoulli_(0.5, generator=lib.Generator().manual_seed(7)),
    lambda lib: lib.randn(size=[4]), lambda lib: lib.bernoulli(lib.full((40,), 0.4)),
    lambda lib: lib.bernoulli(lib.full((40,), 0.4, dtype=lib.float64)),
    lambda lib: lib.empty(40).bernoulli_(lib.full((40,), 0.4, dtype=lib.float64)),
])  # fmt: skip
def test_draws_are_those_of_pytorch(call: Any) -> None:
    """Drop path draws by bernoulli_(p): under the same seed, the same samples are dropped."""
    genesis.manual_seed(3)
    ours = call(genesis)
    torch.manual_seed(3)
    assert ours.tolist() == call(torch).tolist()


def test_draws_check_their_arguments() -> None:
    x = genesis.empty(3)
    for call, said in [
        (lambda: x.exponential_(0.0), "exponential_: argument 'lambd': expected above 0"),
        (lambda: x.cauchy_(0.0, 0.0), "cauchy_: argument 'sigma': expected above 0"),
        (lambda: x.log_normal_(0.0, 0.0), "log_normal_: argument 'std': expected above 0"),
        (lambda: x.geometric_(1.0), "geometric_: argument 'p': expected a probability"),
        (lambda: x.random_(4, 4), "random_: argument 'to': expected more than from_"),
    ]:
        with pytest.raises(ValueError, match=said):
            call()
    with pytest.raises(DTypeError, match=r"uniform_: argument 'generator': expected a Generator of cpu"):
        x.uniform_(generator=3)  # type: ignore[arg-type]


# --- linear algebra ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", ["det", "logdet", "slogdet", "inverse", "cholesky"])
def test_functions_of_matrices_at_the_top(name: str, device: str) -> None:
    root = torch.randn(2, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    matrices = root @ root.mT + torch.eye(3)
    reference = torch.linalg.cholesky if name == "cholesky" else getattr(torch, name)
    with override(cuda="simulated"):
        x = genesis.from_torch(matrices).to(device)
        for found in (getattr(genesis, name)(x), getattr(x, name)()):
            for ours, theirs in zip(parts(found), parts(reference(matrices)), strict=True):
                torch.testing.assert_close(ours.cpu().to_torch(), theirs)


def parts(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple) else (value,)


def test_small_and_singular_matrices() -> None:
    tiny = genesis.eye(30) * 1e-5  # whose determinant is 0 in float32
    assert tiny.inverse()[0, 0].item() == pytest.approx(1e5)
    assert tiny.slogdet()[1].item() == pytest.approx(30 * math.log(1e-5))
    singular = genesis.tensor([[1.0, 2, 3], [2, 4, 6], [1, 1, 1]])
    assert (singular.det().item(), singular.slogdet()[1].item()) == (0.0, -math.inf)
    with pytest.raises(genesis.linalg.LinAlgError, match="a singular one"):
        singular.inverse()


@pytest.mark.parametrize("order", ["fro", 1, -1, math.inf, -math.inf])
@pytest.mark.parametrize("dim", [(-2, -1), (0, 2), (2, 0)])
@pytest.mark.parametrize("keepdim", [False, True])
def test_norms_of_matrices(order: Any, dim: tuple[int, int], keepdim: bool) -> None:
    x = torch.randn(2, 3, 4)
    found = genesis.linalg.norm(genesis.from_torch(x), order, dim, keepdim)
    torch.testing.assert_close(found.to_torch(), torch.linalg.norm(x, order, dim, keepdim))
