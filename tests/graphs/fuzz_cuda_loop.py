"""Training loops on CUDA, compiled or eager, for fuzz_cuda.py: a network, an optimizer, a step, and all they show."""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Callable
from typing import Any

import genesis
import genesis.nn.functional as F
from genesis import nn, optim
from tests.cuda.test_custom_op import square

OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "SGD": lambda params: optim.SGD(params, lr=0.05),
    "momentum": lambda params: optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "AdamW": lambda params: optim.AdamW(params, lr=0.01),
    "amsgrad": lambda params: optim.Adam(params, lr=0.01, amsgrad=True),
    "RMSprop": lambda params: optim.RMSprop(params, lr=0.01, momentum=0.9, centered=True),
    "Rprop": lambda params: optim.Rprop(params, lr=0.01),
    "Adadelta": lambda params: optim.Adadelta(params, lr=1.0),
    "LARS": lambda params: optim.LARS(params, lr=0.05, momentum=0.9),
    "NAdam": lambda params: optim.NAdam(params, lr=0.01),
    "RAdam": lambda params: optim.RAdam(params, lr=0.01, weight_decay=1e-2),
    "ASGD": lambda params: optim.ASGD(params, lr=0.01, t0=4),
    "Adafactor": lambda params: optim.Adafactor(params, lr=0.01),
}
MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3)),
    "conv": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2), nn.BatchNorm2d(4), nn.Flatten(), nn.Dropout(0.2),
        nn.Linear(8, 3),
    ),
}  # fmt: skip


class Loop:
    """A network, an optimizer and what is around the step; two of the same draws make the same loop."""

    def __init__(self, model: str, optimizer: str, step: str, is_compiled: bool) -> None:
        genesis.manual_seed(0)
        self.model = MODELS[model]().to("cuda")
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.average = [genesis.zeros_like(param) for param in self.model.parameters()]
        self.scaler = genesis.amp.GradScaler(init_scale=2.0**6, growth_interval=3)
        self.factor = 1.0
        self.batch, self.prepare, self.around = 4, as_drawn, contextlib.nullcontext
        self.thread, self.argument_requires_grad = False, False
        self.fails_in: str | None = None  # where the step raises
        self.after: Callable[[], None] = nothing  # a scheduler's step, say
        self.generator = genesis.Generator(device="cuda").manual_seed(3)
        self.drawn = genesis.Generator().manual_seed(5)  # on the CPU, which is faster than the simulated device
        self.mean = optim.swa_utils.AveragedModel(self.model)
        self.held: list[Any] = []
        function = STEPS[step]
        self.step: Any = genesis.compile(function) if is_compiled else function

    def take(self) -> list[Any]:
        x = self.prepare(genesis.randn(self.batch, 6, generator=self.drawn).to("cuda"))
        target = genesis.randint(0, 3, (self.batch,), generator=self.drawn).to("cuda")
        if self.argument_requires_grad:
            x.requires_grad_()
        try:
            result = self._in_thread(x, target) if self.thread else self._run(x, target)
        except (ValueError, TypeError, RuntimeError) as error:
            result = type(error).__name__
        try:
            self.after()
        except ValueError as error:  # a schedule of an optimizer that has got another group
            result = (result, str(error))
        self.held.append(result)
        return self.seen(result)

    def _run(self, x: genesis.Tensor, target: genesis.Tensor) -> Any:
        with self.around():
            return self.step(self, x, target)

    def _in_thread(self, x: genesis.Tensor, target: genesis.Tensor) -> Any:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            return pool.submit(self._run, x, target).result()

    def seen(self, result: Any) -> list[Any]:
        params = [param for group in self.optimizer.param_groups for param in group["params"]]
        found = [result, genesis.cuda.get_rng_state(), *self.model.parameters(), *self.model.buffers()]
        found += [*self.mean.parameters(), self.generator.get_state()]
        found += [param.grad for param in (*params, *self.model.parameters())] + self.average
        for param in params:
            found += sorted(self.optimizer.state.get(param, {}).items())
        return flat([found, self.scaler.get_scale()])


def as_drawn(x: genesis.Tensor) -> genesis.Tensor:
    return x


def nothing() -> None:
    """After a step."""


def flat(result: Any) -> list[Any]:
    """The leaves of what a step gives, with copies of tensors; a count on the device is a number."""
    if isinstance(result, dict):
        result = list(result.items())
    if isinstance(result, tuple) and len(result) == 2 and result[0] == "step":
        return [int(result[1])]
    if isinstance(result, list | tuple):
        return [leaf for part in result for leaf in flat(part)]
    return [result.detach().cpu().to_torch().clone() if isinstance(result, genesis.Tensor) else result]


