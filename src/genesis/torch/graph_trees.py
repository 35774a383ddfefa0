"""PyTorch's trees of CUDA graphs, as far as genesis.torch.replaying steps through them by itself.

A manager per device keeps graphs in one pool of memory, and knows by weak references which of their outputs are alive:
what nobody holds, the next graph may overwrite. These are no public interfaces: where one of them is missing, known()
is False, and every step goes PyTorch's own way.
"""

from __future__ import annotations

import sys
import threading
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
    """A recording with what it expects of memory; see cannot_replay()."""

    wrapped_function: _WrappedFunction
    children: dict[object, list[Recording]]
    cudagraph_managed_idxs: list[int]
    expected_dead_indices_after_graph: list[tuple[int, int]]
    path_weakrefs: list[list[Callable[[], object] | None]]

    def _tensor_metadata(self, x: Tensor, ignore_storage_offset: bool = True) -> dict[str, object]: ...
    def _reconstruct_from_tensor_metadata(self, metadata: dict[str, object]) -> Tensor: ...


class Manager(Protocol):
    """The manager of a device's trees."""

    current_node: Node | None
    path_state: object
    mode: object
    running_forwards_with_pending_backwards: bool

    def update_generation(self) -> None: ...


_MODULE = "torch._inductor.cudagraph_trees"
_EVERY_THREAD = torch.__version__ >= (2, 13)
_FIELDS = (
    "static_input_idxs", "static_input_data_ptrs", "non_static_input_idx", "expanded_dims", "reconstructed_inputs",
    "cached_tensor_outputs", "unaliased_in_all_paths", "graph", "parent",
)  # fmt: skip
_MORE_FIELDS = (
    "wrapped_function", "children", "cudagraph_managed_idxs", "expected_dead_indices_after_graph", "path_weakrefs",
    "_tensor_metadata", "_reconstruct_from_tensor_metadata", *_FIELDS,
)  # fmt: skip
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


def recording_of(device: int) -> Recording | None:
    """The recording that has just been made or replayed; None if nothing was, or if this PyTorch's are others."""
    node = None if (one := manager(device)) is None else one.current_node
    return cast(Recording, node) if node is not None and all(hasattr(node, field) for field in _MORE_FIELDS) else None


def step_to(one: Manager, node: Node, is_backward: bool) -> None:
    """Tell the manager that a recording runs now, as its own run() and execute_node() do."""
    trees = sys.modules[_MODULE]
    one.current_node, one.path_state = node, trees.ExecutionState.EXECUTION
    one.mode = trees.CompilationMode.BACKWARD if is_backward else trees.CompilationMode.FORWARD
    one.update_generation()
    one.running_forwards_with_pending_backwards = not is_backward


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


# --- saved tensors that went through hooks, such as a checkpoint's ---
def goes_through_hooks() -> bool:
    """Whether what autograd saves now goes through hooks."""
    return _top_hooks is not None and _top_hooks(True) is not None


def cannot_replay(device: int, last: Recording, inputs: list[object], order: Sequence[int]) -> bool:
    """Whether a backward is to run without its recordings, which hooks stand in the way of.

    A recording expects that its inputs lie where they lay, and frees those in the trees' memory. Hooks may give copies,
    each time in another place, and may hold what they got: PyTorch then records anew at each step, or fails.

    Args:
        last: a recording of the same graph.
        inputs: of the graph; where the answer is yes, those in the trees' memory are copied.
        order: the inputs that the captured part reads, in its order.
    """
    now = recording_of(device)
    recordings = [] if now is None or replayed(device) is None else now.children.get(last.wrapped_function.id, [])
    given = [x for index in order if isinstance(x := inputs[index], Tensor)]
    if len(given) != len(order):
        return False
    fitting = [x for x in recordings if have_addresses(given, x.static_input_data_ptrs, x.static_input_idxs)]
    del given[:]
    if not fitting:
        return len(recordings) >= _MOST_RECORDINGS
    if any(_frees_what_only_these_hold(x, inputs, order) for x in fitting):
        return False
    for index in fitting[0].cudagraph_managed_idxs:
        inputs[order[index]] = _tensor(inputs[order[index]]).clone()
    return True


def _frees_what_only_these_hold(node: Recording, inputs: list[object], order: Sequence[int]) -> bool:
    """Whether what a recording frees dies with its inputs. These are made anew, where they lie."""
    places = [order[index] for index in node.cudagraph_managed_idxs]
    looks = [node._tensor_metadata(_tensor(inputs[place]), False) for place in places]
    for place in places:
        inputs[place] = None
    freed = [node.path_weakrefs[depth][index] for depth, index in node.expected_dead_indices_after_graph]
    are_dead = all(storage is None or storage() is None for storage in freed)
    for place, look in zip(places, looks, strict=True):
        inputs[place] = node._reconstruct_from_tensor_metadata(look)
    return are_dead


def _tensor(x: object) -> Tensor:
    assert isinstance(x, Tensor)
    return x


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
