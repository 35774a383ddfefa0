"""What a model computed, it still computes once it is fused: outputs, gradients, buffers, whatever its code does."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import genesis.torch
from tests.torch import fuzz_forwards
from tests.torch.chains import Chain, agree, images, pair


@pytest.fixture(params=["cpu", "simulated"], autouse=True)
def device(request: pytest.FixtureRequest) -> str:
    """Who computes fused ops on tensors in host memory: the CPU backend, or the CUDA backend on a simulated device."""
    torch.manual_seed(0)
    if request.param == "simulated":
        request.getfixturevalue("cuda_kernels")
    return str(request.param)


# --- whatever a forward does ------------------------------------------------------------------------------------------
class Counts(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros(()))
        self.last: Any = None

    def forward(self, x: Tensor) -> Tensor:
        self.n += 1  # type: ignore[operator]
        self.last = self.b(self.c(x))
        if not torch.is_inference_mode_enabled():
            self.n = self.n * 2
        return self.r(self.last)


class WithoutGradients(Chain):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = self.b(self.c(x))
        return self.r(y) + self.c.weight.sum()


class PartlyWithout(Chain):
    def forward(self, x: Tensor) -> Tensor:
        y = self.c(x)
        with torch.no_grad():
            y = self.b(y)
        return self.r(y) + self.c.weight.sum()


class ConvolvesWithout(Chain):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = self.c(x)
        return self.r(self.b(y))


class RandomBranch(Chain):
    def forward(self, x: Tensor) -> Tensor:
        y = self.b(self.c(x))
        return self.r(y) if torch.rand(1) < 0.5 else y * 2


class Asks(Chain):
    def forward(self, x: Tensor) -> Tensor:
        y = self.b(self.c(x))
        assert isinstance(x, Tensor)
        assert isinstance(y, Tensor)
        assert (y.shape, y.dim(), y.dtype, len(y)) == ((2, 4, 5, 4), 4, torch.float64, 2)
        return self.r(y) if self.b.training and torch.is_grad_enabled() and y.requires_grad else y


class ReadsStatistics(Chain):
    """Between the norm and its activation, which is where they must have moved already."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.b(self.c(x))
        read = self.b.running_mean.sum() + self.b.num_batches_tracked  # type: ignore[operator,union-attr]
        return self.r(y) + read


class Lists(Chain):
    """As dla34's roots: a list and None among the arguments."""

    def forward(self, x: Tensor, children: list[Tensor] | None = None) -> Tensor:
        y = self.r(self.b(self.c(x)))
        together = [y, y * 2] + ([] if children is None else children)
        x = self.b(torch.cat(together, 1)[:, :4])
        x += together[1]
        return self.r(x)


class SharedNorm(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.c2 = nn.Conv2d(3, 4, 1).double()

    def forward(self, x: Tensor) -> Tensor:
        u, v = self.c(x), self.c2(x)
        return self.r(self.b(u) + self.b(v)) + self.r(self.b(u)) * self.b(v) + u


class PlainFirst(Chain):
    """PyTorch's batch norm saves the running statistics; that they change is nothing to its backward."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.b(x.sum(1, keepdim=True).expand(-1, 4, -1, -1) * 1.0)
        return self.r(self.b(self.c(x))) + y + self.r(self.b(self.c(x)) + y)


class SeveralUses(Chain):
    def forward(self, x: Tensor) -> Tensor:
        y = self.b(self.c(x))
        first, second = self.r(y), self.r(y)
        z = y + x.mean()
        y += first
        return first * second + self.r(y) + self.r(z) + torch.relu(y + y)


class InPlace(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.r = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.b(self.c(x))
        same = y
        z = self.r(y)
        assert z is y is same
        return z + same


class Returns(Chain):
    def forward(self, x: Tensor) -> Any:
        u = self.c(x)
        return {"convolved": [u], "normed": (self.b(u), None)}


class Raises(Chain):
    def forward(self, x: Tensor) -> Tensor:
        y = self.b(self.c(x))
        try:
            raise KeyError
        except KeyError:
            return self.b(self.c(x)).relu_() if y.requires_grad else self.r(y)


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * (s * (1 + x * (1 - s)))


class Reverses(torch.autograd.Function):
    """Looks at nothing: only the graph knows that it was there."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return -grad


class OwnFunctions(Chain):
    def forward(self, x: Tensor) -> Any:
        return Reverses.apply(Swish.apply(self.b(Reverses.apply(self.c(x)))))


class Checkpointed(Chain):
    reentrant = False

    def forward(self, x: Tensor) -> Any:
        x = x + self.c.weight.sum()
        y = checkpoint(self.b, checkpoint(self.c, x, use_reentrant=self.reentrant), use_reentrant=self.reentrant)
        return self.r(y) + checkpoint(super().forward, x, use_reentrant=self.reentrant)


class CheckpointedReentrantly(Checkpointed):
    reentrant = True


class IntoCheckpoints(Chain):
    """What a checkpoint is given was begun outside: the checkpoint must not save it."""

    def forward(self, x: Tensor) -> Any:
        first = checkpoint(self._norm, self.c(x), use_reentrant=False)
        second = checkpoint(self._scale, self.b(self.c(x)), use_reentrant=False)
        return first + second

    def _norm(self, x: Tensor) -> Tensor:
        return self.r(self.b(x))

    def _scale(self, x: Tensor) -> Tensor:
        return self.r(x * 2) + x


FORWARDS = [
    Chain, Counts, WithoutGradients, PartlyWithout, ConvolvesWithout, RandomBranch, Asks, ReadsStatistics, Lists,
    SharedNorm, PlainFirst, SeveralUses, InPlace, Returns, Raises, OwnFunctions,
    Checkpointed, CheckpointedReentrantly, IntoCheckpoints,
]  # fmt: skip


@pytest.mark.parametrize("kind", FORWARDS)
def test_the_code_of_a_forward_runs(kind: type[Chain]) -> None:
    theirs, ours = pair(kind())
    for training in (True, False):
        theirs.train(training)
        ours.train(training)
        agree(theirs, ours, images())
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                agree(theirs, ours, images(), calls=2)
    if kind is Counts:
        torch.testing.assert_close(ours.last, theirs.last)


@pytest.mark.parametrize("kind", FORWARDS)
def test_nothing_pending_leaves_the_model(kind: type[Chain]) -> None:
    ours = genesis.torch.fuse(kind())
    for _ in range(4):
        leaves = torch.utils._pytree.tree_leaves(ours(images()))
        assert {type(leaf) for leaf in leaves} <= {Tensor, type(None)}


class Masked(Chain):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        y = self.r(self.b(self.c(x)))
        return y if mask is None else y * mask


def test_optional_arguments() -> None:
    theirs, ours = pair(Masked())
    agree(theirs, ours, images())
    agree(theirs, ours, images(), torch.zeros(2, 4, 5, 4, dtype=torch.float64))


class WithSum(Chain):
    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return self.r(self.b(self.c(x)) + residual)


class AutocastOff(WithSum):
    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            y = self.c(x)
        return self.r(self.b(y) + residual)


class AutocastOffLater(WithSum):
    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        y = self.c(x)
        with torch.autocast("cpu", enabled=False):
            return self.r(self.b(y) + residual)


@pytest.mark.parametrize("kind", [WithSum, AutocastOff, AutocastOffLater])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_autocast_gives_the_dtypes_of_the_layers(kind: type[Chain], dtype: torch.dtype) -> None:
    theirs, ours = pair(kind().float())
    x, residual = images().float(), torch.randn(2, 4, 5, 4, dtype=dtype)
    for _ in range(3):
        with torch.autocast("cpu", torch.bfloat16):
            expected, result = theirs(x, residual), ours(x, residual)
        assert result.dtype is expected.dtype
        torch.testing.assert_close(result, expected, rtol=0.05, atol=0.05)


def test_the_layer_gives_them_too() -> None:
    layer = genesis.torch.ConvBNReLU(3, 4, 3)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.ones(1, 3, 4, 4), torch.ones(1, 4, 4, 4)).dtype is torch.float32


