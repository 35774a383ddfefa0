"""Average pooling in Dynamo's graphs, where PyTorch computes wrong gradients."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, fx
from torch.fx.node import Argument
from torch.nn import functional

from genesis.torch import averaging as averaging  # registers an op
from genesis.torch.graph_edits import call, constant_sizes, put, tensor_of

_FUNCTIONS = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}
_DIMS: dict[object, int] = {function: dims for dims, function in _FUNCTIONS.items()}
_ARGUMENTS = ("input", "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
_DEFAULTS = {"stride": None, "padding": 0, "ceil_mode": False, "count_include_pad": True, "divisor_override": None}
_MOST_UNROLLED = 25  # windows over a pixel, of whose sum Inductor makes code; for more it calls PyTorch's kernel
_Sizes = tuple[int, ...]
_Given = Mapping[str, object]


def mend_average(node: fx.Node, compiler: str) -> bool:
    """Have an average pooling compute right gradients, in place.

    Where windows end beyond the input and its padding, Inductor divides their gradients by the size of a whole window,
    unless padding is not counted (PyTorch 2.9 to 2.13, https://github.com/pytorch/pytorch/issues/198119). PyTorch's
    kernel on CUDA forgets the padding of channels-last images, see genesis.torch.averaging; Inductor calls it only
    where many windows overlap.
    """
    return node.target in _DIMS and (_count_elements(node, compiler) or _replace(node, compiler))


def _count_elements(node: fx.Node, compiler: str) -> bool:
    """Divide by the number of a window's elements. Without padding that is what is counted anyway; where there is some,
    it becomes a part of the input."""
    given, dims = _given(node), _DIMS[node.target]
    padding = constant_sizes(given["padding"], dims)
    if not _counts_wrongly(given) or padding is None:
        return False
    if not any(padding):
        node.args, node.kwargs = (), {**_written(node), "count_include_pad": False}
        return True
    windows = _windows(given, dims)
    if compiler != "inductor" or windows is None:
        return False
    # Windows that begin in the padding do not count; in what was padded they would.
    may_be_more = any(step > size - pad for size, step, pad in zip(*windows, padding, strict=True))
    if may_be_more and any(not isinstance(size, int) for size in tensor_of(node).shape):
        return False
    with node.graph.inserting_before(node):
        sides = [side for size in reversed(padding) for side in (size, size)]
        new = call(node.graph, functional.pad, _input(given), sides)
        new = call(node.graph, _FUNCTIONS[dims], new, *windows, (0,) * dims, True, False)
        for dim in range(-dims, 0) if may_be_more else ():
            mine, theirs = (tensor_of(each).shape[dim] for each in (new, node))
            if mine != theirs:
                new = call(node.graph, torch.narrow, new, dim, 0, theirs)
        put(new, node)
    return True


def _replace(node: fx.Node, compiler: str) -> bool:
    """Put torch.ops.genesis.avg_pool2d in the place of a pooling whose gradient may be wrong."""
    given, dims = _given(node), _DIMS[node.target]
    padding, windows = constant_sizes(given["padding"], dims), _windows(given, dims)
    if dims == 3 or padding is None or windows is None or not any(padding):
        return False
    if not isinstance(given["divisor_override"], int | None):
        return False
    x = tensor_of(_input(given))
    if not tensor_of(node).requires_grad or not _takes(x, dims):
        return False
    kernel_size, stride = windows
    if dims == 1:  # of images of one row
        kernel_size, stride, padding = (1, *kernel_size), (1, *stride), (0, *padding)
    covering = -(-kernel_size[0] // stride[0]) * -(-kernel_size[1] // stride[1])
    calls_kernel = compiler != "inductor" or covering > _MOST_UNROLLED
    if not (_forgets_padding(x) if calls_kernel else _counts_wrongly(given)):
        return False
    with node.graph.inserting_before(node):
        images = _input(given) if dims == 2 else call(node.graph, torch.unsqueeze, _input(given), -2)
        rest = [given[name] for name in _ARGUMENTS[4:]]
        new = call(node.graph, torch.ops.genesis.avg_pool2d, images, kernel_size, stride, padding, *rest)
        put(new if dims == 2 else call(node.graph, torch.squeeze, new, -2), node)
    return True


# --- reading ---
def _given(node: fx.Node) -> dict[str, object]:
    """A call's arguments by their names."""
    return {**_DEFAULTS, **_written(node)}


def _written(node: fx.Node) -> dict[str, Argument]:
    """The arguments that are not left to their defaults, of which avg_pool1d has fewer."""
    return {**dict(zip(_ARGUMENTS, node.args, strict=False)), **node.kwargs}


def _counts_wrongly(given: _Given) -> bool:
    """Return whether Inductor may divide gradients by the size of a whole window."""
    return given["ceil_mode"] is True and given["count_include_pad"] is True and given["divisor_override"] is None


def _windows(given: _Given, dims: int) -> tuple[_Sizes, _Sizes] | None:
    """Size and stride of windows; None if they are no constants."""
    kernel_size = constant_sizes(given["kernel_size"], dims)
    stride = kernel_size if given["stride"] in (None, (), []) else constant_sizes(given["stride"], dims)
    return None if kernel_size is None or stride is None else (kernel_size, stride)


def _takes(x: Tensor, dims: int) -> bool:
    """Return whether the op takes such a tensor."""
    return x.dim() == 2 + dims and x.is_floating_point() and not torch._C._functorch.is_functorch_wrapped_tensor(x)


def _forgets_padding(x: Tensor) -> bool:
    """Return whether PyTorch's kernel does, should the compiler choose channels last."""
    return x.is_cuda


def _input(given: _Given) -> fx.Node:
    input = given["input"]
    assert isinstance(input, fx.Node)
    return input
