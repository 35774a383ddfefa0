"""Genesis as a backend of torch.compile: torch.compile(model, backend="genesis").

Dynamo records what the model's code does, guards whatever it read on the way, and records anew when that changes. Its
graphs come here as calls of torch's functions. Convolution → batch norm (→ sum) → ReLU becomes one op in them, max
pooling on CUDA another, and the rest goes to a compiler of PyTorch's.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.nn import functional

from genesis.fusion import Chain, Fusion, Step, find_chains
from genesis.fusion.chains import ADD, CONV, NORM, OTHER, POOL, RELU
from genesis.torch import graph_ops as graph_ops  # registers an op
from genesis.torch import pooling

_ADDS = {operator.add, operator.iadd, torch.add, "add", "add_"}
_RELUS = {torch.relu, torch.relu_, functional.relu, functional.relu_, "relu", "relu_"}
_POOLS = {torch.max_pool2d, functional.max_pool2d}
_IN_PLACE = {operator.setitem, *(getattr(operator, name) for name in dir(operator) if name.startswith("i"))}
_IN_PLACE -= {operator.index, operator.indexOf, operator.inv, operator.invert, operator.is_, operator.is_not}
_logger = logging.getLogger("genesis.torch")


def genesis(
    graph: fx.GraphModule, inputs: Sequence[Any], *, mode: str | None = None, options: dict[str, Any] | None = None
) -> Callable[..., Any]:
    """The backend: torch.compile(model, backend="genesis"), or backend=genesis.torch.dynamo.genesis.

    Args:
        mode: as of torch.compile, for the compiler of all that is not fused.
        options: {"compiler": name} chooses that compiler among PyTorch's ("inductor" by default; "aot_eager" compiles
            nothing and starts at once, "cudagraphs" captures that); other options are that compiler's.
    What was fused is logged at level INFO by the logger "genesis.torch".

    Example:
        >>> import genesis.torch.dynamo, torch
        >>> layers = torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU()
        >>> model = torch.nn.Sequential(*layers)
        >>> options = {"compiler": "aot_eager"}
        >>> compiled = torch.compile(model, backend=genesis.torch.dynamo.genesis, options=options)
        >>> compiled(torch.ones(2, 3, 8, 8)).shape
        torch.Size([2, 8, 6, 6])
    """
    _logger.info("%s", fuse_graph(graph))
    options = dict(options or {})
    name = options.pop("compiler", "inductor")
    if name == "inductor":
        return torch._TorchCompileInductorWrapper(mode or "default", options, None)(graph, inputs)
    from torch._dynamo.backends.registry import lookup_backend

    compiler: Any = lookup_backend(name)
    return compiler(graph, inputs, **options)


def fuse_graph(module: fx.GraphModule) -> Fusion:
    """Put Genesis' ops into a graph of Dynamo's, in place.

    Returns: what was fused, by the names of the graph's nodes, and what was left and why.
    """
    graph = module.graph
    nodes = [node for node in graph.nodes if node.op != "output"]
    numbers = {node: number for number, node in enumerate(nodes)}
    outputs = [numbers[x] for node in graph.nodes if node.op == "output" for x in node.all_input_nodes]
    steps = [_step(node, numbers) for node in nodes]
    chains, left = find_chains(steps, outputs)
    order = _Order(nodes)
    fusion = Fusion()
    for chain in chains:
        allowed = next((part for part in _parts(_without_promotion(chain, nodes)) if order.allows(part)), None)
        if allowed is None:
            left.append((steps[chain.conv].name, "other code depends on when its layers run"))
        else:
            fusion.add("", steps, [allowed])
            _fuse_chain(graph, nodes, allowed)
    for name, reason in left:
        fusion.leave("", name, reason)
    for step, node in zip(steps, nodes, strict=True):
        if step.kind == POOL:
            windows = _pooling(node)
            if windows is not None:
                fusion.replace("", step.name)
                _replace_pooling(graph, node, windows)
    graph.lint()
    module.recompile()
    return fusion


# --- reading the graph ---
def _value(node: Any) -> Any:
    """The tensor without numbers with which Dynamo recorded a node; None for what is no node."""
    return node.meta.get("example_value") if isinstance(node, fx.Node) else None


def _argument(node: fx.Node, position: int, name: str, default: Any = None) -> Any:
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def _step(node: fx.Node, numbers: dict[fx.Node, int]) -> Step:
    operands = tuple(numbers[x] for x in node.all_input_nodes)
    kind, obstacle = OTHER, ""
    target = node.target
    if node.op in ("call_function", "call_method"):
        if target is torch.conv2d:
            kind, obstacle = CONV, _why_not_conv(node)
            operands = tuple(numbers[x] for x in node.args[:1] if isinstance(x, fx.Node))
        elif target is functional.batch_norm:
            kind, obstacle = NORM, _why_not_norm(node)
            operands = tuple(numbers[x] for x in node.args[:1] if isinstance(x, fx.Node))
        elif target in _RELUS and len(operands) == 1:
            kind = RELU
        elif target in _ADDS and len(node.args) == 2 and not node.kwargs:
            if all(isinstance(_value(x), Tensor) for x in node.args):
                kind, operands = ADD, tuple(numbers[x] for x in node.args if isinstance(x, fx.Node))
        elif target in _POOLS:
            kind = POOL
    # Buffers of a norm and weights are no values that flow: _Order looks after them.
    return Step(kind, numbers[node], operands, node.name, obstacle)


def _why_not_conv(node: fx.Node) -> str:
    input, result = _value(_argument(node, 0, "input")), _value(node)
    weight = _value(_argument(node, 1, "weight"))
    if not all(isinstance(x, Tensor) for x in (input, weight, result)) or not isinstance(node.args[0], fx.Node):
        return "its arguments are no plain tensors"
    if input.dim() != 4:
        return "its input has no batch"
    if not result.dtype.is_floating_point:
        return f"its dtype is {result.dtype}"
    if not (input.device == weight.device and input.device.type in ("cpu", "cuda")):
        return f"it runs on {input.device}"
    if any(isinstance(size, int) and size < 1 for size in (*result.shape, *input.shape)):
        return "its result is empty"
    return "" if _geometry(node) is not None else "it pads one side more than the other"


def _geometry(node: fx.Node) -> tuple[Any, ...] | None:
    """Stride, padding and dilation as pairs, groups; None where padding differs from side to side."""
    stride, padding, dilation = (
        _argument(node, position, name, default)
        for position, name, default in ((3, "stride", 1), (4, "padding", 0), (5, "dilation", 1))
    )
    stride, dilation = _pair(stride), _pair(dilation)
    if isinstance(padding, str):
        kernel = _value(_argument(node, 1, "weight")).shape[2:]
        reach = [d * (k - 1) if padding == "same" else 0 for d, k in zip(dilation, kernel, strict=True)]
        if any(r % 2 for r in reach):
            return None
        padding = tuple(r // 2 for r in reach)
    return stride, _pair(padding), dilation, _argument(node, 6, "groups", 1)


def _pair(value: Any) -> tuple[int, int]:
    values = tuple(value) if isinstance(value, tuple | list) else (value,)
    return values * 2 if len(values) == 1 else values


def _why_not_norm(node: fx.Node) -> str:
    input, result = _value(node.args[0] if node.args else None), _value(node)
    if not isinstance(input, Tensor) or not isinstance(result, Tensor) or result.dtype != input.dtype:
        return "its batch norm changes the dtype"
    options = (
        _argument(node, 5, "training", False),
        _argument(node, 6, "momentum", 0.1),
        _argument(node, 7, "eps", 1e-5),
    )
    if not isinstance(options[0], bool) or any(not isinstance(x, int | float) for x in options[1:]):
        return "its batch norm's options are computed"
    return ""


def _norm_options(node: fx.Node) -> list[Any]:
    """Training, momentum, eps."""
    names = ("training", False), ("momentum", 0.1), ("eps", 1e-5)
    return [_argument(node, 5 + i, name, default) for i, (name, default) in enumerate(names)]


def _parts(chain: Chain) -> list[Chain]:
    """The chain, and the shorter ones at its beginning."""
    shorter = [chain, chain._replace(relu=None), chain._replace(relu=None, add=None, residual=None)]
    return list(dict.fromkeys(shorter))


def _without_promotion(chain: Chain, nodes: list[fx.Node]) -> Chain:
    """The chain, without a sum that changes the dtype or broadcasts: the op's residual has the shape of its result."""
    if chain.add is None:
        return chain
    norm, residual, result = (_value(nodes[i]) for i in (chain.norm, chain.residual, chain.add) if i is not None)
    fits = norm.dtype == residual.dtype == result.dtype and norm.shape == residual.shape
    return chain if fits else chain._replace(add=None, relu=None, residual=None)


