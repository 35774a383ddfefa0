"""Compare fused networks of other packages with what they were: `python -m tests.torch.zoo`.

Each network runs in a process of its own, in float64, so that a difference is a fault and not rounding: training
steps, an evaluation, a training step again; results, gradients, buffers and the random stream must be those of an
unfused copy. Then the fused network under torch.compile (AOTAutograd without a code generator) and torch.export, and
what unfuse() gives back. Where the plain network fails in the same place, or ends the process, that is not held
against the fused one; nor where a part is computed in float32, what the plain one shows in another order of memory.

In float32 and channels-last the errors of both to float64 are compared. Results and running statistics of the fused
network are no farther than twice the plain one's, with every input. A gradient's error is no such measure: where one
input of a ReLU is so near zero that rounding decides its sign, all gradients before it differ, by up to a thousand
times what sums lose, in either network. So of gradients the least errors over several inputs are compared.
"""

from __future__ import annotations

import argparse
import copy
import io
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import genesis.torch.dynamo
from genesis.torch import bridge
from tests.torch.zoo_networks import MOST_PARAMETERS, Network, networks

TOLERANCE = 1e-7  # float64, through up to 300 layers with batch statistics of few pixels
ROUNDING = 1e-12  # of the largest gradient, for one that is zero otherwise, as of a bias before batch norm
LOST = 1e-7  # in float32, relative: less is one rounding
NOT_RUN = "not compared"
MOST_INPUTS = 8  # until the gradients of one are free of such a difference, in float32
CHECKS = ("eager", "float32", "compile", "backend", "export", "dynamic", "unfuse", "onnx")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="networks, or beginnings of their names; default: all")
    parser.add_argument("--checks", default="eager,float32,unfuse", help=f"of {','.join(CHECKS)}")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one network")
    parser.add_argument("--jobs", type=int, default=1, help="networks at a time")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    chosen = [n for n in networks() if not arguments.names or n.name.startswith(tuple(arguments.names))]
    if arguments.child:
        bridge.activates = bridge.trains = lambda x: True  # on the CPU too, where PyTorch's layers would run
        bridge.convolves = lambda x, *how: True
        if arguments.plain:
            genesis.torch.fuse = lambda model, **options: model
        print(json.dumps(check(chosen[0], arguments.checks.split(","))))
        return 0
    bad = 0
    with ThreadPoolExecutor(arguments.jobs) as pool:
        running = {
            pool.submit(_in_a_process, network.name, arguments.checks, arguments.timeout): network for network in chosen
        }
        for done in as_completed(running):
            result = done.result()
            bad += result["verdict"] not in ("right", "too large", NOT_RUN)
            name, seconds = running[done].name, float(result["seconds"])
            print(f"{name:<44}{result['verdict']:<14}{seconds:6.1f} s  {result['detail']}", flush=True)
    print(f"{len(chosen)} networks, {bad} wrong or failed")
    return bad != 0


def _in_a_process(name: str, checks: str, timeout: float) -> dict[str, str]:
    begin = time.monotonic()
    return _verdict(name, checks, timeout) | {"seconds": str(time.monotonic() - begin)}


def _verdict(name: str, checks: str, timeout: float) -> dict[str, str]:
    whole = _child(name, [checks], timeout)
    if whole["verdict"] != "crash":
        return whole
    # PyTorch itself may end the process: oneDNN writes past its memory in some convolutions. The others are compared.
    found = []
    for each in checks.split(","):
        verdict = _child(name, [each], timeout)
        if verdict["verdict"] == "crash" and _child(name, [each, "--plain"], timeout)["verdict"] == "crash":
            verdict = {"verdict": NOT_RUN, "detail": f"{each}: the plain network crashes too"}
        found.append(verdict)
    worst = next((x for x in found if x["verdict"] not in ("right", NOT_RUN)), None)
    return worst or next((x for x in found if x["verdict"] == NOT_RUN), found[-1])


def _child(name: str, checks: list[str], timeout: float) -> dict[str, str]:
    command = [sys.executable, "-m", "tests.torch.zoo", "--child", name, "--checks", *checks]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=Path(__file__).parents[2])
    except subprocess.TimeoutExpired:
        return {"verdict": "timeout", "detail": ""}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"verdict": "crash", "detail": f"exit {done.returncode}: {' '.join(done.stderr.split())[-300:]}"}
    return json.loads(lines[-1])


