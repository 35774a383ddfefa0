"""genesis.torch.compile: a PyTorch model or function, compiled by Dynamo with Genesis' ops, captured on CUDA."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import itertools
import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar, overload

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils._pytree import tree_leaves

from genesis.cuda import is_available
from genesis.errors import DTypeError, describe
from genesis.settings import settings
from genesis.torch import graph_trees, outstanding
from genesis.torch.activations import Function
from genesis.torch.modes import saved_tensors_hooks
from genesis.torch.recordings import Recordings, Target

if TYPE_CHECKING:
    from genesis.torch.capturing import Backend
    from genesis.torch.tuning import Tuning

_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
_CAPTURING = ("reduce-overhead", "max-autotune")
_WORTH_IT = 16  # calls with one kind of inputs, not one after the other, before that is recorded
_MOST_KINDS = 1024
_AS_IT_IS = contextlib.nullcontext()
_numbers = itertools.count()
_logger = logging.getLogger("genesis.torch")
_Arguments = tuple[object, ...]
_Keywords = dict[str, object]
_Kind = tuple[object, ...]  # of inputs
T = TypeVar("T", bound=Function)


@overload
def compile(
    target: T, *, tune: float | None = 0.0, compiler: str = "inductor", mode: str = "reduce-overhead",
    dynamic: bool | None = False, fullgraph: bool = False, options: dict[str, object] | None = None,
) -> T: ...  # fmt: skip
@overload
def compile(
    target: None = None, *, tune: float | None = 0.0, compiler: str = "inductor", mode: str = "reduce-overhead",
    dynamic: bool | None = False, fullgraph: bool = False, options: dict[str, object] | None = None,
) -> Callable[[T], T]: ...  # fmt: skip
def compile(
    target: object = None, *, tune: float | None = 0.0, compiler: str = "inductor", mode: str = "reduce-overhead",
    dynamic: bool | None = False, fullgraph: bool = False, options: dict[str, object] | None = None,
) -> object:  # fmt: skip
    """Compile a PyTorch model, in place, or a function; the loop around it stays what it is.

    TorchDynamo records what the target's code does and guards what it read. In its graphs convolution → batch norm
    (→ sum) → ReLU becomes one op and max pooling another; Inductor compiles the rest; on CUDA, forward and backward
    are captured in CUDA graphs. Results and gradients are copies that no later call overwrites. Whatever cannot be
    compiled runs eagerly: genesis.torch.report(model), or function.report(), says what and why.

    Parameters, state_dict, copy.deepcopy and pickling are those of the plain model; genesis.torch.unfuse(model) undoes
    it. The first inputs, in training and in inference, are recorded at once; others, such as the smaller last batch of
    an epoch, run eagerly until they come twice in a row, or often.

    Args:
        target: a torch.nn.Module, or a function of tensors, such as a whole step with its optimizer.
        tune: seconds that the first call may wait for measurements of convolution kernels on CUDA. A process of its own
            makes and stores them while this one compiles. 0: those that are done when a graph has been compiled for
            the first time (none with GENESIS_DETERMINISTIC=1). None: no measurements; stored plans, else heuristics.
        compiler: of what is not fused: one of PyTorch's backends of torch.compile. "aot_eager" starts at once.
        mode: as of torch.compile; "default" captures nothing.
        dynamic, fullgraph: as of torch.compile; with dynamic shapes all inputs are recorded at once.
        options: of Inductor.
    Returns: the model, or a function with the arguments of target and a method report().
    Raises: DTypeError: target is neither. ValueError: mode, compiler or tune are none.

    Example:
        >>> import genesis.torch, torch
        >>> layers = torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU()
        >>> model = genesis.torch.compile(torch.nn.Sequential(*layers).eval(), compiler="aot_eager")
        >>> model(torch.ones(2, 3, 8, 8)).shape, list(model.state_dict())[0]
        (torch.Size([2, 8, 6, 6]), '0.weight')
        >>> len(genesis.torch.report(model).fused)
        1
    """
    how = _Options(tune, compiler, mode, dynamic, fullgraph, dict(options or {}))
    return functools.partial(_compile, how=how) if target is None else _compile(target, how)


class _Options(NamedTuple):
    """Arguments of compile()."""

    tune: float | None
    compiler: str
    mode: str
    dynamic: bool | None
    fullgraph: bool
    options: dict[str, object]


def _compile(target: object, how: _Options) -> object:
    _check(how)
    if isinstance(target, nn.Module):
        target.__dict__["_compiled_call_impl"] = Compiled(target._call_impl, target, how)
        return target
    if not callable(target):
        raise DTypeError(describe("compile", "target", "a torch.nn.Module or a function", type(target).__name__))
    return Compiled(target, None, how)


class Compiled(Target):
    """A compiled target: decides at each call whether it runs compiled. Copies and pickles of it are None."""

    def __init__(self, run: Function, model: nn.Module | None, how: _Options) -> None:
        name = type(model).__name__ if model is not None else getattr(run, "__qualname__", type(run).__name__)
        self._plain, self._model, self._how = run, model, how
        self.recordings = Recordings(name)
        self._backend: Backend | None = None
        self._run: Function = self._first
        self._kinds = _Kinds() if how.dynamic is False else None
        self._may_capture = how.mode in _CAPTURING
        if model is None:
            functools.update_wrapper(self, run)

    def __call__(self, *args: object, **kwargs: object) -> object:
        if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
            return self._plain(*args, **kwargs)
        why_not = self._why_not(args, kwargs)
        if why_not:
            self.recordings.eager_calls[why_not] += 1
            results = self._plain(*args, **kwargs)
            if self._kinds is not None and torch.is_grad_enabled():
                self._kinds.wait_for(results)
            return results
        outstanding.before_call()
        with _whole_graphs() if self._is_split() else _AS_IT_IS:
            results = self._run(*args, **kwargs)
        if self._backend is not None and self._backend.captures and torch.is_grad_enabled():
            outstanding.after_call(results, self.recordings.name)
        return results

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return _nothing, ()

    def __deepcopy__(self, memo: dict[int, object]) -> None:
        return None

    def _why_not(self, args: _Arguments, kwargs: _Keywords) -> str:
        """Why a call is to run eagerly; "" where it is not."""
        if self._may_capture and not graph_trees.thread_has_trees() and torch.cuda.is_initialized():
            return "in a thread of the program's, where PyTorch captures from 2.13 on"
        if self._kinds is not None and not self._kinds.recorded(args, kwargs, self._model):
            return "inputs of a new kind, recorded if they come again"
        if self._backend is not None and self._backend.waits():
            return "earlier results still wait for their backward pass (evaluate under torch.no_grad())"
        return ""

    def _is_split(self) -> bool:
        """Whether Dynamo would end graphs where the buckets of a DistributedDataParallel end.

        It may be around the target or in it. Gradients would travel while others are computed. That costs the host
        several graphs a step, in PyTorch's way, and the chains that cross an end: captured steps take 1.2 to 1.9 times
        as long on NVLink (benchmarks/results/bench_ddp.md).
        """
        if not (self._may_capture and torch.distributed.is_available() and torch.distributed.is_initialized()):
            return False
        return torch._dynamo.config.optimize_ddp is True and _is_on_cuda(self._model)

    def _first(self, *args: object, **kwargs: object) -> object:
        tuning = self._tuning(args, kwargs)  # in a process that takes seconds to start
        try:
            with _without_collections():
                return self._prepared(tuning)(*args, **kwargs)
        finally:
            if self._backend is not None:
                self._backend.tuning = None
            if tuning is not None:
                tuning.close()

    def _prepared(self, tuning: Tuning | None) -> Function:
        """Begin all that runs beside, and return the target as Dynamo compiles it."""
        from genesis.torch import capturing

        how = self._how
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            from genesis.torch import ddp_buffers

            ddp_buffers.broadcast_at_once()
        if how.compiler == "inductor":
            capturing.start_compilers(captures=self._may_capture)
        capturing.watch(self.recordings)
        self._backend = capturing.Backend(self.recordings, how.compiler, how.mode, how.options, tuning)
        target = self._plain if self._model is None else _with_code_of_its_own(self._plain)
        self._run = torch.compile(target, backend=self._backend, dynamic=how.dynamic, fullgraph=how.fullgraph)
        return self._run

    def _tuning(self, args: _Arguments, kwargs: _Keywords) -> Tuning | None:
        """The tuning of the graphs of this call; None where there is none, or it comes before them."""
        seconds, model = self._how.tune, self._model
        if seconds is None or (seconds == 0 and (settings.deterministic or self._how.compiler != "inductor")):
            return None
        inputs = [x for x in _leaves(args, kwargs) if isinstance(x, Tensor)]
        tensors = [*inputs, *(() if model is None else model.parameters())]
        device = next((x.device.index for x in tensors if x.is_cuda), None)
        if device is None and model is None and torch.cuda.is_initialized():
            device = torch.cuda.current_device()  # of a step that has its model and its images from elsewhere
        obstacle = "the inputs are not on CUDA" if device is None else "" if is_available() else "Genesis has no CUDA"
        if obstacle:
            if seconds:
                self.recordings.note(f"not tuned: {obstacle}")
            return None
        if self._how.compiler == "inductor":
            from genesis.torch.tuning import Tuning

            modes = torch.is_grad_enabled(), torch.is_autocast_enabled("cuda"), model is not None and model.training
            looks = self.recordings.name, str(model), modes, [(x.shape, x.dtype) for x in tensors]
            return Tuning(seconds, self.recordings, device, repr(looks) if seconds or _has_convs(model) else None)
        if model is None:
            self.recordings.note("not tuned: a function needs compiler='inductor'")
        else:
            _tune(model, seconds, self.recordings, args, kwargs)
        return None


def _has_convs(model: nn.Module | None) -> bool:
    return model is not None and any(isinstance(module, _ConvNd) for module in model.modules())


def _is_on_cuda(model: nn.Module | None) -> bool:
    """None: a function, which may have models anywhere."""
    return torch.cuda.is_initialized() if model is None else any(x.is_cuda for x in model.parameters())


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Python's collections would look again and again at the million objects that compilers make: a tenth of the time,
    for a twentieth more memory."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def _whole_graphs() -> Iterator[None]:
    config = torch._dynamo.config
    before, config.optimize_ddp = config.optimize_ddp, False
    try:
        yield
    finally:
        config.optimize_ddp = before


class _Kinds:
    """Kinds of inputs that came: shapes, dtypes and places of tensors; in training or not, with gradients or not."""

    def __init__(self) -> None:
        self._recorded: set[_Kind] = set()
        self._modes: set[tuple[bool, bool]] = set()
        self._seen: dict[_Kind, int] = {}
        self._last: _Kind = ()
        self._waiting: weakref.WeakSet[_EagerPass] = weakref.WeakSet()

    def recorded(self, args: _Arguments, kwargs: _Keywords, model: nn.Module | None) -> bool:
        """Is this kind one that is recorded, or worth it? The first of each mode is; others if they come twice in a
        row, or often: a batch that comes once in an epoch would take longer to compile than it ever saves."""
        mode = torch.is_grad_enabled(), model is not None and model.training
        kind = mode, *[_kind(x) for x in _leaves(args, kwargs)]
        last, self._last = self._last, kind
        if kind in self._recorded:
            return True
        if torch._C._current_graph_task_id() >= 0 and saved_tensors_hooks(True) is not None:
            return False  # a checkpoint computes again what ran eagerly, and has to save the same
        number = self._seen[kind] = self._seen.get(kind, 0) + 1
        # Two passes for one backward are both eager: a captured one changes, for autograd, what an eager one has saved.
        if mode in self._modes and (kind != last or self._waiting) and number < _WORTH_IT:
            if len(self._seen) > _MOST_KINDS:
                self._seen.clear()
            return False
        self._modes.add(mode)
        self._recorded.add(kind)
        return True

    def wait_for(self, results: object) -> None:
        """After an eager call with gradients."""
        nodes = {x.grad_fn for x in tree_leaves(results) if isinstance(x, Tensor) and x.grad_fn is not None}
        if nodes:
            one = _EagerPass(self._waiting)
            self._waiting.add(one)
            for node in nodes:
                node.register_prehook(one.begin_backward)


class _EagerPass:
    """An eager pass that waits for its backward, alive as long as the autograd graph of its results."""

    def __init__(self, waiting: weakref.WeakSet[_EagerPass]) -> None:
        self._waiting = waiting

    def begin_backward(self, _: object) -> None:
        self._waiting.discard(self)


def _leaves(args: _Arguments, kwargs: _Keywords) -> Sequence[object]:
    if not kwargs and len(args) == 1 and isinstance(args[0], Tensor):
        return args
    return tree_leaves((args, kwargs))


def _kind(x: object) -> object:
    return (x.shape, x.dtype, x.device, x.requires_grad) if isinstance(x, Tensor) else type(x)


def _with_code_of_its_own(call: Function) -> Function:
    """A function that calls: Dynamo counts recordings by code, and that of Module._call_impl is everybody's."""

    def run(*args: object, **kwargs: object) -> object:
        return call(*args, **kwargs)

    run.__code__ = run.__code__.replace(co_name=f"compiled_{next(_numbers)}")
    return run