# --- gradients --------------------------------------------------------------------------------------------------------
def test_forward_gradients_and_transforms() -> None:
    nets, x = pair(Chain().eval()), images()
    found: list[list[Any]] = []
    for net in nets:
        with forward_ad.dual_level():
            y = net(forward_ad.make_dual(x, torch.ones_like(x)))
            results = [forward_ad.unpack_dual(y).tangent]
        results.append(torch.func.vmap(lambda each, net=net: net(each[None])[0])(x))
        results.append(torch.func.jvp(net, (x,), (x,))[1])
        results.append(torch.func.grad(lambda each, net=net: net(each).square().sum())(x))
        weights = dict(net.named_parameters())
        results.append(
            torch.func.grad(lambda each, net=net: torch.func.functional_call(net, each, x).sum())(weights)["c.weight"]
        )
        found.append(results)
    torch.testing.assert_close(found[1], found[0])
    layer = genesis.torch.ConvBNReLU(3, 4, 3, dtype=torch.float64).eval()
    with forward_ad.dual_level():
        assert forward_ad.unpack_dual(layer(forward_ad.make_dual(x, torch.ones_like(x)))).tangent is not None


@pytest.mark.parametrize("when", ["before the norm", "before the activation"])
def test_inputs_changed_in_place_are_never_silent(when: str) -> None:
    class Changes(Chain):
        def forward(self, x: Tensor) -> Tensor:
            y = self.c(x)
            if when == "before the norm":
                x.mul_(2.0)
            y = self.b(y)
            if when == "before the activation":
                x.mul_(2.0)
            return self.r(y)

    theirs, ours = pair(Changes())
    x = images()
    if when == "before the norm":
        with pytest.raises(RuntimeError, match="convolution 'c': its input, weight or bias was changed in place"):
            ours(x.clone())
        theirs(x.clone())
        ours.b.load_state_dict(theirs.b.state_dict())
    for _ in range(2):
        torch.testing.assert_close(ours(x.clone()), theirs(x.clone()))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            ours(x.clone()).sum().backward()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            theirs(x.clone()).sum().backward()


class OntoTheInput(Chain):
    def forward(self, x: Tensor) -> Tensor:
        x = x * 1
        y = self.r(self.b(self.c(x)))
        x.add_(1.0)
        return y * x.sum()


def test_what_a_frozen_convolution_read_may_change() -> None:
    """Its norm's backward doesn't read it."""
    theirs, ours = pair(OntoTheInput())
    for net in (theirs, ours):
        net.c.requires_grad_(False)
    agree(theirs, ours, images())


def test_random_forwards(device: str) -> None:
    found = Counter(map(fuzz_forwards.run, range(40 if device == "cpu" else 5)))
    assert found["same"] > found["refused"]
