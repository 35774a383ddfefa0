"""Hooks, arrays and functions that users hand in: what they are called with, and what comes of them."""

from typing import Any, assert_type

import numpy as np
import numpy.typing as npt

import genesis
from genesis import Tensor, nn, optim
from genesis.distributions import Normal, register_kl
from genesis.utils.checkpoint import checkpoint

x = genesis.ones(2, 5)
net = nn.Sequential(nn.Linear(5, 3), nn.ReLU())
sgd = optim.SGD(net.parameters(), lr=0.1)


# Optimizers
def before(optimizer: optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    assert optimizer.param_groups


sgd.register_step_pre_hook(before).remove()
sgd.register_step_post_hook(lambda optimizer, args, kwargs: assert_type(optimizer, optim.SGD))
sgd.register_state_dict_post_hook(lambda optimizer, state: {**state, "note": optimizer.defaults})
sgd.register_step_pre_hook(len)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# Modules
def seen(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
    assert output.shape


def grads(module: nn.Module, grad_input: tuple[Tensor, ...], grad_output: tuple[Tensor, ...]) -> None:
    assert grad_output


net.register_forward_hook(seen).remove()
net.register_full_backward_hook(grads).remove()
assert_type(nn.utils.skip_init(nn.Linear, 5, 1), nn.Linear)
nn.utils.skip_init(nn.Linear, "5", 1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

# Arrays of NumPy
pixels: npt.NDArray[np.uint8] = np.zeros(3, np.uint8)
unknown: npt.NDArray[Any] = np.asarray([1.5])
assert_type(genesis.from_numpy(pixels), Tensor)
assert_type(genesis.from_numpy(unknown), Tensor)
assert_type(genesis.from_numpy(np.zeros((2, 3)) > 0), Tensor)
assert_type(genesis.from_numpy(x.numpy() * 2), Tensor)
genesis.from_numpy([1.5])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

assert_type(x.shape[1:], genesis.Size)
assert_type(checkpoint(net, x, use_reentrant=False), Tensor)


class Mine(Normal):
    """A distribution of one's own."""


@register_kl(Mine, Normal)
def divergence(p: Mine, q: Normal) -> Tensor:
    return p.mean - q.mean
