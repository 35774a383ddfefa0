"""PyTorch's caches of compiled graphs, on the disk: what Genesis adds to their keys, and how captured graphs are kept.

AOTAutograd's cache has the forward and backward of a graph of Dynamo's: the second process neither traces nor compiles
them. It finds them by the graph, as Genesis has fused it, by PyTorch's settings and by what key() adds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from torch import fx

import genesis
from genesis.settings import settings

_SAME_GRAPHS = ("debug", "cache_dir", "tune", "compilers", "overlap")  # settings that no graph depends on


def key(options: Mapping[str, object]) -> dict[str, object]:
    """Inductor's further options, by which only graphs of this Genesis with these settings are found.

    Inductor makes the functions that are marked as cacheable a part of its keys, each with a text of its own.
    """
    from torch._inductor import config

    name = "unsafe_marked_cacheable_functions"
    if not hasattr(config, name):
        return {}
    marked = options.get(name, getattr(config, name))
    assert isinstance(marked, Mapping)
    return {name: {**marked, "genesis.torch": f"{this_genesis()} {_modes()} {_vectors()}"}}


def this_genesis() -> str:
    """This Genesis, with the settings that graphs and problems depend on."""
    values = dataclasses.asdict(settings)
    relevant = {each: values[each] for each in sorted(values) if each not in _SAME_GRAPHS}
    return f"{genesis.__version__} {_sources()} {relevant}"


def _modes() -> tuple[object, ...]:
    """Modes in which AOTAutograd traces a graph: before 2.13 PyTorch's key does not tell autocast to float16 from that
    to bfloat16, and none has the default dtype."""
    casts = [(each, torch.get_autocast_dtype(each)) for each in ("cpu", "cuda") if torch.is_autocast_enabled(each)]
    return casts, torch.get_default_dtype(), torch.get_default_device(), torch.is_inference_mode_enabled()


def _vectors() -> str:
    """The CPU's vectors, which ATEN_CPU_CAPABILITY narrows.

    PyTorch's key does not tell loops over 16 numbers from those over 8: it would compile the former for the latter's
    instructions, so that they write beyond the end of an array.
    """
    return torch.backends.cpu.get_cpu_capability()


@functools.cache
def _sources() -> str:
    """A hash of the files that decide on graphs: they may change while the version stays."""
    root, found = Path(genesis.__file__).parent, hashlib.sha256()
    folders = (".", "fusion", "torch", "backends/cuda/ops/conv_bn_relu")  # the last decides on shapes of results
    for path in sorted(path for folder in folders for path in (root / folder).glob("*.py")):
        found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()


@contextlib.contextmanager
def keeping(graph: fx.GraphModule, inputs: Sequence[object], options: Mapping[str, object]) -> Iterator[None]:
    """Have PyTorch keep a graph as it is compiled within.

    They are kept in one piece, which brings back what Genesis knows of them; where that cannot be, only Inductor's
    cache is used, which asks Genesis each time. Backward is compiled at once, as here is where an obstacle can be dealt
    with.
    """
    from torch._functorch import config

    in_one_piece = hasattr(config, "bundled_autograd_cache") and _can_be_kept(graph, inputs, options)
    where = {"bundled_autograd_cache": True} if in_one_piece else {"enable_autograd_cache": False}
    patched: AbstractContextManager[object] = config.patch({"force_non_lazy_backward_lowering": True} | where)
    with patched:
        yield


def _can_be_kept(graph: fx.GraphModule, inputs: Sequence[object], options: Mapping[str, object]) -> bool:
    """Whether AOTAutograd's cache takes a graph: where it refuses, Inductor's may still take its halves."""
    from torch._functorch import config
    from torch._functorch._aot_autograd import autograd_cache
    from torch._inductor import config as inductor

    is_wanted = config.enable_autograd_cache and options.get("fx_graph_cache", inductor.fx_graph_cache)
    if not is_wanted or any(isinstance(x, torch.SymInt | torch.SymFloat | torch.SymBool) for x in inputs):
        return False
    try:
        autograd_cache.check_cacheable(graph)
    except Exception:  # it refuses the graph, or fails: of a method of Tensor, it asks for a module
        return False
    return True
