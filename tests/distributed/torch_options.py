"""What the ranks run: fused PyTorch models under the options of PyTorch's DistributedDataParallel and fully_shard."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

import genesis.torch
from genesis.torch import bridge
from tests.distributed.torch_programs import Net, join

Wrap = Callable[[nn.Module], nn.Module]


class Optional(Net):
    """Net with a block that may be checkpointed or run twice, and a side that ranks use in turn.

    Args:
        kept: how the block is checkpointed: "reentrant", "not reentrant" or "".
        twice: the block runs twice.
        side: "always", "in turn", or "never": then its parameters have no gradients.
    """

    def __init__(self, kept: str = "", twice: bool = False, side: str = "always") -> None:
        super().__init__()
        self.kept, self.twice, self.used = kept, twice, side
        self.side = nn.Sequential(nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU())

    def block(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.conv(x)) + x)

    def forward(self, x: torch.Tensor, turn: int = 0) -> torch.Tensor:
        x = self.first(x)
        x = checkpoint(self.block, x, use_reentrant=self.kept == "reentrant") if self.kept else self.block(x)
        x = self.block(x) if self.twice else x
        x = self.side(x) if self.used == "always" or (self.used == "in turn" and turn % 2) else x
        y: torch.Tensor = self.last(self.pool(x).flatten(1))
        return y


def ddp(**options: Any) -> Wrap:
    return lambda model: nn.parallel.DistributedDataParallel(model, **options)


def compressed(model: nn.Module) -> nn.Module:
    def hook(state: object, bucket: torch.distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
        return bf16_compress_hook(None, bucket)  # whose own name is refused without NCCL

    hook.__annotations__ = {}
    wrapped = nn.parallel.DistributedDataParallel(model)
    wrapped.register_comm_hook(None, hook)
    return wrapped


def sharded(**options: Any) -> Wrap:
    def wrap(model: nn.Module) -> nn.Module:
        mesh = torch.distributed.init_device_mesh("cpu", (torch.distributed.get_world_size(),))
        for part in (model.first, model.last):
            fully_shard(part, mesh=mesh, **options)
        fully_shard(model, mesh=mesh, **options)
        return model

    return wrap


def in_bfloat16(model: nn.Module) -> nn.Module:
    """The parameters of all but the norms are gathered in bfloat16, as one does with batch norms."""
    mesh = torch.distributed.init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            fully_shard(part, mesh=mesh, mp_policy=MixedPrecisionPolicy(cast_forward_inputs=False))
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, torch.float32)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


class Case(NamedTuple):
    """A wrapper, the network's options, whether gradients are accumulated over two batches or kept as zeros, and how
    many chains run as one op: none that a checkpoint without reentrance holds."""

    wrap: Wrap
    network: dict[str, Any] = types.MappingProxyType({})  # type: ignore[assignment]
    accumulates: bool = False
    keeps: bool = False
    num_fused: int = 3
    dtype: torch.dtype = torch.float64
    tolerance: float = 1e-12


_KEPT, _TWICE, _TURNS = {"kept": "not reentrant"}, {"twice": True}, {"side": "in turn"}
CASES: dict[str, Case] = {
    "unused": Case(ddp(find_unused_parameters=True), _TURNS),
    "unused, views": Case(ddp(find_unused_parameters=True, gradient_as_bucket_view=True), _TURNS, keeps=True),
    "unused, checkpointed": Case(ddp(find_unused_parameters=True), {**_KEPT, **_TURNS}, num_fused=2),
    "static": Case(ddp(static_graph=True), _TWICE),
    "static, unused": Case(ddp(static_graph=True), {"side": "never"}),
    "static, checkpointed": Case(ddp(static_graph=True), {"kept": "reentrant", "twice": True}),
    "no_sync": Case(ddp(), accumulates=True),
    "no_sync, views": Case(ddp(gradient_as_bucket_view=True), accumulates=True, keeps=True),
    "small buckets": Case(ddp(bucket_cap_mb=1e-4)),
    "checkpointed": Case(ddp(), _KEPT, num_fused=2),
    "own buffers": Case(ddp(broadcast_buffers=False)),
    "bfloat16 gradients": Case(compressed, tolerance=1e-2),
    "sharded, accumulated": Case(sharded(), accumulates=True),
    "sharded, gathered once": Case(sharded(reshard_after_forward=False), _TWICE),
    "sharded, checkpointed": Case(sharded(), _KEPT, num_fused=2),
    "sharded in bfloat16": Case(in_bfloat16, num_fused=0, dtype=torch.float32, tolerance=1e-2),
}


def _batch(rank: int, number: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(10 * number + rank)
    drawn = (torch.randn(shape, generator=draw, dtype=torch.float64) for shape in ((4, 2, 4, 4), (4, 3)))
    inputs, targets = (each.to(dtype) for each in drawn)
    return inputs, targets


def _gradients(rank: int, case: Case, model: nn.Module) -> dict[str, torch.Tensor | None]:
    """The gradients of each step, and the state in the end."""
    stepper, found = torch.optim.SGD(model.parameters(), lr=0.1), {}

    def backward(number: int) -> None:
        inputs, targets = _batch(rank, number, case.dtype)
        turn = (number + rank,) if case.network.get("side") == "in turn" else ()
        nn.functional.mse_loss(model(inputs, *turn), targets).backward()

    for number in range(2):
        stepper.zero_grad(set_to_none=not case.keeps)
        if case.accumulates and hasattr(model, "no_sync"):
            with model.no_sync():
                backward(number + 5)
        elif case.accumulates:
            model.set_requires_gradient_sync(False)
            backward(number + 5)
            model.set_requires_gradient_sync(True)
        backward(number)
        found |= {f"gradient {number} of {name}": parameter.grad for name, parameter in model.named_parameters()}
        found = {name: None if tensor is None else _whole(tensor) for name, tensor in found.items()}
        stepper.step()
    return {**found, **{name: _whole(tensor) for name, tensor in model.state_dict().items()}}


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole.detach().clone()


def options(rank: int, size: int) -> list[str]:
    """Each case's gradients are the plain model's in the same wrapper. Returns: what was wrong."""
    join(rank, size)
    bridge.trains = lambda x: True  # on the CPU too
    wrong = []
    for name, case in CASES.items():
        torch.manual_seed(0)
        plain = Optional(**case.network).to(case.dtype)
        model = genesis.torch.fuse(copy.deepcopy(plain))
        expected, found = (_gradients(rank, case, case.wrap(each)) for each in (plain, model))
        num_fused = len(genesis.torch.report(model).fused)
        if num_fused != case.num_fused:
            wrong.append(f"{name}: {num_fused} fused")
        if found.keys() != expected.keys():
            wrong.append(f"{name}: {found.keys() ^ expected.keys()}")
        wrong += [f"{name}: {key}" for key in expected if not _close(found.get(key), expected[key], case.tolerance)]
    return wrong


def _close(one: torch.Tensor | None, other: torch.Tensor | None, tolerance: float) -> bool:
    if one is None or other is None:
        return one is other
    return one.dtype is other.dtype and torch.allclose(one, other, rtol=tolerance, atol=tolerance)


def synchronized(rank: int, size: int) -> list[str]:
    """Batch norms that are converted before or after fuse() run as the plain ones: in inference like batch norm; in
    training by PyTorch's own forward, which has no kernels for the CPU and says so. Returns: what it said."""
    join(rank, size)
    bridge.trains = lambda x: True
    convert, said = nn.SyncBatchNorm.convert_sync_batchnorm, []
    torch.manual_seed(0)
    plain, x = Net().double(), _batch(rank, 0, torch.float64)[0]
    ran = genesis.torch.fuse(copy.deepcopy(plain))
    ran(x).sum().backward()
    ran.load_state_dict(plain.state_dict())
    after = genesis.torch.fuse(copy.deepcopy(plain))
    layer = genesis.torch.ConvBNReLU(2, 4, 3, padding=1).double()
    layer.load_state_dict(plain.first.state_dict())
    for model in (convert(ran), convert(after), genesis.torch.fuse(convert(copy.deepcopy(plain))), convert(layer)):
        expected = (plain.first if model is layer else plain).eval()
        with torch.no_grad():
            torch.testing.assert_close(model.eval()(x), expected(x), rtol=1e-12, atol=1e-12)
        with pytest.raises(ValueError, match="SyncBatchNorm") as error:
            model.train()(x)
        said.append(str(error.value))
    return said
