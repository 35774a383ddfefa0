"""A model in a training loop, plain or compiled: optimizer and scaler, what it shows in a step, what it holds."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import genesis.torch
from tests.torch.fuzz_loop_models import CHANNELS, Model

KINDS = ("sgd", "momentum", "nesterov", "adamw", "adam", "rmsprop")


@dataclass
class Options:
    """How a loop trains; changes set them anew. Both sides have equal ones."""

    kind: str = "sgd"
    how: str = "foreach"
    rate: float = 0.05
    zero: str = "none"  # or "zeros", "before", "by hand", "never"
    every: int = 1  # backward passes for a step of the optimizer
    clip: str = ""
    scaled: bool = False
    autocast: bool = False
    size: int = 4
    shape: tuple[int, int] = (6, 5)
    layout: str = "plain"
    cross_entropy: bool = True
    holds: str = ""  # what the program keeps: "outputs", "gradients", "losses"


def draw_options(rng: random.Random, narrow: bool) -> Options:
    """narrow: autocast has types to choose."""
    return Options(
        kind=rng.choice(KINDS),
        how=rng.choice(("foreach", "foreach", "loop", "fused")),
        rate=rng.choice((0.01, 0.05)),
        zero=rng.choice(("none", "none", "zeros", "before", "by hand")),
        every=rng.choice((1, 1, 1, 2, 3)),
        clip=rng.choice(("", "", "norm", "value")),
        scaled=rng.random() < 0.2,
        autocast=narrow and rng.random() < 0.3,
        size=rng.choice((2, 4)),
        layout=rng.choice(("plain", "plain", "plain", "channels_last", "strided")),
        cross_entropy=rng.random() < 0.5,
        holds=rng.choice(("", "outputs", "gradients", "losses", "everything")),
    )


class StopError(Exception):
    """The program's own error, in the middle of a step."""