def check(network: Network, checks: list[str]) -> dict[str, str]:
    """The verdict on one network, and what was fused or what went wrong."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    plain = network.build()
    if sum(x.numel() for x in plain.parameters()) > MOST_PARAMETERS:
        return {"verdict": "too large", "detail": ""}
    plain = plain.double()
    for module in plain.modules():
        if isinstance(module, nn.Dropout) and module.p == 1:
            module.p = 0.5
    fused = genesis.torch.fuse(copy.deepcopy(plain))
    input = torch.randn(2, 3, network.size, network.size, dtype=torch.float64)
    found = [f"{name}: {text}" for name in checks for text in CHECK[name](plain, fused, input)]
    failures = [text for text in found if NOT_RUN not in text]
    num_convs = sum(isinstance(x, nn.Conv2d) for x in plain.modules())
    summary = f"{num_convs} convolutions; {str(genesis.torch.report(fused)).splitlines()[0]}"
    if failures:
        return {"verdict": "wrong", "detail": "; ".join(failures)}
    return {"verdict": NOT_RUN if found else "right", "detail": "; ".join(found) or summary}


def _eager(plain: nn.Module, fused: nn.Module, input: Tensor) -> Iterator[str]:
    for round, training in enumerate((True, True, False, True)):
        what = f"step {round}{'' if training else ' (eval)'}"
        before = copy.deepcopy(plain)
        expected, found = (_outcome(model, input, training, seed=round) for model in (plain, fused))
        differences = list(_differences(what, expected, found))
        if differences and not isinstance(expected, str) and not isinstance(found, str):
            other = _outcome(_in_channels_last(before), _in_channels_last(input), training, seed=round)
            differences = list(_differences(what, expected, found, other))
        yield from differences


def _in_channels_last(x: Any) -> Any:
    """A network, or a batch, whose sums run in another order."""
    return x.to(memory_format=torch.channels_last)


def _outcome(model: nn.Module, input: Tensor, training: bool, seed: int) -> dict[str, Tensor] | str:
    """What a step leaves behind, by name; or why it failed."""
    model.train(training)
    torch.manual_seed(seed)
    left: dict[str, Tensor] = {}
    try:
        with torch.set_grad_enabled(training):
            results = [x for x in tree_leaves(model(input.clone())) if isinstance(x, Tensor)]
            left |= {f"result {i}": x.detach().clone() for i, x in enumerate(results)}
            if training:
                model.zero_grad()
                sum((x * torch.linspace(-1, 1, x.numel()).view(x.shape)).sum() for x in results).backward()
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    model = getattr(model, "_orig_mod", model)
    if training:
        left |= {f"gradient of {name}": x.grad for name, x in model.named_parameters() if x.grad is not None}
    left |= {f"buffer {name}": x.clone() for name, x in model.named_buffers()}
    return left | {"random stream": torch.get_rng_state()}


def _differences(what: str, plain: Any, fused: Any, other: Any = None) -> Iterator[str]:
    """What differs; other: what the plain network leaves behind in another order of memory.

    Some networks compute parts in float32, whatever they are given. There the order of sums shows.
    """
    if isinstance(plain, str):
        yield f"{NOT_RUN} ({what}: the plain network fails with {plain})"
        return
    if isinstance(fused, str):
        yield f"{what}: {fused}"
        return
    if plain.keys() != fused.keys():
        yield f"{what}: {sorted(plain.keys() ^ fused.keys())[:3]} on one side only"
        return
    largest = max([1.0, *(float(x.norm()) for name, x in plain.items() if name.startswith("gradient"))])
    bad = [name for name in plain if not _equal(plain[name], fused[name], ROUNDING * largest)]
    if isinstance(other, dict):
        bad = [name for name in bad if not _is_as_near(plain[name], fused[name], other.get(name))]
    if bad:
        yield f"{what}: {len(bad)} of {len(plain)} differ, first {bad[0]}"


def _equal(expected: Tensor, actual: Tensor, rounding: float) -> bool:
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        return False
    if not expected.dtype.is_floating_point:
        return bool(torch.equal(expected, actual))
    return bool((expected - actual).norm() <= TOLERANCE * expected.norm() + rounding)


def _is_as_near(expected: Tensor, actual: Tensor, other: Tensor | None) -> bool:
    """Whether it is no farther from what is expected than twice the distance of other."""
    if other is None or not expected.dtype.is_floating_point or expected.shape != actual.shape:
        return False
    return bool((expected - actual).norm() <= 2 * (expected - other).norm())


def _float32(plain: nn.Module, fused: nn.Module, input: Tensor) -> Iterator[str]:
    """What is farther from float64 than twice the plain network's, in channels-last."""
    single = copy.deepcopy(plain).float()
    for parameter in single.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    least = [float("inf"), float("inf")]
    for seed in range(MOST_INPUTS):
        torch.manual_seed(seed)
        images = torch.randn(input.shape).contiguous(memory_format=torch.channels_last)
        models = copy.deepcopy(single), genesis.torch.fuse(copy.deepcopy(single))
        exact = _outcome(copy.deepcopy(single).double(), images.double(), True, seed)
        found = [_outcome(model, images, True, seed) for model in models]
        failed = [each for each in (exact, *found) if isinstance(each, str)]
        if failed:
            yield found[1] if len(failed) == 1 and failed[0] is found[1] else f"{NOT_RUN} ({failed[0]})"
            return
        for kind in ("result", "buffer", "gradient"):
            errors = [_error(each, exact, kind) for each in found]
            if kind == "gradient":
                least = [min(pair) for pair in zip(least, errors, strict=True)]
            elif errors[1] > 2 * errors[0] + LOST:
                yield f"{kind}s {errors[1]:.1e} from float64, the plain network's {errors[0]:.1e}"
                return
        if least[1] <= 2 * least[0] + LOST:
            return
    yield f"gradients {least[1]:.1e} from float64, the plain network's {least[0]:.1e}"


