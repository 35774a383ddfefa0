"""Average pooling in Dynamo's graphs, where Inductor computes a wrong gradient."""

from __future__ import annotations

from torch import fx
from torch.nn import functional

_AVERAGES = {functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d}
_ARGUMENTS = ("input", "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")


def count_elements(graph: fx.Graph) -> None:
    """Have windows that end beyond the input divide by their number of elements, in place.

    Without padding, that is what they do anyway. But unless it is said by count_include_pad=False, Inductor divides
    their gradients by the size of a whole window (PyTorch 2.9 to 2.13).
    """
    for node in graph.nodes:
        if node.op != "call_function" or node.target not in _AVERAGES:
            continue
        given = {**dict(zip(_ARGUMENTS, node.args, strict=False)), **node.kwargs}
        if given.get("ceil_mode", False) is True and given.get("divisor_override") is None and _is_zero(given):
            node.args = ()
            node.kwargs = {**given, "count_include_pad": False}


def _is_zero(given: dict[str, object]) -> bool:
    padding = given.get("padding", 0)
    return all(each == 0 for each in padding) if isinstance(padding, tuple | list) else padding == 0