# --- steps ------------------------------------------------------------------------------------------------------------
def descend(loop: Loop, x: genesis.Tensor, target: genesis.Tensor) -> Any:
    loop.optimizer.zero_grad()
    loss = F.cross_entropy(loop.model(x), target) * loop.factor
    loss.backward()
    if loop.fails_in == "step":
        raise ValueError("between backward and the optimizer's step")
    loop.optimizer.step()
    return loss


def clip(loop: Loop, x: genesis.Tensor, target: genesis.Tensor) -> Any:
    logits = loop.model(x)
    loss = F.cross_entropy(logits, target)
    loop.optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(loop.model.parameters(), 0.5)
    loop.optimizer.step()
    return {"loss": loss.detach(), "norm": norm, "logits": (logits.detach().T, x[1:], x, None, 2)}


def accumulate(loop: Loop, x: genesis.Tensor, target: genesis.Tensor) -> Any:
    loss = F.cross_entropy(loop.model(x), target) / 2
    loss.backward()
    return loss.detach()


def accumulate_in_place(loop: Loop, x: genesis.Tensor, target: genesis.Tensor) -> Any:
    F.cross_entropy(loop.model(x), target).backward()
    loop.optimizer.step()
    loop.optimizer.zero_grad(set_to_none=False)


def average(loop: Loop, x: genesis.Tensor, target: genesis.Tensor) -> Any:
    loss = descend(loop, x + genesis.randn(6, device="cuda") * 0.1, target)
    with genesis.no_grad():
        for mean, param in zip(loop.average, loop.model.parameters(), strict=True):
            mean.mul_(0.9).add_(param * 0.1)
    return loss


def scaled(loop: Loop, x: genesis.Tensor, target: genesis.Tensor) -> Any:
    loop.optimizer.zero_grad()
    with genesis.autocast("cuda", dtype=genesis.bfloat16):
        loss = F.cross_entropy(loop.model(x), target)
    loop.scaler.scale(loss).backward()
    loop.scaler.step(loop.optimizer)
    loop.scaler.update()
    return loss


def clip_values(loop: Loop, x: genesis.Tensor, target: genesis.Tensor) -> Any:
    """With a closure, checkpoints and an average of the weights."""

    def closure() -> genesis.Tensor:
        loop.optimizer.zero_grad()
        loss = F.cross_entropy(genesis.utils.checkpoint.checkpoint(loop.model, x, use_reentrant=False), target)
        loss.backward()
        nn.utils.clip_grad_value_(loop.model.parameters(), 0.01)
        return loss

    loss = loop.optimizer.step(closure)
    loop.mean.update_parameters(loop.model)
    return loss


def with_a_generator(loop: Loop, x: genesis.Tensor, target: genesis.Tensor) -> Any:
    return descend(loop, x * genesis.rand(x.shape, device="cuda", generator=loop.generator), target)


class Doubled(genesis.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: genesis.Tensor, factor: float) -> genesis.Tensor:
        ctx.save_for_backward(x)
        return x * x * factor

    @staticmethod
    def backward(ctx: Any, grad: genesis.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return grad * x * 3, None


def with_a_function(loop: Loop, x: genesis.Tensor, target: genesis.Tensor) -> Any:
    loop.optimizer.zero_grad()
    loss = F.cross_entropy(Doubled.apply(loop.model(x), loop.factor), target)
    loss.backward()
    loop.optimizer.step()
    return loss


def with_a_kernel(loop: Loop, x: genesis.Tensor, target: genesis.Tensor) -> Any:
    loop.optimizer.zero_grad()
    loss = F.cross_entropy(square(loop.model(x)), target)
    loss.backward()
    loop.optimizer.step()
    return loss


def evaluate(loop: Loop, x: genesis.Tensor, target: genesis.Tensor) -> Any:
    with genesis.no_grad():
        return loop.model(x), x


def read(loop: Loop, x: genesis.Tensor, target: genesis.Tensor) -> Any:
    loss = descend(loop, x, target)
    return loss.item()


STEPS: dict[str, Callable[..., Any]] = {
    each.__name__: each
    for each in (
        descend, clip, accumulate, accumulate_in_place, average, scaled, clip_values, with_a_generator,
        with_a_function, evaluate, with_a_kernel, read,
    )
}  # fmt: skip
EAGER = ("read",)  # no replays: drawn seldom
