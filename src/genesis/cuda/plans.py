"""Tuning: measure once which kernels compute a network fastest; later processes read the results.

On CUDA, convolutions, matrix products and attention have several implementations, chosen heuristically without tuning;
on x86-64 processors convolutions have.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVarTuple

from genesis import backends
from genesis.autograd import grad as gradients
from genesis.autograd import paths
from genesis.autograd.modes import state
from genesis.backends.cuda import driver
from genesis.backends.cuda.runtime import capturing
from genesis.backends.engine import host
from genesis.cuda.device import DeviceLike, index_of, is_available
from genesis.errors import describe
from genesis.nn import Module
from genesis.tensor import Tensor

if TYPE_CHECKING:
    from genesis.backends.cuda.engine.planner import Session
    from genesis.backends.cuda.engine.tuner import Outcome

# The engine is imported where it is used: it brings Triton, which is not installed where there is no GPU.
Inputs = TypeVarTuple("Inputs")
Progress = Callable[[str, int, int], None]  # what is being tuned, candidates done, candidates in all


@dataclasses.dataclass
class TuningReport:
    """The results of tuning; its text is a table. Made by `genesis.tune`."""

    outcomes: Sequence[Outcome | host.Outcome]
    num_left: int = 0  # problems that the budget did not reach
    num_compiled: int = 0  # kernels, by processes that compile while others are measured
    compile_seconds: float = 0.0  # of all these processes together

    def __len__(self) -> int:
        return len(self.outcomes)

    def __str__(self) -> str:
        lines = []
        for each in self.outcomes:
            speed = f"{each.milliseconds * 1e3:9.1f} µs {each.flops_per_second / 1e12:7.2f} TFLOP/s"
            rest = f"error {each.error:.1e}  {each.candidate.name}" + ("" if each.complete else "  (time was up)")
            lines.append(f"{speed}  {rest}  {_told(each)}")
        if self.num_left:
            lines.append(f"{self.num_left} more had no time, and run on what is chosen heuristically")
        return "\n".join(lines) or "nothing was tuned"


def _told(outcome: Outcome | host.Outcome) -> str:
    return outcome.problem.key if isinstance(outcome, host.Outcome) else str(outcome.problem)


@contextmanager
def tuning(budget: float = 60.0, progress: Progress | None = None) -> Iterator[TuningReport]:
    """Tune the convolutions, matrix products and attention inside the with block that have not been tuned yet.

    Args:
        budget: seconds; what it does not reach is chosen heuristically, and can be tuned later.
        progress: called after each measurement with the problem, the number of candidates done, and their number.
    Raises: ValueError: budget is not above 0.
    Example:
        >>> with genesis.tuning(budget=30) as report:
        ...     y = genesis.ones(8, 8) @ genesis.ones(8, 8)
        >>> len(report)  # on the CPU, only convolutions have a choice
        0
    """
    with _session(budget, progress) as (on_device, on_host):
        report = TuningReport(on_host.outcomes if on_device is None else on_device.outcomes)
        yield report
        if on_device is not None:
            outcomes: list[Outcome | host.Outcome] = [*on_device.outcomes, *on_host.outcomes]
            report.outcomes = outcomes


@contextmanager
def _session(
    budget: float, progress: Progress | None, gathers: bool = False, resumes: bool = True
) -> Iterator[tuple[Session | None, host.Session]]:
    """The session of CUDA's engine, None where there is no such device, and that of the processor's."""
    if not budget > 0:
        raise ValueError(describe("tuning", "budget", "a number of seconds above 0", budget))
    said = None if progress is None else lambda problem, done, total: progress(problem.key, done, total)
    with (
        host.session(budget, said, gathers, resumes) as on_host,
        _device_session(budget, progress, gathers, resumes) as on_device,
    ):
        yield on_device, on_host


@contextmanager
def _device_session(budget: float, progress: Progress | None, gathers: bool, resumes: bool) -> Iterator[Session | None]:
    if not is_available():
        yield None
        return
    capturing.refuse(index_of("tuning", None), "measures kernels", "tune before the capture begins")
    from genesis.backends.cuda.engine import planner

    told = None if progress is None else lambda problem, done, total: progress(str(problem), done, total)
    session = planner.Session(budget, told, gathers, resumes)
    planner.begin(session)
    try:
        yield session
        if gathers:
            planner.share_out(session)
    finally:
        planner.end(session)


def tune(
    function: Callable[[*Inputs], object],
    *inputs: *Inputs,
    budget: float = 60.0,
    progress: Progress | None = None,
    resume: bool = True,
) -> TuningReport:
    """Tune all that a model or function computes: convolutions, matrix products, attention, and their gradients.

    The function is called once to count its problems. Then the budget begins: first the heuristic's choice and one
    other of each problem, then each by its share of the time, while all cores compile. A terminal shows how far it is,
    unless `progress` is given; so does the logger `genesis.tuning`. What was measured is stored at once: Ctrl-C loses
    nothing of it. Parameters keep their gradients and buffers their values, running
    statistics included.

    Args:
        function: a Module or any function of tensors; or a training step that runs backward itself, of a PyTorch model
            too.
        inputs: its arguments.
        budget: seconds, after that first call. Unfinished tuning resumes on the next call.
        progress: see tuning().
        resume: also measure what an earlier call did not finish; False: only what has no result yet.
    Returns: the results, with the speed of each.
    Raises: ValueError: budget is not above 0.

    Example:
        >>> print(genesis.tune(genesis.nn.Linear(3, 4), genesis.ones(1, 3)))
        nothing was tuned
    """
    buffers = list(function.buffers()) if isinstance(function, Module) else []
    before = [buffer.detach().clone() for buffer in buffers]
    try:
        with _session(budget, progress, gathers=True, resumes=resume) as (session, on_host):
            outputs = [each for each in _tensors(function(*inputs)) if each.requires_grad]
            if outputs and state.recording:
                total = outputs[0].sum()
                for each in outputs[1:]:
                    total = total + each.sum()
                wanted = paths.leaves([total._node])
                gradients(total, wanted, retain_graph=True, allow_unused=True)  # part of the graph may be the caller's
    finally:
        for buffer, value in zip(buffers, before, strict=True):
            buffer.array.copy_into(value.array)
    num_left = len(on_host.met) - len(on_host.outcomes)
    if session is None:
        return TuningReport(on_host.outcomes, num_left)
    num_left += len(session.met) - len(session.outcomes)
    outcomes: list[Outcome | host.Outcome] = [*session.outcomes, *on_host.outcomes]
    return TuningReport(outcomes, num_left, session.num_compiled, session.compile_seconds)


def export_plans(path: str | os.PathLike[str], device: DeviceLike = None) -> int:
    """Write all tuned plans of a device to a file, to be distributed with a model; returns their number.

    Args:
        path: the file; it is replaced atomically.
        device: an index, "cuda:1" or a genesis.device; the current device by default.
    Raises: DeviceError: there is no CUDA device.

    Example:
        >>> import tempfile
        >>> from genesis.settings import override
        >>> path = tempfile.mkdtemp() + "/plans"
        >>> with override(cuda="simulated"):
        ...     genesis.cuda.export_plans(path), genesis.cuda.import_plans(path)
        (0, 0)
    """
    index = _index("export_plans", device)
    from genesis.backends.cuda.engine import platform

    return platform.store(index).export(path)


def import_plans(path: str | os.PathLike[str], device: DeviceLike = None) -> int:
    """Import the plans of an exported file; returns how many were new here, or faster. See `genesis.cuda.export_plans`.

    Raises: CheckpointError: the file has no plans, or those of another device or of other versions.
        DeviceError: there is no CUDA device.
    """
    index = _index("import_plans", device)
    from genesis.backends.cuda.engine import planner, platform, stored

    backends.get("cuda")  # whose ops say which candidates there are
    added = platform.store(index).take(path, lambda key, entry: stored.fits(key, entry, index))
    planner.forget_calls()
    return added


def describe_plans() -> list[str]:
    """A line per problem that this process has computed: the implementation, and how it was chosen."""
    if not is_available():
        return host.describe()
    from genesis.backends.cuda.engine import planner

    return host.describe() + [
        f"{plan.problem}: {plan.candidate.name} ({plan.origin})" for plan in planner.all_plans() if plan.candidate
    ]


def describe_engine() -> str:
    """The libraries that implementations are chosen from, and the file of the tuned plans."""
    from genesis.backends.cuda.driver import cublaslt, cudnn
    from genesis.backends.cuda.engine import platform

    kept, libraries = platform.store(0), "Triton kernels"
    if driver.get().name == "cuda":
        libraries = f"{cudnn.installed() or 'no cuDNN'}, {cublaslt.installed() or 'no cuBLASLt'}"
    return f"{libraries}; {len(kept.all())} tuned plans in {kept.path}"


def _index(op: str, device: DeviceLike) -> int:
    index = index_of(op, device)
    driver.get().properties(index)
    return index


def _tensors(value: object) -> list[Tensor]:
    """Every tensor in nested lists, tuples and dicts."""
    if isinstance(value, Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [tensor for each in items for tensor in _tensors(each)]
