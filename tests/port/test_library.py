"""torch.library's ops and torch.device as redirected code has them."""

from __future__ import annotations

from typing import Any

import pytest

import genesis
from genesis.errors import DeviceError
from genesis.port.facade import facade

DEVICES = ["cpu", "cuda"] if genesis.cuda.is_available() else ["cpu"]


def square(x: Any) -> Any:
    return x * x


@pytest.mark.parametrize("device", DEVICES)
def test_an_op_has_the_gradient_that_it_declares(device: str) -> None:
    library, torch = facade("torch.library"), facade("torch")
    op = library.custom_op("genesis_tests::square", square, mutates_args=())
    assert library.register_fake("genesis_tests::square", square) is square
    assert library.register_fake("genesis_tests::square")(square) is square
    assert torch.ops.genesis_tests.square is op
    x = genesis.tensor([1.0, 3.0], device=device, requires_grad=True)
    op(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 6.0]

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    def three_times(ctx: Any, grad: Any) -> Any:
        return 6 * grad * ctx.saved_tensors[0]

    library.register_autograd("genesis_tests::square", three_times, setup_context=keep)
    x.grad = None
    op(x).sum().backward()
    assert x.grad.tolist() == [6.0, 18.0]
    with pytest.raises(TypeError, match=r"genesis_tests::square: argument 'x': expected given by position"):
        op(x=x)


def test_ops_are_declared_by_a_decorator_too() -> None:
    library = facade("torch.library")

    @library.custom_op("genesis_tests::halved", mutates_args=())
    def halved(x: Any) -> Any:
        return x / 2

    assert halved.register_fake(square) is square
    assert facade("torch").ops.genesis_tests.halved(genesis.ones(1)).tolist() == [0.5]
    with pytest.raises(ValueError, match=r"custom_op: argument 'name': expected 'namespace::name', got 'halved'"):
        library.custom_op("halved")
    with pytest.raises(NotImplementedError, match="one function runs on all devices"):
        halved.register_kernel("cuda", square)


def test_devices_that_genesis_lacks_can_be_compared_with() -> None:
    device = facade("torch").device
    meta = device("meta")
    assert meta == device("meta")
    assert meta != genesis.ones(1).device
    assert (str(meta), str(device("mps:0")), device(meta)) == ("meta", "mps:0", meta)
    assert isinstance(meta, device)
    assert isinstance(genesis.ones(1).device, device)
    assert device("cpu") is genesis.device("cpu")
    with pytest.raises(DeviceError, match="expected 'cpu', 'cuda' or 'cuda:N', got"):
        genesis.ones(1, device=meta)
    with pytest.raises(DeviceError, match="got 'nowhere'"):
        device("nowhere")
