"""PyTorch's trees of CUDA graphs, as far as genesis.torch.replaying steps through them by itself.

A manager per device keeps graphs in one pool of memory, and knows by weak references which of their outputs are alive:
what nobody holds, the next graph may overwrite. These are no public interfaces: where one of them is missing, known()
is False, and every step goes PyTorch's own way.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, cast

import torch
from torch import Tensor


class Graph(Protocol):
    """A captured graph."""

    def replay(self) -> None: ...


class Node(Protocol):
    """A recording. Its inputs and outputs are those of the graph's part that was captured."""

    @property
    def parent(self) -> Node | None: ...

    graph: Graph | None
    static_input_idxs: list[int]
    static_input_data_ptrs: list[int | None]
    non_static_input_idx: list[int]
    expanded_dims: list[list[int]]
    reconstructed_inputs: list[object]
    cached_tensor_outputs: list[Tensor | None]
    unaliased_in_all_paths: list[bool]


class _WrappedFunction(Protocol):
    @property
    def id(self) -> object: ...


class Recording(Node, Protocol):
    """A recording with those that may come after it, by the number of their graph."""

    wrapped_function: _WrappedFunction
    children: dict[object, list[Recording]]


class Manager(Protocol):
    """The manager of a device's trees."""

    current_node: Node | None
    path_state: object
    mode: object
    running_forwards_with_pending_backwards: bool

    def update_generation(self) -> None: ...

    def try_end_curr_execution(self) -> None: ...


_MODULE = "torch._inductor.cudagraph_trees"
_EVERY_THREAD = torch.__version__ >= (2, 13)
_FIELDS = (
    "static_input_idxs", "static_input_data_ptrs", "non_static_input_idx", "expanded_dims", "reconstructed_inputs",
    "cached_tensor_outputs", "unaliased_in_all_paths", "graph", "parent",
)  # fmt: skip
_MORE_FIELDS = ("wrapped_function", "children", *_FIELDS)
_MOST_RECORDINGS = 4


def manager(device: int) -> Manager | None:
    """The manager of a device; None if nothing has been captured there."""
    trees = sys.modules.get(_MODULE)
    return None if trees is None else cast("Manager | None", trees.get_manager(device, False))


def thread_has_trees() -> bool:
    """Whether this thread may capture.

    Before 2.13, PyTorch gives trees to the thread that loads them only, and to autograd's threads. Others fail there;
    if they are given trees of their own, the process may crash when they end.
    """
    if _EVERY_THREAD:
        return True
    trees, name = sys.modules.get(_MODULE), "tree_manager_containers"
    if trees is None:
        return threading.current_thread() is threading.main_thread()
    return hasattr(trees.local, name) or torch._C._is_key_in_tls(name)


def replayed(device: int) -> Node | None:
    """The recording that was replayed last, and is still the current one; None if it was warmed up or recorded."""
    one = manager(device)
    if one is None or one.current_node is None or getattr(one.path_state, "name", "") != "EXECUTION":
        return None
    node = one.current_node
    return node if all(hasattr(node, field) for field in _FIELDS) else None


def function_of(device: int) -> object:
    """The number of the graph that has just been recorded or replayed; None if none was."""
    recording = _recording_of(device)
    return None if recording is None else recording.wrapped_function.id


def _recording_of(device: int) -> Recording | None:
    """The recording that has just been made or replayed; None if none was, or if this PyTorch's are others."""
    node = None if (one := manager(device)) is None else one.current_node
    return cast(Recording, node) if node is not None and all(hasattr(node, field) for field in _MORE_FIELDS) else None


def step_to(one: Manager, node: Node, mode: str) -> None:
    """Tell the manager that a recording runs now, as its own run() and execute_node() do.

    mode: "FORWARD", "BACKWARD" or "INFERENCE".
    """
    trees = sys.modules[_MODULE]
    one.current_node, one.path_state, one.mode = node, trees.ExecutionState.EXECUTION, trees.CompilationMode[mode]
    one.update_generation()
    if mode != "INFERENCE":
        one.running_forwards_with_pending_backwards = mode == "FORWARD"


