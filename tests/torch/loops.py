"""Training loops as people write them: each yields what it computes, and nothing is looked at before it is over."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

device = "cpu"  # of the batches


class Net(nn.Module):
    """A residual block, dropout and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = F.relu(self.norm(self.conv(x)) + x)
        return self.head(x.mean((2, 3)))


def batch(index: int, size: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(index)
    x, y = torch.randn(size, 3, 6, 5, generator=generator), torch.randint(0, 3, (size,), generator=generator)
    return x.to(device), y.to(device)


Steps = Iterator[Any]


def plain(model: nn.Module) -> Steps:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for index in range(4):
        x, y = batch(index)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        yield loss


def adam_and_schedule(model: nn.Module) -> Steps:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
    for index in range(4):
        x, y = batch(index)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        yield loss


def autocast_and_scaler(model: nn.Module) -> Steps:
    """Of a model in float64, without autocast."""
    dtype = next(model.parameters()).dtype
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=8.0)
    for index in range(4):
        x, y = batch(index)
        x = x.to(dtype)
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=dtype is torch.float32):
            loss = F.cross_entropy(model(x).to(dtype), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        yield loss


def accumulation(model: nn.Module) -> Steps:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for index in range(6):
        x, y = batch(index)
        loss = F.cross_entropy(model(x), y) / 3
        loss.backward()
        yield loss
        if index % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()


def two_epochs(model: nn.Module) -> Steps:
    """With a smaller last batch, and an evaluation after each."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model.train()
        for index, size in enumerate((4, 4, 3)):
            x, y = batch(index, size)
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss
        model.eval()
        with torch.no_grad():
            for index, size in enumerate((4, 2)):
                yield model(batch(index, size)[0])
        with torch.inference_mode():
            yield model(batch(3)[0]).clone()


def evaluation_that_forgot_no_grad(model: nn.Module) -> Steps:
    model.eval()
    for index in range(12):
        output = model(batch(index)[0])
        yield output
    model.train()
    yield from plain(model)


def checkpoints(model: nn.Module) -> Steps:
    for index in range(4):
        x, y = batch(index)
        loss = F.cross_entropy(checkpoint(model, x.requires_grad_(), use_reentrant=index % 2 == 1), y)
        loss.backward()
        yield loss
        yield x.grad


def hooks_on_the_way(model: nn.Module) -> Steps:
    """Steps in which hooks hold or replace what is saved, among others: both ways are right."""
    yield from plain(model)
    yield from checkpoints(model)
    for index in range(2):
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x.clone(), lambda x: x):
            loss = model(batch(index)[0]).square().sum()
        loss.backward()
        yield loss
    yield from plain(model)


def two_forwards(model: nn.Module) -> Steps:
    """A backward for two passes, as a discriminator has it."""
    for index in range(3):
        real, fake = model(batch(index)[0]), model(batch(index + 9)[0])
        loss = (real - fake).square().mean()
        loss.backward()
        yield loss


def adversarial(model: nn.Module) -> Steps:
    """The backward of one half comes between forward and backward of the other."""
    halves: Any = model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for index in range(4):
        fake = halves.generator(batch(index)[0])
        real = halves.discriminator(batch(index + 9)[0])
        (halves.discriminator(fake.detach()) - real).square().mean().backward()
        loss = halves.discriminator(fake).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss
        yield fake


class Halves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.discriminator = Net()
        self.generator = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 3, 1))


class TwoHeads(Net):
    """Two outputs that train, and one that does not."""

    def __init__(self, with_constant: bool = True) -> None:
        super().__init__()
        self.other = nn.Conv2d(4, 3, 1)
        self.with_constant = with_constant

    def forward(self, x: Tensor) -> Any:
        features = self.stem(x)
        outputs = self.head(features.mean((2, 3))), self.other(features)
        return (outputs[0], x.mean((2, 3)), outputs[1]) if self.with_constant else outputs


def one_of_two_heads(model: nn.Module) -> Steps:
    """What moves a parameter without a gradient, momentum and weight decay, is to leave the idle head alone."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    for index in range(12):
        outputs = model(batch(index)[0])
        used = (outputs[0],), (outputs[-1],), (outputs[0], outputs[-1])
        loss = sum(x.square().mean() for x in used[index // 3 % 3])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss
        yield torch.tensor([parameter.grad is None for parameter in model.parameters()])


def frozen(model: Any) -> Steps:
    model.stem.requires_grad_(False)
    yield from plain(model)
    model.stem.requires_grad_(True)
    yield from plain(model)


def a_later_part_freezes(model: Any) -> Steps:
    """Both parts train in one backward; what is recorded anew must leave alone what the first keeps for it."""
    for index in range(12):
        model.discriminator.requires_grad_(index % 8 < 4)
        x, y = batch(index)
        model.zero_grad()
        F.cross_entropy(model.discriminator(model.generator(x)), y).backward()
        yield from [parameter.grad for parameter in model.generator.parameters()]


def input_gradients(model: nn.Module) -> Steps:
    for index in range(3):
        x = batch(index)[0].requires_grad_()
        yield torch.autograd.grad(model(x).square().sum(), x)[0]


def loaded_on_the_way(model: nn.Module) -> Steps:
    before = copy.deepcopy(model.state_dict())
    yield from plain(model)
    model.load_state_dict(before)
    yield from plain(model)


LOOPS = [
    plain, adam_and_schedule, autocast_and_scaler, accumulation, two_epochs, evaluation_that_forgot_no_grad,
    checkpoints, hooks_on_the_way, two_forwards, frozen, input_gradients, loaded_on_the_way,
]  # fmt: skip


def outcome(loop: Callable[[nn.Module], Steps], model: nn.Module) -> dict[str, Tensor]:
    """All that a loop yields, looked at only when it is over; gradients, parameters and buffers."""
    torch.manual_seed(7)
    kept = list(loop(model))
    found = {f"step {index}": value for index, value in enumerate(kept)}
    found |= {f"{name}.grad": x.grad for name, x in model.named_parameters() if x.grad is not None}
    return found | model.state_dict()


def agree(ours: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    assert sorted(ours) == sorted(theirs)
    for name, expected in theirs.items():
        close = {"rtol": tolerance, "atol": tolerance}
        torch.testing.assert_close(ours[name], expected, **close, msg=lambda text, name=name: f"{name}: {text}")


def distance(found: dict[str, Tensor], exact: dict[str, Tensor]) -> float:
    """The root mean square of the tensors' relative distances from exact ones."""
    assert sorted(found) == sorted(exact)
    pairs = [(found[name].double(), x.double()) for name, x in exact.items() if x.is_floating_point()]
    return torch.stack([(a - b).norm() / b.norm() for a, b in pairs]).square().mean().sqrt().item()


def tolerance(loop: Any) -> float:
    return 0.03 if loop is autocast_and_scaler else 1e-5
