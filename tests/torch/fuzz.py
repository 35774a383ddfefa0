"""Fuse random models, do random things to them, compare with the unfused: `python -m tests.torch.fuzz`.

After each event a step of both models is compared: results, gradients, buffers, what hooks saw, the random stream. A
fused model may refuse with an error that names genesis.torch.unfuse; it may never be silently different. A failure
prints the command that repeats it.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

import genesis.torch
from genesis.settings import settings
from genesis.torch import bridge
from tests.torch.fuzz_events import EVENTS
from tests.torch.fuzz_models import ACTIVATIONS, BLOCKS, CHANNELS, draw
from tests.torch.fuzz_pools import Pools as Pools  # registers it
from tests.torch.simulated import PATCHES

STEPS = ("train", "train", "no_grad", "inference", "autocast", "double backward", "checkpoint", "unbatched", "mask")
TOLERANCE = 1e-8
_STEP, _JUMP = 1e-9, 1e-3  # to a neighbour, and what of its gradient is no slope
_LOOKS = ("seen", "last")  # attributes that forwards and hooks set
_IN_PLACE = "modified by an inplace operation"
_REPEATS = 2  # until the weights, which stay what they are, are folded and packed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", nargs="?", type=int, default=0, help="number of the first case")
    parser.add_argument("count", nargs="?", type=int, default=500)
    parser.add_argument("--simulated", action="store_true", help="by the CUDA backend, on a simulated device")
    parser.add_argument("--block", choices=BLOCKS, help="name of the first block of each model")
    arguments = parser.parse_args()
    first, count = arguments.first, arguments.count
    if arguments.simulated:
        settings.cuda = "simulated"
        for where, name, what in PATCHES:
            setattr(where, name, what)
        # PyTorch's gradient of hardsigmoid, the CPU backend's too, has float32's 1/6 in float64.
        ACTIVATIONS[ACTIVATIONS.index(nn.Hardsigmoid)] = nn.Sigmoid
    bridge.activates = bridge.trains = lambda x: True  # on the CPU too
    bad = refused = 0
    for seed in range(first, first + count):
        failure, refusals = case(seed, arguments.block)
        refused += refusals
        if failure:
            bad += 1
            options = " --simulated" if arguments.simulated else ""
            options += f" --block {arguments.block}" if arguments.block else ""
            print(f"python -m tests.torch.fuzz {seed} 1{options}  # {failure}", flush=True)
    print(f"{count} cases: {bad} failed, {refused} clear refusals")
    return bad != 0


def case(seed: int, first: str | None = None) -> tuple[str, int]:
    """What went wrong with the model of this number, if anything; and how often it refused clearly.

    first: the name of its first block.
    """
    rng = random.Random(seed)
    plain = draw(rng, first)
    fused = genesis.torch.fuse(copy.deepcopy(plain))
    history, refusals = "fuse", 0
    steps = ("eval",) if rng.random() < 0.2 else STEPS  # in a row: a step of training drops what is folded
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(rng.randint(2, 7)):
            step, step_seed = rng.choice(steps), rng.randrange(10**6)
            restore = _restorer(plain)
            theirs, ours = (_outcome(model, step, step_seed) for model in (plain, fused))
            history += f", {step}"
            difference = _difference(theirs, ours)
            if difference == "refused":
                return "", refusals + 1
            if "error" not in ours and _IN_PLACE in theirs.get("error", ""):  # ours don't need what was changed
                restore()
                with torch.autograd.graph.allow_mutation_on_saved_tensors():
                    difference = _difference(_outcome(plain, step, step_seed), ours)
            if difference.startswith("gradient of") and _is_at_a_kink(plain, fused, step, step_seed):
                return "", refusals
            if difference:
                return f"{[type(x).__name__ for x in plain.blocks]}: {history}: {difference}", refusals
            if "error" in theirs:
                if _state_difference(theirs, ours):  # they raised at places of their own: no more to compare
                    return "", refusals
                plain.zero_grad()  # nothing is promised of how far a backward came before it raised
                fused.zero_grad()
            name, event_seed = rng.choice(list(EVENTS)), rng.randrange(10**6)
            history += f", {name}"
            plain, failure = _play(name, plain, event_seed)
            fused, ours_failure = _play(name, fused, event_seed)
            if (failure is None) != (ours_failure is None):
                return f"{history}: {ours_failure or 'no error'} instead of {failure or 'none'}", refusals
    return "", refusals


def _restorer(model: nn.Module) -> Callable[[], None]:
    """A function that undoes what a step changes: buffers, and what was looked at."""
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    states = [(module.__dict__, _looked_at(module)) for module in model.modules()]

    def restore() -> None:
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        for state, before in states:
            for key in _LOOKS:
                state.pop(key, None)
            state.update(before)

    return restore


def _looked_at(module: nn.Module) -> dict[str, Any]:
    state = module.__dict__
    return {key: copy.copy(state[key]) for key in _LOOKS if key in state}


def _is_at_a_kink(plain: nn.Module, fused: nn.Module, step: str, seed: int) -> bool:
    """Is a gradient another one because an activation's argument is where its derivative jumps, but for rounding?

    It is if PyTorch's own gradients jump between two neighbours of the parameters, and ours are equal to them at both.
    """
    found = []
    for sign in (1, -2):  # from where the first has left them
        for model in (plain, fused):
            stream = torch.Generator().manual_seed(seed)
            for parameter in model.parameters():
                noise = torch.randn(parameter.shape, generator=stream, dtype=torch.float64)
                parameter.data.add_(noise.to(parameter.dtype), alpha=sign * _STEP)
        theirs, ours = (_outcome(model, step, seed) for model in (plain, fused))
        if "error" in theirs or _difference(theirs, ours):
            return False
        found.append({name: value for name, value in theirs.items() if name.startswith("gradient of")})
    return any(not _equal(found[1][name], value, _JUMP) for name, value in found[0].items())


def _play(name: str, model: nn.Module, seed: int) -> tuple[nn.Module, str | None]:
    try:
        return EVENTS[name](model, random.Random(seed)), None
    except Exception as error:
        return model, f"{type(error).__name__}: {error}"


def _outcome(model: nn.Module, step: str, seed: int) -> dict[str, Any]:
    """What a step computes and leaves behind, by name; with an error, if there was one, and where."""
    torch.manual_seed(seed)
    # Backward hooks make views, and of a view of one image torch's own gradients may be wrong (2.13, float64, groups).
    batch = 2 + seed % 2 if any(module._backward_hooks for module in model.modules()) else 1 + seed % 3
    x = torch.randn(batch, CHANNELS, 5, 4, dtype=torch.float64)
    mask = (torch.rand(batch, CHANNELS, 5, 4) < 0.7).double() if step == "mask" else None
    if step == "unbatched":
        x = x[0]
    if seed % 2:
        x = x.to(memory_format=torch.channels_last) if x.dim() == 4 else x
    model.zero_grad()
    if step == "eval":
        model.eval()
    x.requires_grad_(step not in ("no_grad", "inference", "eval") and seed % 5 > 0)
    found: dict[str, Any] = {}
    try:
        with _context(step):
            for _ in range(_REPEATS if step in ("no_grad", "eval") else 0):
                model(x, mask)
            result = model(x, mask)
            found["result"] = result.detach().clone()
            if result.requires_grad:
                found |= _gradients(model, x, result, step)
    except Exception as error:
        found |= {"error": f"{type(error).__name__}: {error}", "error in": "backward" if found else "forward"}
    found |= {f"buffer {name}": buffer.clone() for name, buffer in model.named_buffers()}
    for name, module in model.named_modules():
        found |= {f"{name}.{key}": value for key, value in _looked_at(module).items()}
    return found | {"random stream": torch.get_rng_state()}


def _gradients(model: nn.Module, x: Tensor, result: Tensor, step: str) -> Iterator[Any] | dict[str, Any]:
    loss = (result * torch.linspace(-1, 2, result.numel(), dtype=result.dtype).view(result.shape)).sum()
    if step == "double backward" and x.requires_grad:
        (grad,) = torch.autograd.grad(loss, x, create_graph=True)
        loss = grad.square().sum()
    loss.backward()
    found = {f"gradient of {name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    return found | ({} if x.grad is None else {"gradient of the input": x.grad})


def _context(step: str) -> contextlib.AbstractContextManager[Any]:
    if step in ("no_grad", "eval"):
        return torch.no_grad()
    if step == "inference":
        return torch.inference_mode()
    if step == "autocast":
        return torch.autocast("cpu", torch.bfloat16)
    return contextlib.nullcontext()


def _difference(theirs: dict[str, Any], ours: dict[str, Any]) -> str:
    if "error" in ours and "genesis.torch.unfuse" in ours["error"]:
        return "refused"
    if theirs.get("error in") != ours.get("error in"):
        where = ours.get("error in", "neither")
        return f"error in {where}: {ours.get('error', 'none')}, instead of: {theirs.get('error', 'none')}"[:400]
    return "" if theirs.get("error in") == "forward" else _state_difference(theirs, ours)


def _state_difference(theirs: dict[str, Any], ours: dict[str, Any]) -> str:
    # PyTorch's ReLU hands on its second derivative: zeros.
    zeros = [name for name in theirs.keys() - ours.keys() if name.startswith("gradient") and not theirs[name].any()]
    theirs = {name: value for name, value in theirs.items() if name not in zeros}
    if theirs.keys() != ours.keys():
        return f"only on one side: {sorted(theirs.keys() ^ ours.keys())[:3]}"
    names = [name for name in theirs if "error" not in name]
    if "result" in theirs and theirs["result"].stride() != ours["result"].stride():
        return "the result's strides differ"
    return next((f"{name} differs" for name in names if not _equal(theirs[name], ours[name])), "")


def _equal(theirs: Any, ours: Any, tolerance: float = TOLERANCE) -> bool:
    if not isinstance(theirs, Tensor):
        theirs, ours = (torch.tensor(value, dtype=torch.float64) for value in (theirs, ours))
    if type(ours) is not Tensor or theirs.shape != ours.shape or theirs.dtype != ours.dtype:
        return False
    if not theirs.dtype.is_floating_point:
        return bool(torch.equal(theirs, ours))
    tolerance = 0.1 if theirs.dtype == torch.bfloat16 else tolerance
    return bool(torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance, equal_nan=True))


if __name__ == "__main__":
    sys.exit(main())
