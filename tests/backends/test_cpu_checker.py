"""GENESIS_CHECK=cpu on the simulated device: what is right passes, what is wrong is named."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import genesis
from genesis import backends, dtypes, nn
from genesis.backends import OPS
from genesis.errors import MismatchError
from genesis.nn import functional as F
from genesis.records import ConvGeometry
from genesis.settings import override


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    with override(cuda="simulated"):
        yield


def broken(op: str, spoil: Callable[..., Any]) -> Any:
    """The backend with an op that spoils its result."""

    def around(name: str, function: Any) -> Any:
        return (lambda *args, **kwargs: spoil(function(*args, **kwargs), *args)) if name == op else function

    return backends.use("cuda", backends.get("cuda").wrapped(around))


def test_what_is_right_passes() -> None:
    genesis.manual_seed(0)
    with override(check="cpu"):
        model = nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
        )
        model.append(nn.Linear(4 * 3 * 3, 5)).to("cuda")
        optimizer = genesis.optim.AdamW(model.parameters())
        x, target = genesis.randn(3, 2, 6, 6, device="cuda"), genesis.tensor([0, 4, 1], device="cuda")
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(F.dropout(model(x), 0.1), target).backward()
            optimizer.step()
        model.eval()(x)
        q = genesis.randn(1, 2, 4, 8, device="cuda", requires_grad=True)
        F.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
        F.layer_norm(q, (8,)).sum().backward()
        y = genesis.tensor([1.0, 1.0, float("nan"), float("inf")], device="cuda")
        y.sort()
        y.bfloat16().cumsum(0)
        y[genesis.tensor([0, 3], device="cuda")] = 0.0


@pytest.mark.parametrize("dtype", [genesis.float16, genesis.bfloat16], ids=str)
def test_norms_of_16_bits_pass(dtype: genesis.DType) -> None:
    with override(check="cpu"):
        x = genesis.randn(4, 6, 3, 3, device="cuda", dtype=dtype, requires_grad=True)
        weight = genesis.ones(6, device="cuda", dtype=dtype, requires_grad=True)
        F.batch_norm(x, None, None, weight, weight, training=True).sum().backward()
        F.group_norm(x, 2, weight, weight).sum().backward()
        F.layer_norm(x.reshape(4, 9, 6), (6,), weight, weight).sum().backward()
        F.rms_norm(x.reshape(4, 9, 6), (6,), weight).sum().backward()


def test_fused_convolutions_pass() -> None:
    """In the backward the block's input has a gradient already, which is added to."""
    genesis.manual_seed(0)
    with override(check="cpu"):
        first, last = (nn.ConvBNReLU(3, 3, 3).to("cuda") for _ in range(2))
        x = genesis.randn(2, 3, 5, 5, device="cuda", requires_grad=True)
        last(first(x), x).sum().backward()


@pytest.mark.parametrize("kernel_size", [(3, 2), (17, 16)], ids=str)  # kept in bytes, and not
def test_max_pooling_is_checked_whatever_it_keeps(kernel_size: tuple[int, int]) -> None:
    cuda = backends.get("cuda")
    x = genesis.randn(2, 3, 17, 16, device="cuda", requires_grad=True)
    windows: dict[str, Any] = {"stride": (2, 3), "padding": (1, 0), "dilation": (1, 1), "ceil_mode": True}
    with override(check="cpu"):
        F.max_pool2d(x, kernel_size, **windows).square().sum().backward()
        F.max_pool2d(x, 2, dilation=(2, 3)).square().sum().backward()
        y = F.max_pool2d(x, kernel_size, **windows).sum()
    with (
        broken("max_pool2d_backward", lambda grad, *_: cuda.mul(grad, 2)),
        override(check="cpu"),
        pytest.raises(MismatchError, match=r"^max_pool2d_backward: result 0 differs"),
    ):
        y.backward()


def test_packed_convolutions_are_checked() -> None:
    cuda = backends.get("cuda")
    input, weight = (genesis.randn(shape, device="cuda").array.handle for shape in [(1, 2, 5, 5), (3, 2, 3, 3)])
    with override(check="cpu"):
        active = backends.active["cuda"]
        geometry = ConvGeometry((1, 1), (0, 0), (1, 1), 1)
        packed = active.conv_prepack(weight, None, (1, 2, 5, 5), geometry)
        assert active.conv_prepacked(input, packed, None, "relu").shape == (1, 3, 3, 3)
        cuda.copy_into(packed.weight, 1.0)
        with pytest.raises(MismatchError, match=r"^conv_prepacked: result 0 differs"):
            active.conv_prepacked(input, packed, None, "relu")


