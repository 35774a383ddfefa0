"""The backend of genesis.torch.compile: fuses Dynamo's graphs, compiles them, and captures them where that helps.

Inductor compiles a graph's forward and backward, and on CUDA PyTorch's trees of CUDA graphs capture both; see
captured_graphs.py. Another process finds what was compiled in PyTorch's caches; see graph_caches.py.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import logging
import re
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, fx

from genesis.fusion import Fusion
from genesis.torch import native_steps
from genesis.torch.activations import Function
from genesis.torch.graph_caches import keeping, key
from genesis.torch.graph_mends import mend
from genesis.torch.graph_notes import notes
from genesis.torch.graph_passes import count_batches_at_once
from genesis.torch.opaque import tell_inductor
from genesis.torch.recordings import Recording, Recordings
from genesis.torch.short_calls import Calls
from genesis.torch.step_plans import Steps
from genesis.torch.tuning import Tuning
from genesis.torch.unused_outputs import UnusedOutputs

_logger = logging.getLogger("genesis.torch")
_MAX_WAITING = 8  # forward passes of a graph without a backward
_MODES = {"default": {}, "reduce-overhead": {"triton.cudagraphs": True}}


class Backend:
    """A backend of torch.compile that writes down what it did.

    Attributes:
        tuning: of the graphs that Inductor compiles.
    """

    def __init__(
        self, recordings: Recordings, compiler: str, mode: str, options: dict[str, object],
        tuning: Tuning | None = None,
    ) -> None:  # fmt: skip
        self.recordings, self.compiler, self.mode, self.options = recordings, compiler, mode, options
        self.tuning = tuning
        self._graphs: list[Waiting] = []

    def __call__(self, graph: fx.GraphModule, inputs: Sequence[object], **_: object) -> Function:
        from genesis.torch.dynamo import fuse_graph, guard_what_changes

        kinds = guard_what_changes(inputs)
        begun = time.perf_counter()
        recording = Recording(torch.is_grad_enabled(), *_why_it_ends(graph))
        plain = copy.deepcopy(graph)  # compilers own what they are given
        try:
            names = _layer_names(graph)
            mend(graph, self.compiler)
            recording.fusion = fuse_graph(graph, self.compiler)
            _rename(recording.fusion, names)
            for note in notes(graph.graph):
                self.recordings.note(note)
            if count_batches_at_once(graph.graph):
                graph.recompile()
            compiled = self._compile(graph, inputs, recording)
        except torch._dynamo.exc.RestartAnalysis:  # Dynamo traces the code again, with other numbers as constants
            raise
        except Exception as error:  # whatever it is, the program has code that runs
            first_line = (str(error).strip() or "no message").splitlines()[0]
            recording.obstacle = f"{type(error).__name__}: {first_line}"
            _logger.debug("a graph could not be compiled", exc_info=True)
            what = f"a part of {self.recordings.name} runs eagerly: {recording.obstacle}"
            warnings.warn(f"genesis.torch.compile: {what}", stacklevel=2)
            recording.cached = False
            compiled = plain.forward
        recording.seconds = time.perf_counter() - begun
        self.recordings.graphs.append(recording)
        _logger.info("%s", recording)
        return compiled if kinds is None else kinds.follow(compiled)

    def _compile(self, graph: fx.GraphModule, inputs: Sequence[object], recording: Recording) -> Function:
        recording.compiler = compiler = available(self.compiler, _device_types(graph, inputs))
        if compiler != "inductor":
            from torch._dynamo.backends.registry import lookup_backend

            compiled: Function = lookup_backend(compiler)(graph, inputs)
            return compiled
        return self._by_inductor(graph, inputs, recording)

    def _by_inductor(self, graph: fx.GraphModule, inputs: Sequence[object], recording: Recording) -> Function:
        from torch._inductor import list_mode_options
        from torch._inductor.compile_fx import compile_fx

        from genesis.torch.captured_graphs import Compilation, compile_inner, compiling, foretold

        patches = dict(_MODES[self.mode] if self.mode in _MODES else list_mode_options(self.mode))
        on_cpu = "cuda" not in _device_types(graph, inputs)
        if on_cpu:
            patches.pop("triton.cudagraphs", None)
        patches = {**patches, **self.options, **key(self.options)}
        tell_inductor()
        waiting = Waiting()
        unused = UnusedOutputs()
        steps, calls = Steps(waiting, unused), Calls()
        self._graphs.append(waiting)
        compilation = Compilation(recording, waiting, steps, calls, unused, self.tuning)
        inner = functools.partial(compile_inner, compilation)
        recording.cached = True  # unless Inductor is asked
        if _probe is not None:
            _probe.join()  # asking twice would take longer
        table = _without_scatters() if on_cpu else contextlib.nullcontext()
        with keeping(graph, inputs, patches), compiling(compilation), foretold(self.tuning), table:
            compiled: Function = compile_fx(graph, inputs, inner_compile=inner, config_patches=patches)
        if self.tuning is not None:
            self.tuning.finish(is_last=not recording.break_reason)
        if calls.half is not None:
            return calls.follow(compiled)
        compiled = unused.follow(compiled)
        return steps.follow(compiled) if recording.captured and recording.with_gradients else compiled

    @property
    def captures(self) -> bool:
        """Whether any graph has been captured."""
        return any(recording.captured for recording in self.recordings.graphs)

    def reset(self) -> None:
        """Called by torch._dynamo.reset()."""
        self._graphs.clear()
        trees = sys.modules.get("torch._inductor.cudagraph_trees")
        if trees is not None:
            trees.reset_cudagraph_trees()

    def waits(self) -> bool:
        """Whether a call is to run eagerly, as backward passes of many forward passes have not come."""
        waiting = [graph for graph in self._graphs if graph.num_forwards >= _MAX_WAITING]
        for graph in waiting:
            graph.num_forwards = (graph.num_forwards + 1) % (2 * _MAX_WAITING)
        return bool(waiting)


class Waiting:
    """Counts the forward passes of a graph since its last backward pass.

    As long as a backward may come, each captured forward gets memory, and a capture, of its own. A program that never
    calls backward (one that evaluates and forgot no_grad) would fill the GPU with them. So after some passes as many
    run eagerly; by then the results of the first are gone, or are the program's to keep.
    """

    def __init__(self) -> None:
        self.num_forwards = 0
        self.saved_by_hooks = False


# --- compiling ---
def decompositions() -> dict[object, Function]:
    """Inductor's table, without the decomposition of a max pooling's gradient into a scatter.

    Where that is one (in PyTorch 2.13), code for a CPU may read the sums before they are scattered, and gradients
    become zeros. Without it each pixel gathers its gradients.
    """
    from torch._inductor.decomposition import select_decomp_table

    return {op: decomposition for op, decomposition in select_decomp_table().items() if op is not _SCATTERED}


_SCATTERED = torch.ops.aten.max_pool2d_with_indices_backward.default


@contextlib.contextmanager
def _without_scatters() -> Iterator[None]:
    """Have Inductor take decompositions() by their name, by which its cache knows them: of a table nothing is kept."""
    from torch._inductor import compile_fx

    before = compile_fx.select_decomp_table
    if _SCATTERED not in before():
        yield
        return
    compile_fx.select_decomp_table = decompositions
    try:
        yield
    finally:
        compile_fx.select_decomp_table = before


def available(compiler: str, device_types: frozenset[str]) -> str:
    """The compiler, or "aot_eager" where Inductor would find no C++ compiler."""
    if compiler == "inductor" and "cuda" not in device_types and not _has_cpp_compiler():
        return "aot_eager"
    return compiler


@functools.cache
def _has_cpp_compiler() -> bool:
    from torch._inductor import cpp_builder, exc

    try:
        cpp_builder.get_cpp_compiler()
    except exc.InvalidCxxCompiler:
        what = "there is no C++ compiler for Inductor; graphs run op by op on the CPU"
        warnings.warn(f"genesis.torch.compile: {what}", stacklevel=2)
        return False
    return True


def _device_types(graph: fx.GraphModule, inputs: Sequence[object]) -> frozenset[str]:
    """Devices that a graph computes on."""
    values = [*inputs, *(node.meta.get("example_value") for node in graph.graph.nodes)]
    return frozenset(value.device.type for value in values if isinstance(value, Tensor))


def _layer_names(graph: fx.GraphModule) -> dict[str, str]:
    """The layers' names in the model, by those of the nodes that they made."""
    found = {}
    for node in graph.graph.nodes:
        path, kind = next(reversed((node.meta.get("nn_module_stack") or {"": ("", None)}).values()))
        if node.op == "call_function" and getattr(kind, "__module__", "").startswith("torch.nn.modules."):
            name = _ROOT.sub("", path)
            if name and not issubclass(kind, torch.nn.Sequential):  # a function that a container calls has no name
                found[node.name] = name
    return found