def begins(device: int, root: Node) -> bool:
    """Whether a recording that comes after no other is what the trees would replay now.

    Where another graph ran last, they look for recordings of this one that come after it, and then whether what ran may
    be overwritten: nothing of it is alive, or a new step has begun. If so, it is over from now on, for them too.
    """
    one, recording = manager(device), cast(Recording, root)
    if one is None or one.current_node is None:
        return one is not None
    if one.current_node is root and getattr(one.path_state, "name", "") == "EXECUTION":
        last = recording  # of inference, say: itself, once more
    else:
        node = cast("Recording | None", replayed(device))
        if node is None or not all(hasattr(x, field) for x in (node, recording) for field in _MORE_FIELDS):
            return False
        last = node
    if not last.children.get(recording.wrapped_function.id):
        one.try_end_curr_execution()
    return one.current_node is None


def known() -> bool:
    """Whether this PyTorch has the functions that are used here."""
    return _have_addresses is not None and _top_hooks is not None


def have_addresses(tensors: list[Tensor], addresses: Sequence[int | None], indices: Sequence[int]) -> bool:
    """Whether tensors lie where they did."""
    assert _have_addresses is not None
    return _have_addresses(tensors, addresses, indices)


def saves_as_usual() -> bool:
    """Whether gradients are recorded, and no hook, transform or tracer has to see what autograd saves."""
    assert _top_hooks is not None
    tracer = sys.modules.get("torch._dynamo.compiled_autograd")
    return (
        torch.is_grad_enabled()
        and not torch.is_inference_mode_enabled()
        and _top_hooks(True) is None
        and not torch._C._are_functorch_transforms_active()
        and not (tracer is not None and tracer.compiled_autograd_enabled)
    )


# --- saved tensors that went through hooks, or are held ---
def goes_through_hooks() -> bool:
    """Whether what autograd saves now goes through hooks."""
    return _top_hooks is not None and _top_hooks(True) is not None


def records_in_vain(device: int, function: object, inputs: list[object], order: Sequence[int]) -> bool:
    """Whether a backward would be recorded anew at each step, as hooks give what was saved in other places each time.

    Args:
        function: the graph's number.
        order: the inputs that the captured part reads, in its order.
    """
    now = _recording_of(device)
    recordings = [] if now is None or replayed(device) is None else now.children.get(function, [])
    if len(recordings) < _MOST_RECORDINGS:
        return False
    given = [x for index in order if isinstance(x := inputs[index], Tensor)]
    return len(given) == len(order) and not any(
        have_addresses(given, x.static_input_data_ptrs, x.static_input_idxs) for x in recordings
    )


def inputs_of_refused(error: RuntimeError) -> list[object] | None:
    """The inputs of a recording that PyTorch refuses to replay; None for other errors.

    It frees inputs in the trees' memory, and something else holds them: a checkpoint, or an error of an earlier step
    with its frames. They are copied from where they lie, as PyTorch has let go of them.
    """
    if "input tensor deallocate" not in str(error):
        return None
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    places = next((x.f_locals for x in reversed(frames) if x.f_code.co_name == "check_invariants"), {})
    given, there = places.get("inputs"), getattr(places.get("self"), "reconstructed_inputs", None)
    if not isinstance(given, list) or not isinstance(there, list) or len(given) != len(there):
        return None
    return [y.clone() if x is None and isinstance(y, Tensor) else x for x, y in zip(given, there, strict=True)]


@contextmanager
def without_recordings() -> Iterator[None]:
    """Within it, graphs run as in their first call: in the trees' memory, neither replayed nor recorded."""
    from torch._inductor import config

    with config.patch({"triton.force_cudagraphs_warmup": True}):
        yield


_have_addresses: Callable[[list[Tensor], Sequence[int | None], Sequence[int]], bool] | None = getattr(
    torch._C, "_tensors_data_ptrs_at_indices_equal", None
)
_top_hooks: Callable[[bool], object] | None = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