@dataclass
class Side:
    """A model in a loop. seen: what it shows in this step, copied as it came. held: tensors of earlier steps."""

    model: Any
    device: str
    dtype: torch.dtype
    part: str  # that is compiled; "": the whole
    is_ours: bool
    options: Options = field(default_factory=Options)
    optimizer: Any = None
    scaler: Any = None
    count: int = 0
    other: Any = None
    average: Any = None
    saved: Any = None
    late: Any = None
    handles: list[Any] = field(default_factory=list)
    seen: dict[str, Tensor] = field(default_factory=dict)
    held: list[tuple[str, Tensor, Tensor]] = field(default_factory=list)
    changed: list[Tensor] = field(default_factory=list)  # by the program, in place
    history: dict[str, int] = field(default_factory=dict)

    def compile(self) -> None:
        if self.is_ours:
            for name in self.part.split("+"):
                genesis.torch.compile(self.model.get_submodule(name))

    def begin(self, options: Options) -> None:
        self.options, self.count, self.late = copy.copy(options), 0, None
        self.held.clear()
        self.changed.clear()
        self.model.train()
        self.model.requires_grad_(True)
        self.model.zero_grad()
        self.renew()

    def renew(self) -> None:
        """A new optimizer, and a scaler."""
        how, kind, parameters = self.options, self.options.kind, list(self.model.parameters())
        ways: dict[str, Any] = {"foreach": {"foreach": True}, "loop": {"foreach": False}, "fused": {"fused": True}}
        way, rate = ways[how.how], how.rate
        groups = [{"params": parameters[::2]}, {"params": parameters[1::2], "lr": rate / 2, "weight_decay": 0.01}]
        if kind == "rmsprop":
            way = ways["foreach"] if how.how == "fused" else way
            self.optimizer = torch.optim.RMSprop(groups, rate / 10, eps=1e-2, **way)
        elif kind.startswith("adam"):
            of: Any = torch.optim.AdamW if kind == "adamw" else torch.optim.Adam
            self.optimizer = of(groups, rate / 5, eps=1e-2, **way)  # as gradients may be nothing but rounding
        else:
            momentum = {"momentum": 0.9, "nesterov": kind == "nesterov"} if kind != "sgd" else {}
            self.optimizer = torch.optim.SGD(groups, rate, **momentum, **way)
        self.scaler = torch.amp.GradScaler(self.device, init_scale=8.0, growth_interval=3) if how.scaled else None

    # --- what a program does ---
    def show(self, name: str, value: Any, holds: bool = False) -> None:
        """Copy what a program could print, and hold it."""
        for leaf in tree_leaves(value):
            if isinstance(leaf, Tensor):
                number = self.history[name] = self.history.get(name, 0) + 1
                self.seen[f"{name} {number}"] = copied = leaf.detach().clone()
                if holds:
                    self.held.append((f"{name} {number}", leaf, copied))

    def holding(self, *kinds: str) -> bool:
        return self.options.holds in (*kinds, "everything")

    def autocast(self) -> Any:
        return torch.autocast(self.device, torch.float16, enabled=self.options.autocast and self.dtype is torch.float32)

    def zero(self) -> None:
        way = self.options.zero
        if way == "by hand":
            for parameter in self.model.parameters():
                parameter.grad = None
        elif way != "never":
            self.optimizer.zero_grad(set_to_none=way != "zeros")

    def call(self, x: Tensor, model: Any = None) -> Any:
        with self.autocast():
            outputs = (self.model if model is None else model)(x)
        self.show("output", outputs, self.holding("outputs"))
        return outputs

    def loss(self, outputs: Any, seed: int, first: bool = False) -> Tensor:
        """Of all outputs, or the first that needs a gradient."""
        leaves = [x for x in tree_leaves(outputs) if isinstance(x, Tensor) and x.requires_grad]
        stream = torch.Generator().manual_seed(seed)
        total: Any = 0
        for leaf in leaves[: 1 if first else None]:
            leaf = leaf.to(self.dtype)
            if self.options.cross_entropy and leaf.dim() == 2 and leaf.shape[0] == self.options.size:
                target = torch.randint(0, leaf.shape[1], leaf.shape[:1], generator=stream)
                total = total + nn.functional.cross_entropy(leaf, target.to(self.device))
            else:
                target = torch.randn(leaf.shape, generator=stream, dtype=torch.float64).to(self.device, self.dtype)
                total = total + (leaf - target).square().mean()
        self.show("loss", total, self.holding("losses"))
        return total

    def backward(self, loss: Tensor, **how: Any) -> None:
        if not loss.requires_grad:
            return
        if self.options.every > 1:
            loss = loss / self.options.every
        (loss if self.scaler is None else self.scaler.scale(loss)).backward(**how)

    def show_gradients(self) -> None:
        """Those that are held may change as PyTorch's do: in place, when more is added to them."""
        for name, x in self.model.named_parameters():
            if x.grad is not None:
                self.seen[f"gradient of {name}"] = x.grad.detach().clone()
                if self.holding("gradients"):
                    self.held.append((f"gradient of {name}", x.grad, x.grad))

    def update(self) -> None:
        """The optimizer's step, after so many backward passes."""
        self.count += 1
        self.show_gradients()
        if self.count % self.options.every:
            return
        one, scaler, parameters = self.optimizer, self.scaler, list(self.model.parameters())
        if scaler is not None:
            if not any(x.grad is not None for group in one.param_groups for x in group["params"]):
                return  # which it refuses
            scaler.unscale_(one)
        if self.options.clip == "norm":
            nn.utils.clip_grad_norm_(parameters, 0.5)
        elif self.options.clip == "value":
            nn.utils.clip_grad_value_(parameters, 0.05)
        if scaler is None:
            one.step()
        else:
            scaler.step(one)
            scaler.update()
        if self.average is not None:
            self.average.update_parameters(self.model)
        if self.options.zero != "before":
            self.zero()

    def train(self, x: Tensor, seed: int, forward: Callable[[Tensor], Any] | None = None, first: bool = False) -> None:
        """An ordinary step. first: the loss is of one output only."""
        if self.options.zero == "before" and self.count % self.options.every == 0:
            self.optimizer.zero_grad()
        outputs = self.call(x) if forward is None else forward(x)
        self.backward(self.loss(outputs, seed, first))
        self.update()

    def images(self, seed: int, size: int | None = None, shape: tuple[int, int] | None = None) -> Tensor:
        """A batch; equal on both sides."""
        how, stream = self.options, torch.Generator().manual_seed(seed)
        size, (height, width) = how.size if size is None else size, how.shape if shape is None else shape
        wide = 2 * width if how.layout == "strided" else width
        x = torch.randn(size, 3, height, wide, generator=stream, dtype=torch.float64).to(self.device, self.dtype)
        if how.layout == "channels_last":
            return x.to(memory_format=torch.channels_last)
        return x[..., ::2] if how.layout == "strided" else x

    def state(self) -> Iterator[tuple[str, Tensor]]:
        for name, x in self.model.named_parameters():
            yield f"parameter {name}", x.data
        yield from self.model.named_buffers()


def pair(rng: random.Random, device: str, dtype: torch.dtype) -> tuple[Side, Side]:
    """The plain and the compiled side of a model."""
    plain = Model(rng, smooth=False).to(device, dtype)
    part = rng.choice(("", "", "", "", "", "", "", "body", "body", "stem", "body+head", "stem+body"))
    if rng.random() < 0.2:
        plain = plain.to(memory_format=torch.channels_last)
    if rng.random() < 0.2:
        for parameter in rng.sample(list(plain.parameters()), 2):
            parameter.requires_grad_(False)
    other = nn.Sequential(nn.Conv2d(3, CHANNELS, 1), nn.Tanh(), nn.Flatten(), nn.LazyLinear(2)).to(device, dtype)
    other(torch.zeros(1, 3, 6, 5, device=device, dtype=dtype))
    sides = []
    for is_ours in (False, True):
        side = Side(copy.deepcopy(plain), device, dtype, part, is_ours)
        side.other = copy.deepcopy(other)
        side.compile()
        if is_ours:
            genesis.torch.compile(side.other)
        sides.append(side)
    return sides[0], sides[1]