_ROOT = re.compile(r"^L\['\w+'\](\.__self__)?\.?")  # of the paths that Dynamo gives: the frame's own variable


def _rename(fusion: Fusion, names: dict[str, str]) -> None:
    fusion.fused = [tuple(names.get(part, part) for part in parts) for parts in fusion.fused]
    fusion.left = [(names.get(name, name), reason) for name, reason in fusion.left]
    fusion.replaced = [names.get(name, name) for name in fusion.replaced]


def start_compilers(captures: bool) -> None:
    """Begin what takes seconds and other cores: Inductor's processes, before which it compiles in this one, and its key
    of Triton; for graphs that are captured, the module in C++, too. On a CPU: what its processor can do."""
    if not torch.cuda.is_initialized():
        probe_processor()
        return
    from torch._inductor.async_compile import maybe_warm_pool

    hash_triton()
    maybe_warm_pool()
    if captures:
        native_steps.prepare()


def probe_processor() -> threading.Thread | None:
    """Begin to ask which instruction sets Inductor's code may use, which PyTorch keeps.

    For each it starts a process that loads a library, one after the other. A thread waits for them; hash_triton() says
    why modules are imported here.
    """
    global _probe
    try:
        from torch._inductor.cpu_vec_isa import valid_vec_isa_list

        for name in ("torch._inductor.codecache", "torch.utils._filelock"):  # which it imports when it is called
            importlib.import_module(name)
    except ImportError:  # a PyTorch that has it elsewhere
        return None
    if _probe is None:

        def probe() -> None:
            with contextlib.suppress(Exception):  # without a C++ compiler, for one: who needs the answer asks again
                valid_vec_isa_list()

        _probe = threading.Thread(target=probe, name="genesis warm-up", daemon=True)
        _probe.start()
    return _probe


