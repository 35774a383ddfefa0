"""What each fast path gains on the host: its op with it and without, taking turns in one process, the least of many.

python benchmarks/bench_fast_paths.py           the CUDA backend with launches that do nothing: needs no GPU
python benchmarks/bench_fast_paths.py --once    one round, which only shows that each of them can be taken away

docs/fast-paths.md has the results. A path is taken away by compiling its function anew with other text in its place.
"""

from __future__ import annotations

import argparse
import inspect
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import genesis
from genesis import backends, nn
from genesis import functional as F
from genesis.autograd import function as autograd_function
from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import launching
from genesis.backends.cuda.launch import planned
from genesis.backends.cuda.ops.pointwise import launch as pointwise
from genesis.backends.cuda.ops.reduction import launch as reduction
from genesis.backends.cuda.runtime import array, memory
from genesis.functional import conv as functional_conv
from genesis.nn import module as nn_module

ROUNDS, SECONDS_PER_ROUND = 60, 0.004
Without = Callable[[], Any]  # a context in which the path is not taken


class FastPath(NamedTuple):
    name: str
    case: str  # the op that it is measured with
    without: Without


def code_without(function: Any, old: str, new: str) -> Without:
    """The function compiled with new in the place of old, which must stand in it once."""

    @contextmanager
    def without() -> Iterator[None]:
        plain = inspect.unwrap(getattr(function, "__func__", function))
        source = textwrap.dedent(inspect.getsource(plain))
        if source.count(old) != 1:
            raise LookupError(f"{plain.__qualname__}: it has {old!r} {source.count(old)} times")
        lines = source.replace(old, new).splitlines(keepends=True)
        while lines[0].startswith("@"):
            del lines[0]
        scope: dict[str, Any] = {}
        flags = "from __future__ import annotations\n"
        exec(compile(flags + "".join(lines), "<without>", "exec"), plain.__globals__, scope)
        before, plain.__code__ = plain.__code__, scope[plain.__name__].__code__
        _forget_plans()
        try:
            yield
        finally:
            plain.__code__ = before
            _forget_plans()

    return without


def replaced(owner: Any, name: str, value: Any) -> Without:
    """Another value of an attribute; value may be a function that makes it of the present one."""

    @contextmanager
    def without() -> Iterator[None]:
        before = getattr(owner, name)
        setattr(owner, name, value(before))
        _forget_plans()
        try:
            yield
        finally:
            setattr(owner, name, before)
            _forget_plans()

    return without


def _forget_plans() -> None:
    """Launches are prepared anew."""
    for clear in driver._caches:
        clear()


def _by_a_loop(found: Any) -> Any:
    """What planned() makes, without generated code."""
    plan, plans = found.__wrapped__, {}
    parameters = list(inspect.signature(plan).parameters.values())
    takes_array = [each.annotation in planned._ARRAYS for each in parameters]
    defaults = [each.default for each in parameters]

    def call(*args: Any) -> Any:
        args = (*args, *defaults[len(args) :])
        pairs = list(zip(args, takes_array, strict=True))
        key = tuple([arg.layout if is_array and arg is not None else arg for arg, is_array in pairs])
        run = plans.get(key)
        if run is None:
            run = plans[key] = plan(*key)
        return run(*[arg for arg, is_array in pairs if is_array])

    return call


def _by_apply(add: Any) -> Any:
    op = inspect.getclosurevars(add).nonlocals["op"]
    return lambda x, y: pointwise.apply(op, x, y)


