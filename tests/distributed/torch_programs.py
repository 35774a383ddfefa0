"""What the ranks run: fused and compiled PyTorch models in PyTorch's own DistributedDataParallel and fully_shard."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.distributed
from torch import nn

import genesis.torch
from genesis import distributed as dist
from genesis.torch import bridge
from tests.distributed.programs import batch, mine


class Net(nn.Module):
    """Chains with and without a sum, pooling, and layers that stay."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU())
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.pool, self.last = nn.MaxPool2d(2), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = torch.relu(self.norm(self.conv(x)) + x)
        y: torch.Tensor = self.last(self.pool(x).flatten(1))
        return y


def join(rank: int, size: int) -> None:
    """PyTorch's own process group."""
    if not torch.distributed.is_initialized():
        store = torch.distributed.PrefixStore("torch", dist.group.require("test")._store)
        torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)


def in_ddp(model: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model)


def sharded(model: nn.Module) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for part in (model.first, model.last):
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def compiled(model: nn.Module) -> nn.Module:
    return genesis.torch.compile(model, compiler="aot_eager")


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {"ddp": in_ddp, "fully_shard": sharded}
FASTER: dict[str, Callable[[nn.Module], nn.Module]] = {"fuse": genesis.torch.fuse, "compile": compiled}


def learned(rank: int, size: int, model: nn.Module, steps: int) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The losses, and the whole state in the end."""
    stepper = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(steps):
        inputs, targets = (mine(rank, size, part).to_torch() for part in batch(step, "float64", image=True))
        stepper.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        stepper.step()
        losses.append(loss.item())
    model.eval()
    losses.append(float(model(inputs).detach().sum()))
    state = {}
    for name, tensor in model.state_dict().items():
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        state[name.removeprefix("module.")] = whole.detach().clone()
    return losses, state


def wrapped(rank: int, size: int, wrapper: str, faster: str, wraps_first: bool = False) -> int:
    """A faster model in a wrapper learns as the plain one in it. Returns: chains that were fused."""
    join(rank, size)
    bridge.trains = lambda x: True  # on the CPU too
    torch.manual_seed(0)
    plain = Net().double()
    model = copy.deepcopy(plain)
    expected = learned(rank, size, WRAPPERS[wrapper](plain), 3)
    if wraps_first:
        outer = FASTER[faster](WRAPPERS[wrapper](model))
    else:
        outer = WRAPPERS[wrapper](FASTER[faster](model))
    losses, state = learned(rank, size, outer, 3)
    assert torch.allclose(torch.tensor(losses), torch.tensor(expected[0]), rtol=1e-10), (losses, expected[0])
    assert state.keys() == expected[1].keys()
    for name, tensor in state.items():
        assert torch.allclose(tensor, expected[1][name], rtol=1e-10, atol=1e-12), name
    return len(genesis.torch.report(outer if wraps_first else model).fused)