_probe: threading.Thread | None = None  # of this process


def hash_triton() -> threading.Thread | None:
    """Begin to hash Triton's files, 400 MB: PyTorch's key of them, which Inductor's cache asks for and which it keeps.

    A thread does that. Modules are imported before it starts: two threads that import at once may see half of a module.
    """
    try:
        from torch._inductor.runtime.triton_compat import HAS_TRITON, triton_key
    except ImportError:  # a PyTorch that has it elsewhere
        return None
    if not HAS_TRITON:
        return None
    thread = threading.Thread(target=triton_key, name="genesis warm-up", daemon=True)
    thread.start()
    return thread


def _why_it_ends(graph: fx.GraphModule) -> tuple[str, str]:
    """Why Dynamo ended a graph before the program's end, and where; nothing where it did not."""
    reason = getattr(graph, "compile_subgraph_reason", None)
    if reason is None or not reason.graph_break:
        return "", ""
    frame = reason.user_stack[-1] if reason.user_stack else None
    lines = [line.strip() for line in str(reason.reason).strip().splitlines() if line.strip()]
    return " ".join(lines[:1]), f"{frame.filename}:{frame.lineno}" if frame is not None else ""


# --- what PyTorch says ---
class _Notes(logging.Handler):
    """Keeps why a graph was not captured, in the report of what was compiled last."""

    recordings: Recordings | None = None

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if self.recordings is not None and "skipping cudagraph" in text:
            self.recordings.note(text.strip().splitlines()[0])


_notes = _Notes(logging.WARNING)


def watch(recordings: Recordings) -> None:
    """Write what is not captured from now on into a report."""
    from torch._inductor.cudagraph_utils import cudagraphs_log

    _notes.recordings = recordings
    if _notes not in cudagraphs_log.handlers:
        cudagraphs_log.addHandler(_notes)
