"""Random training loops on CUDA, compiled and eagerly, in which one thing changes between two steps.

    python -m tests.graphs.fuzz_cuda --cases 1000 --seed 0        on the simulated device; --cuda auto: on a GPU

A loop draws a network, an optimizer and a step; before some of its steps, one of CHANGES is made. Results, parameters,
gradients, buffers, the optimizer's state, the scale and the random numbers that follow must be the eager loop's, bit
for bit, and results that were held must stay as they were. A loop that differs is printed with what repeats it.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import random
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

import genesis
import genesis.nn.functional as F
from genesis import growth, nn, optim
from genesis.settings import override

OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "SGD": lambda params: optim.SGD(params, lr=0.05),
    "momentum": lambda params: optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "AdamW": lambda params: optim.AdamW(params, lr=0.01),
    "amsgrad": lambda params: optim.Adam(params, lr=0.01, amsgrad=True),
    "RMSprop": lambda params: optim.RMSprop(params, lr=0.01, momentum=0.9, centered=True),
    "NAdam": lambda params: optim.NAdam(params, lr=0.01),  # computes with its count on the host: it is not captured
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
        self.batch, self.prepare, self.around = 4, _as_drawn, contextlib.nullcontext
        self.thread, self.argument_requires_grad = False, False
        self.held: list[Any] = []
        function = STEPS[step]
        self.step: Any = genesis.compile(function) if is_compiled else function

    def take(self) -> list[Any]:
        x = self.prepare(genesis.randn(self.batch, 6, device="cuda"))
        target = genesis.randint(0, 3, (self.batch,), device="cuda")
        if self.argument_requires_grad:
            x.requires_grad_()
        try:
            result = self._in_thread(x, target) if self.thread else self._run(x, target)
        except (ValueError, TypeError, RuntimeError) as error:
            result = type(error).__name__
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
        found = [result, genesis.rand(1, device="cuda"), *self.model.parameters(), *self.model.buffers()]
        found += [param.grad for param in (*params, *self.model.parameters())] + self.average
        for param in params:
            found += sorted(self.optimizer.state.get(param, {}).items())
        return flat([found, self.scaler.get_scale()])


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


def read(loop: Loop, x: genesis.Tensor, target: genesis.Tensor) -> Any:
    loss = descend(loop, x, target)
    return loss.item()


STEPS: dict[str, Callable[..., Any]] = {
    each.__name__: each for each in (descend, clip, accumulate, accumulate_in_place, average, scaled, read)
}


# --- changes ----------------------------------------------------------------------------------------------------------
def _as_drawn(x: genesis.Tensor) -> genesis.Tensor:
    return x


def another_batch(loop: Loop) -> None:
    loop.batch = 7 - loop.batch


def other_strides(loop: Loop) -> None:
    loop.prepare = _as_drawn if loop.prepare is not _as_drawn else lambda x: x.T.contiguous().T


def other_alignment(loop: Loop) -> None:
    loop.prepare = _as_drawn if loop.prepare is not _as_drawn else _shifted


def _shifted(x: genesis.Tensor) -> genesis.Tensor:
    wide = genesis.zeros(x.numel() + 1, device="cuda")
    wide[1:].copy_(x.view(-1))
    return wide[1:].view(x.shape)


def expanded(loop: Loop) -> None:
    loop.prepare = lambda x: x[:1].expand(x.shape)


def other_dtype(loop: Loop) -> None:
    loop.prepare = lambda x: x.half()


def wrong_shape(loop: Loop) -> None:
    loop.prepare = _as_drawn if loop.prepare is not _as_drawn else lambda x: x[:, 1:]


def infinite(loop: Loop) -> None:
    loop.prepare = _as_drawn if loop.prepare is not _as_drawn else lambda x: x.clamp(max=0.0) / 0.0


def a_view_of_a_parameter(loop: Loop) -> None:
    loop.prepare = lambda x: loop.model[0].weight.detach()[:3] if x.shape[0] == 3 else x


def an_argument_with_gradient(loop: Loop) -> None:
    loop.argument_requires_grad = not loop.argument_requires_grad


def other_mode(loop: Loop) -> None:
    loop.model.train(not loop.model.training)


def other_mode_of_dropout(loop: Loop) -> None:
    for module in loop.model:
        if isinstance(module, nn.Dropout):
            module.train(not module.training)


def more_dropout(loop: Loop) -> None:
    for module in loop.model:
        if isinstance(module, nn.Dropout):
            module.p = 0.5


def learning_rate(loop: Loop) -> None:
    for group in loop.optimizer.param_groups:
        group["lr"] *= 0.5


def rate_as_a_tensor(loop: Loop) -> None:
    for group in loop.optimizer.param_groups:
        group["lr"] = genesis.tensor(float(group["lr"]), dtype=genesis.float64)


def learning_rate_in_place(loop: Loop) -> None:
    rate_as_a_tensor(loop)
    for group in loop.optimizer.param_groups:
        group["lr"].mul_(0.5)


def weight_decay(loop: Loop) -> None:
    loop.optimizer.param_groups[0]["weight_decay"] = 0.1


def no_momentum(loop: Loop) -> None:
    if "nesterov" in loop.optimizer.param_groups[0]:
        loop.optimizer.param_groups[0]["momentum"] = 0.0


def another_group(loop: Loop) -> None:
    params = loop.optimizer.param_groups[0]["params"]
    if len(params) > 1:
        loop.optimizer.add_param_group({"params": [params.pop()], "lr": 0.02})


def replaced_parameter(loop: Loop) -> None:
    last = loop.model[-1]
    last.bias = nn.Parameter(last.bias.detach() * 0.5)
    loop.optimizer.add_param_group({"params": [last.bias], "lr": 0.02})
    loop.average[-1] = genesis.zeros_like(last.bias)


def replaced_array(loop: Loop) -> None:
    loop.model[-1].bias.data = loop.model[-1].bias.detach() + 1


def frozen(loop: Loop) -> None:
    weight = loop.model[-1].weight
    weight.requires_grad_(not weight.requires_grad)


def load_model(loop: Loop) -> None:
    loop.model.load_state_dict({name: value * 0.5 for name, value in loop.model.state_dict().items()})


def load_optimizer(loop: Loop) -> None:
    loop.optimizer.load_state_dict(loop.optimizer.state_dict())


def replaced_state(loop: Loop) -> None:
    """Not by load_state_dict, which makes all of the state anew."""
    for state in loop.optimizer.state.values():
        for key, entry in state.items():
            if key != "step" and isinstance(entry, genesis.Tensor):
                state[key] = entry * 0.5


def replaced_array_of_state(loop: Loop) -> None:
    for state in loop.optimizer.state.values():
        for key, entry in state.items():
            if key != "step" and isinstance(entry, genesis.Tensor):
                entry.data = entry * 0.5


def past_setattr(loop: Loop) -> None:
    for module in loop.model:
        if isinstance(module, nn.Dropout):
            vars(module)["p"] = 0.6


def other_order(loop: Loop) -> None:
    """Dropout comes before the layer that was before it."""
    modules = loop.model._modules
    names = list(modules)
    for name in (names[-3], names[-1]):
        modules[name] = modules.pop(name)


def load_scaler(loop: Loop) -> None:
    loop.scaler.load_state_dict({**loop.scaler.state_dict(), "scale": 16.0})


def eager_step(loop: Loop) -> None:
    x = genesis.randn(loop.batch, 6, device="cuda")
    F.cross_entropy(loop.model(x), genesis.zeros(loop.batch, dtype=genesis.int64, device="cuda")).backward()
    loop.optimizer.step()


def grown(loop: Loop) -> None:
    loop.model.train()
    example = genesis.randn(4, 6, device="cuda")
    layer = loop.model[0] if isinstance(loop.model[0], nn.Linear) else loop.model[1]
    growth.grow_width(loop.model, layer, factor=1.5, optimizer=loop.optimizer, example=example)
    loop.average = [genesis.zeros_like(param) for param in loop.model.parameters()]


def autocast_around(loop: Loop) -> None:
    around = loop.around
    loop.around = contextlib.nullcontext if around is not contextlib.nullcontext else _bfloat16


@contextlib.contextmanager
def _bfloat16() -> Iterator[None]:
    with genesis.autocast("cuda", dtype=genesis.bfloat16):
        yield


def another_stream(loop: Loop) -> None:
    loop.around = contextlib.nullcontext if loop.around is not contextlib.nullcontext else _on_a_stream


@contextlib.contextmanager
def _on_a_stream() -> Iterator[None]:
    side, here = genesis.cuda.Stream(), genesis.cuda.current_stream()
    side.wait_stream(here)
    with genesis.cuda.stream(side):
        yield
    here.wait_stream(side)


def held_gradients(loop: Loop) -> None:
    loop.held.append([param.grad for param in loop.model.parameters()])


def held_view(loop: Loop) -> None:
    loop.held.append([param.grad.view(-1) for param in loop.model.parameters() if param.grad is not None])


def cleared_gradients(loop: Loop) -> None:
    loop.optimizer.zero_grad()


def own_gradients(loop: Loop) -> None:
    for param in loop.model.parameters():
        param.grad = genesis.ones_like(param)


def changed_parameters(loop: Loop) -> None:
    with genesis.no_grad():
        for param in loop.model.parameters():
            param.mul_(0.9)


def another_number(loop: Loop) -> None:
    loop.factor *= 0.5


def in_a_thread(loop: Loop) -> None:
    loop.thread = not loop.thread


def another_seed(loop: Loop) -> None:
    genesis.manual_seed(7)


def a_hook(loop: Loop) -> None:
    loop.model.register_forward_hook(lambda module, args, output: output * 0.5)


def evaluation(loop: Loop) -> None:
    was = loop.model.training
    with genesis.no_grad():
        loop.model.eval()(genesis.ones(2, 6, device="cuda"))
    loop.model.train(was)


CHANGES: dict[str, Callable[[Loop], None]] = {
    each.__name__: each
    for each in (
        another_batch, other_strides, other_alignment, expanded, other_dtype, wrong_shape, infinite,
        a_view_of_a_parameter, an_argument_with_gradient, other_mode, other_mode_of_dropout, more_dropout,
        learning_rate, rate_as_a_tensor, learning_rate_in_place, weight_decay, no_momentum, another_group,
        replaced_parameter, replaced_array, frozen, load_model, load_optimizer, replaced_state,
        replaced_array_of_state, past_setattr, other_order, load_scaler, eager_step, grown, autocast_around,
        another_stream, held_gradients, held_view, cleared_gradients, own_gradients, changed_parameters,
        another_number, in_a_thread, another_seed, a_hook, evaluation,
    )
}  # fmt: skip


# --- cases ------------------------------------------------------------------------------------------------------------
class Case(NamedTuple):
    model: str
    optimizer: str
    step: str
    changes: tuple[str, ...]  # one before each step from the fifth on, or ""


class Outcome(NamedTuple):
    wrong: str
    num_replays: int


def drawn(seed: int) -> Case:
    generator = random.Random(seed)
    names = list(CHANGES)
    first = names[seed % len(names)]  # each of them comes often
    changes = [first, *generator.choices(names, k=2)]
    spread = [part for change in changes for part in (change, *[""] * generator.randint(1, 4))]
    return Case(generator.choice(list(MODELS)), generator.choice(list(OPTIMIZERS)), _step(generator), tuple(spread))


def _step(generator: random.Random) -> str:
    return generator.choice([name for name in STEPS if name != "read"] * 4 + ["read"])


def history(case: Case, is_compiled: bool) -> tuple[list[list[Any]], int]:
    """What each step leaves behind, and how many were replays."""
    loop = Loop(case.model, case.optimizer, case.step, is_compiled)
    found = [loop.take() for _ in range(4)]
    for change in case.changes:
        if change:
            CHANGES[change](loop)
        found.append(loop.take())
    found.append(flat(loop.held))
    if not is_compiled:
        return found, 0
    return found, loop.step.num_replays


def check(seed: int) -> Outcome:
    case = drawn(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            expected, _ = history(case, False)
            found, num_replays = history(case, True)
        except Exception:
            return Outcome(f"{case}\n{traceback.format_exc()}", 0)
    for index, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        if not all(map(is_same, mine, theirs)) or len(mine) != len(theirs):
            places = [place for place, pair in enumerate(zip(mine, theirs, strict=False)) if not is_same(*pair)]
            return Outcome(f"{case}\nstep {index} differs at {places}", num_replays)
    return Outcome("", num_replays)


def is_same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.dtype is not other.dtype or one.shape != other.shape or one.stride() != other.stride():
            return False
        return torch.equal(one.isnan(), other.isnan()) and torch.equal(one.nan_to_num(), other.nan_to_num())
    return bool(one == other)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--cuda", default="simulated", choices=("simulated", "auto"))
    given = parser.parse_args()
    wrong, replayed, done, start = 0, 0, 0, time.monotonic()
    with override(cuda=given.cuda):
        for seed in range(given.seed, given.seed + given.cases):
            if time.monotonic() - start > given.seconds:
                break
            outcome = check(seed)
            done, replayed = done + 1, replayed + (outcome.num_replays > 0)
            if outcome.wrong:
                wrong += 1
                print(f"python -m tests.graphs.fuzz_cuda --cases 1 --seed {seed}: {outcome.wrong}\n", flush=True)
    print(f"{done} loops, {replayed} of them replayed, {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