def _tune(model: nn.Module, budget: float, recordings: Recordings, args: _Arguments, kwargs: _Keywords) -> None:
    """Measure the convolutions of a training or inference step with these inputs, on a copy of the model: for compilers
    whose graphs are not seen."""
    from genesis.cuda import empty_cache
    from genesis.cuda.plans import tune
    from genesis.torch.fusing import fuse
    from genesis.torch.links import running_alone

    devices = {x.device for x in _leaves(args, kwargs) if isinstance(x, Tensor) and x.is_cuda}
    try:
        trial = fuse(copy.deepcopy(model))
    except Exception as error:  # models may hold what cannot be copied
        recordings.note(f"not tuned: the model cannot be copied ({type(error).__name__}: {error})")
        return

    def step() -> None:
        leaves = [x for x in tree_leaves(trial(*args, **kwargs)) if isinstance(x, Tensor) and x.requires_grad]
        if leaves:
            grads = [torch.ones_like(x) for x in leaves]
            torch.autograd.grad(leaves, [p for p in trial.parameters() if p.requires_grad], grads, allow_unused=True)

    with running_alone(), torch.random.fork_rng(sorted(x.index for x in devices), device_type="cuda"):
        found = tune(step, budget=budget, resume=False)
    empty_cache()  # the memory that measuring took
    recordings.note(f"tuned {len(found)} problems in {budget:g} s; {found.num_left} had no time")
    _logger.info("%s", found)


def _nothing() -> None:
    return None


def _check(how: _Options) -> None:
    tune, compiler, mode = how[:3]
    if tune is not None and (isinstance(tune, bool) or not isinstance(tune, int | float) or not tune >= 0):
        raise ValueError(describe("compile", "tune", "a number of seconds from 0 on", repr(tune)))
    if mode not in _MODES:
        raise ValueError(describe("compile", "mode", f"one of {', '.join(_MODES)}", repr(mode)))
    if compiler != "inductor":
        known = torch.compiler.list_backends(exclude_tags=())
        if compiler not in known or compiler == "genesis":
            expected = f"one of {', '.join(name for name in known if name != 'genesis')}"
            raise ValueError(describe("compile", "compiler", expected, repr(compiler)))