class _Effects(NamedTuple):
    """What a node does beside its result: memory that it reads and changes; whether it switches a mode, or may do
    anything."""

    reads: frozenset[int]
    changes: frozenset[int]
    unknown: bool


class _Order:
    """Which chains may run at their end: a convolution moves past all that stands between it and the last layer."""

    def __init__(self, nodes: list[fx.Node]) -> None:
        self._nodes = nodes
        self._effects = [_effects(node) for node in nodes]

    def allows(self, chain: Chain) -> bool:
        parts = {part for part in (chain.conv, chain.norm, chain.add, chain.relu) if part is not None}
        own = [self._effects[part] for part in parts]
        inside = {key for part in parts for key in _memory([self._nodes[part]])}  # seen by nobody else
        reads = frozenset().union(*(x.reads for x in own)) - inside
        changes = frozenset().union(*(x.changes for x in own)) - inside
        between = [self._effects[i] for i in range(chain.conv + 1, chain.last) if i not in parts]
        return not any(x.unknown or x.changes & (reads | changes) or x.reads & changes for x in between)


def _memory(nodes: Iterable[Any]) -> frozenset[int]:
    """The storages behind the values of nodes: views have that of their base."""
    values = [_value(node) for node in nodes]
    tensors = [x for value in values for x in (value if isinstance(value, tuple | list) else (value,))]
    return frozenset(x.untyped_storage()._cdata for x in tensors if isinstance(x, Tensor) and not x.is_sparse)