def test_a_wrong_result_is_named_with_shapes_and_line() -> None:
    x, y = genesis.ones(2, 3, device="cuda"), genesis.ones(3, device="cuda")

    def spoil(result: Any, *args: Any) -> Any:
        backends.get("cuda").copy_into(backends.get("cuda").view(result, (1,), (1,), 4), 2.5)
        return result

    with broken("add", spoil), override(check="cpu"):
        with pytest.raises(MismatchError) as error:
            x + y
        line = sys._getframe().f_lineno - 1
    assert str(error.value) == (
        "add: result 0 differs from the CPU's: 1 of 6 elements, most at (1, 1): 2.5 on cuda, 2 on the CPU "
        "(error 0.5, allowed 0.0004); from float32 (2, 3), float32 (3,); called at " + f"{__file__}:{line}"
    )


def test_a_wrong_change_in_place_is_named() -> None:
    cuda = backends.get("cuda")
    x = genesis.zeros(4, device="cuda")

    def spoil(result: None, target: Any, source: Any) -> None:
        cuda.add_into(target, source)

    with (
        broken("add_into", spoil),
        override(check="cpu"),
        pytest.raises(MismatchError, match=r"^add_into: argument 0 "),
    ):
        x.array.add_into(genesis.ones(4, device="cuda").array)


def test_a_changed_operand_is_named() -> None:
    def spoil(result: Any, x: Any) -> Any:
        backends.get("cuda").copy_into(x, 0.0)
        return result

    with broken("neg", spoil), override(check="cpu"), pytest.raises(MismatchError, match=r"^neg: argument 0 differs"):
        -genesis.ones(4, device="cuda")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda cuda, y: cuda.cast(y, dtypes.float64), r"float64 \(2,\), on the CPU float32 \(2,\)"),
        (lambda cuda, y: cuda.view(y, (1, 2), (2, 1), 0), r"float32 \(1, 2\), on the CPU float32 \(2,\)"),
        (lambda cuda, y: cuda.mul(y, float("nan")), r"2 of 2 elements, most at \(0,\): nan on cuda, 1 on the CPU"),
        (lambda cuda, y: cuda.mul(y, float("inf")), "inf on cuda, 1 on the CPU"),
        (lambda cuda, y: cuda.mul(y, 1.001), r"error 0\.001, allowed 0\.0002"),
    ],
)
def test_what_counts_as_different(spoil: Callable[..., Any], message: str) -> None:
    cuda = backends.get("cuda")
    x = genesis.ones(2, device="cuda")
    with broken("abs", lambda y, _: spoil(cuda, y)), override(check="cpu"), pytest.raises(MismatchError, match=message):
        x.abs()


def test_what_does_not_count() -> None:
    cuda = backends.get("cuda")
    x = genesis.tensor([1.0, float("nan"), -float("inf")], device="cuda")
    with broken("abs", lambda y, _: cuda.mul(y, 1 + 1e-5)), override(check="cpu"):
        x.abs()


def test_integers_and_bools_are_compared_exactly() -> None:
    cuda = backends.get("cuda")
    for op, spoil in {"isnan": cuda.logical_not, "bitwise_not": lambda y: cuda.add(y, 1)}.items():
        x = genesis.full((2,), 10**6, device="cuda", dtype=genesis.float32 if op == "isnan" else genesis.int64)
        with broken(op, lambda y, _, spoil=spoil: spoil(y)), override(check="cpu"):  # noqa: SIM117
            with pytest.raises(MismatchError, match=f"{op}: result 0"):
                getattr(x, op)()


def test_the_cpu_itself_is_not_checked() -> None:
    plain = backends.get("cpu")
    with override(check="cpu"):
        assert backends.active["cpu"] is plain
        assert all(getattr(backends.active["cuda"], op) for op in OPS)
    assert backends.active["cuda"] is backends.get("cuda")