def fast_paths() -> list[FastPath]:
    apply, user_kernel = autograd_function.Function.apply, genesis.cuda.kernel.Kernel.__call__
    prepare = textwrap.dedent(inspect.getsource(launching.Launcher.prepare))
    launch = prepare[prepare.index("        status = launch(") : prepare.index("    return run")]
    return [
        FastPath("Function.apply: nothing is recorded, watched or cast", "add", code_without(
            apply, "alone is not None and", "False and")),
        FastPath("Function.apply: one output, nothing recorded", "exp", code_without(
            apply, "if type(result) is NDArray and", "if False and")),
        FastPath("functional.conv.check_conv: no bias", "conv2d", code_without(
            functional_conv.check_conv, "if bias is None and", "if False and")),
        FastPath("pointwise.binary: finds its plan without apply()", "add, backend alone", replaced(
            backends.get("cuda"), "add", _by_apply)),
        FastPath("planned: the look-up is generated", "sum, backend alone", replaced(reduction, "_reduce", _by_a_loop)),
        FastPath("Layout.new: allocate_own() written out, its free list kept", "add, backend alone", replaced(
            array.Layout, "new", lambda before: _plain_new)),
        FastPath("Pool.take: the block that was freed just before", "add, backend alone", code_without(
            memory.Pool.take, "    if returned:", "    if False:")),
        FastPath("Launcher.prepare: launch() written out", "add, backend alone", code_without(
            launching.Launcher.prepare, launch,
            "        self.launch(block, stream, (*values, *rest))\n        idle.append(block)\n\n")),
        FastPath("Kernel: GenesisTensors.read() written out", "a user's kernel", code_without(
            user_kernel, "elif kind is Tensor and type(handle := arg.array.handle) is DeviceArray:", "elif False:")),
        FastPath("Module.train: past __setattr__", "train() of 50 modules", code_without(
            nn_module.Module.train, 'self.__dict__["training"] = mode', "self.training = mode")),
        FastPath("Module.parameters: without making up names", "parameters() of 50 modules", code_without(
            nn_module.Module.parameters, "_members(self._and_below(recurse), parameters_of)",
            '(each for _, each in self._named_members(parameters_of, "", recurse, True))')),
    ]  # fmt: skip


def _plain_new(layout: array.Layout, stream: int) -> array.DeviceArray:
    storage = memory.allocate(layout.num_bytes, layout.device_index, stream)
    return array.DeviceArray(storage, layout.shape, layout.strides, 0, layout.dtype, layout)


def cases() -> dict[str, Callable[[], object]]:
    backend = backends.get("cuda")
    x = genesis.ones(16, device="cuda")
    handle = x.array.handle
    image = genesis.ones(4, 64, 3, 3, device="cuda").contiguous("channels_last")
    weight = nn.Conv2d(64, 64, 1, device="cuda").weight
    network = nn.Sequential(*[nn.Linear(2, 2) for _ in range(49)])
    source = 'extern "C" __global__ void copy(float* y, const float* x, int n) {}'
    kernel = genesis.cuda.load_inline("bench_fast_paths", source).copy

    return {
        "add": lambda: x + x,
        "exp": lambda: F.exp(x),
        "conv2d": lambda: F.conv2d(image, weight),
        "add, backend alone": lambda: backend.add(handle, handle),
        "sum, backend alone": lambda: backend.sum(handle, (0,), False),
        "a user's kernel": lambda: kernel(x, x, 16),
        "train() of 50 modules": network.train,
        "parameters() of 50 modules": lambda: list(network.parameters()),
    }


def least(side: Callable[[], object]) -> Callable[[], float]:
    """A function that takes the time of a round, in microseconds per call."""
    side()
    start = time.perf_counter()
    side()
    calls = max(1, round(SECONDS_PER_ROUND / (time.perf_counter() - start)))

    def take() -> float:
        start = time.perf_counter()
        for _ in range(calls):
            side()
        return (time.perf_counter() - start) / calls * 1e6

    return take


def measure(path: FastPath, case: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Microseconds with the path and without it."""
    take, with_it, without_it = least(case), [], []
    for _ in range(rounds):
        case()
        with_it.append(take())
        with path.without():
            case()
            without_it.append(take())
    return min(with_it), min(without_it)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="paths whose name has this in it")
    parser.add_argument("--once", action="store_true", help="one round of each")
    args = parser.parse_args()
    import stubbed  # wants NVIDIA's bindings

    stubbed.install()
    known = cases()
    print(f"{'path':<64} {'op':<28} {'µs':>8} {'without':>8}  gain")
    with genesis.no_grad():
        for path in fast_paths():
            if args.only in path.name:
                fast, slow = measure(path, known[path.case], 1 if args.once else ROUNDS)
                print(f"{path.name:<64} {path.case:<28} {fast:8.2f} {slow:8.2f} {1 - fast / slow:5.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