def _effects(node: fx.Node) -> _Effects:
    reads, nothing = _memory(node.all_input_nodes), frozenset[int]()
    if node.op in ("placeholder", "get_attr"):
        return _Effects(nothing, nothing, False)
    if node.target is functional.batch_norm:
        changed = _memory(_argument(node, i, n) for i, n in ((1, "running_mean"), (2, "running_var")))
        return _Effects(reads, changed if _argument(node, 5, "training", False) else nothing, False)
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__")
    if in_place or node.target in _IN_PLACE or node.kwargs.get("inplace") is True or node.args[1:2] == (True,):
        return _Effects(reads, _memory(node.all_input_nodes[:1]), False)
    if node.kwargs.get("out") is not None:
        return _Effects(reads, reads, False)
    known = node.op == "call_method" or getattr(node.target, "__module__", None) in _PURE or _is_builtin(node.target)
    switches = _value(node) is None and not node.users
    return _Effects(reads, nothing, not known or switches or node.target in _MODES)


_PURE = {"torch.nn.functional", "torch.functional", "_operator", "torch._C._nn", "torch"}
_MODES = {torch.amp.autocast_mode._enter_autocast, torch.amp.autocast_mode._exit_autocast, torch._C._set_grad_enabled}


def _is_builtin(target: Any) -> bool:
    """A function of torch's own, such as torch.cat."""
    return type(target) is type(torch.cat) and getattr(torch, target.__name__, None) is target


# --- writing it ---
def _fuse_chain(graph: fx.Graph, nodes: list[fx.Node], chain: Chain) -> None:
    conv, norm, last = nodes[chain.conv], nodes[chain.norm], nodes[chain.last]
    residual = None
    if chain.add is not None:  # looked up now, as it may be the end of another chain
        residual = next(x for x in nodes[chain.add].args if x is not norm)
    dtype = _value(conv).dtype  # under autocast another than the operands'
    with graph.inserting_before(last.next):
        operands = [_argument(conv, i, name) for i, name in enumerate(("input", "weight", "bias"))]
        mean, var, gamma, beta = (
            _argument(norm, i + 1, name) for i, name in enumerate(("running_mean", "running_var", "weight", "bias"))
        )
        training, momentum, eps = _norm_options(norm)
        vectors, how = (gamma, beta, mean, var, residual), (*_geometry(conv), None if chain.relu is None else "relu")  # type: ignore[misc]
        folds = not training and mean is not None and not _value(last).requires_grad
        casts = [x is not None and _value(x).dtype != dtype and (not folds or x is operands[0]) for x in operands]
        operands = [graph.call_method("to", (x, dtype)) if cast else x for x, cast in zip(operands, casts, strict=True)]
        if folds:
            result = graph.call_function(
                torch.ops.genesis.conv_bn_relu_inference, (*operands, *vectors, float(eps), *how)
            )
        else:
            args = (*operands, *vectors, training, float(momentum), float(eps), *how)
            both = graph.call_function(torch.ops.genesis.conv_bn_relu, args)
            result = graph.call_function(operator.getitem, (both, 0))
        strides = _value(last).stride()
        if not (isinstance(strides[1], int) and strides[1] == 1):  # not channels-last, as the op has it
            result = graph.call_method("contiguous", (result,))
        result.meta["example_value"] = _value(last)
    last.replace_all_uses_with(result)
    for position in (chain.relu, chain.add, chain.norm, chain.conv):
        if position is not None:
            graph.erase_node(nodes[position])


def _pooling(node: fx.Node) -> Any:
    """The windows of a max pooling that Genesis' kernels run; None for PyTorch's function."""
    input = _value(node.args[0] if node.args else None)
    if not isinstance(input, Tensor) or not pooling.has_kernels(input) or not isinstance(_value(node), Tensor):
        return None  # with return_indices it has two results
    defaults = {"kernel_size": None, "stride": None, "padding": 0, "dilation": 1, "ceil_mode": False}
    options = [_argument(node, 1 + i, name, default) for i, (name, default) in enumerate(defaults.items())]
    return pooling._windows(input, *options)


def _replace_pooling(graph: fx.Graph, node: fx.Node, windows: Any) -> None:
    needs_gradient = _value(node).requires_grad
    with graph.inserting_before(node):
        both = graph.call_function(torch.ops.genesis.max_pool2d, (node.args[0], *windows, needs_gradient))
        result = graph.call_function(operator.getitem, (both, 0))
        result.meta["example_value"] = _value(node)
    node.replace_all_uses_with(result)
    graph.erase_node(node)