def _error(found: Any, exact: Any, kind: str) -> float:
    """The distance of all that is of a kind, relative to their norm."""
    names = [name for name, x in exact.items() if name.startswith(kind) and x.dtype.is_floating_point]
    distance, norm = (
        sum(float(x.double().square().sum()) for x in each) ** 0.5
        for each in ([found[name] - exact[name] for name in names], [exact[name] for name in names])
    )
    return distance / max(norm, 1e-300)


def _compiled(plain: nn.Module, fused: nn.Module, input: Tensor) -> Iterator[str]:
    def outcome(model: nn.Module) -> Any:
        torch._dynamo.reset()
        return _outcome(torch.compile(copy.deepcopy(model), backend="aot_eager"), input, True, seed=7)

    expected = _outcome(copy.deepcopy(plain), input, True, seed=7)
    yield from _differences_unless_plain("torch.compile", expected, outcome(fused), lambda: outcome(plain))


def _differences_unless_plain(what: str, expected: Any, actual: Any, plain: Callable[[], Any]) -> Iterator[str]:
    """What differs from the plain network run eagerly, and from plain() too: compiling takes its time."""
    if list(_differences(what, expected, actual)):
        yield from _differences(what, plain(), actual)


def _by_backend(plain: nn.Module, fused: nn.Module, input: Tensor) -> Iterator[str]:
    """The plain network, by Genesis as a backend of torch.compile."""
    torch._dynamo.reset()
    options = {"compiler": "aot_eager"}
    compiled = torch.compile(copy.deepcopy(plain), backend=genesis.torch.dynamo.genesis, options=options)
    plain = copy.deepcopy(plain)
    for training in (True, False):
        found = list(
            _differences("backend", *(_outcome(model, input, training, seed=7) for model in (plain, compiled)))
        )
        yield from found
        if found:  # from here on their buffers differ
            return


def _exported(dynamic: bool) -> Callable[..., Iterator[str]]:
    def run(plain: nn.Module, fused: nn.Module, input: Tensor) -> Iterator[str]:
        shapes = ({0: torch.export.Dim("batch", min=2, max=64)},) if dynamic else None

        def outcome(model: nn.Module) -> Any:
            model = copy.deepcopy(model).eval()
            try:
                program = torch.export.export(model, (input,), dynamic_shapes=shapes).module()
                batch = torch.cat([input, input[:1]]) if dynamic else input
                with torch.no_grad():
                    return {f"result {i}": x for i, x in enumerate(tree_leaves(program(batch)))}
            except Exception as error:
                return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"

        with torch.no_grad():
            batch = torch.cat([input, input[:1]]) if dynamic else input
            results = copy.deepcopy(plain).eval()(batch)
        expected = {f"result {i}": x for i, x in enumerate(tree_leaves(results))}
        yield from _differences_unless_plain("torch.export", expected, outcome(fused), lambda: outcome(plain))

    return run


def _unfused(plain: nn.Module, fused: nn.Module, input: Tensor) -> Iterator[str]:
    """On a copy, since fused is used again."""
    back = genesis.torch.unfuse(copy.deepcopy(fused))
    ours, theirs = ({name: type(x) for name, x in model.named_modules()} for model in (back, plain))
    if ours != theirs:
        yield "other classes of modules"
    if [name for name, x in back.named_modules() if x.__dict__.keys() != plain.get_submodule(name).__dict__.keys()]:
        yield "other attributes of modules"
    if list(back.state_dict()) != list(plain.state_dict()):
        yield "another state_dict"


def _onnx(plain: nn.Module, fused: nn.Module, input: Tensor) -> Iterator[str]:
    """The nodes of what unfuse() gives back, by torch.onnx's exporter of traces, which needs the package onnx."""

    def nodes(model: nn.Module) -> Any:
        import onnx

        file = io.BytesIO()
        try:
            torch.onnx.export(model.eval(), (input,), file, dynamo=False)
        except Exception as error:
            return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        file.seek(0)
        return [node.op_type for node in onnx.load(file).graph.node]

    theirs, ours = nodes(copy.deepcopy(plain)), nodes(genesis.torch.unfuse(copy.deepcopy(fused)))
    if isinstance(theirs, str):
        yield f"{NOT_RUN} (onnx: the plain network fails with {theirs})"
    elif theirs != ours:
        yield f"onnx: {ours}"[:200] if isinstance(ours, str) else "onnx: other nodes"


CHECK = dict(
    zip(
        CHECKS,
        (_eager, _float32, _compiled, _by_backend, _exported(False), _exported(True), _unfused, _onnx),
        strict=True,
    )
)

if __name__ == "__main__":
    sys.exit(main())
