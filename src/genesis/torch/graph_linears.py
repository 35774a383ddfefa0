"""Linear layers, and products of rows with a matrix, in Dynamo's graphs: in full float32 on a GPU."""

from __future__ import annotations

import operator
from typing import NamedTuple

import torch
from torch import fx
from torch.nn import functional

from genesis.torch import bridge
from genesis.torch import linears as linears  # registers an op
from genesis.torch.graph_edits import argument, call, is_plain, put, tensor_of, value_of

_LEAST_FLOPS = 1 << 24  # of a product that is worth a kernel of its own
_LEAST_TERMS = 64  # with fewer, the split of numbers costs more accuracy than sums do
_ALIGNED = 4  # numbers of float32 that are 16 bytes
_PRODUCTS = (operator.matmul, torch.matmul, torch.mm)


class _Product(NamedTuple):
    """rows @ matrix, or with the matrix transposed, + bias."""

    rows: fx.Node
    matrix: fx.Node
    bias: fx.Node | None
    is_transposed: bool


def replace_product(node: fx.Node) -> bool:
    """Put torch.ops.genesis.linear in the place of such a product where that is faster."""
    product = _product(node)
    if product is None or not _suits(product, node):
        return False
    with node.graph.inserting_before(node):
        weight = product.matrix if product.is_transposed else call(node.graph, torch.Tensor.t, product.matrix)
        put(call(node.graph, torch.ops.genesis.linear, product.rows, weight, product.bias), node)
    return True


def _product(node: fx.Node) -> _Product | None:
    """Read the product that a node computes, if it is one."""
    bias = None
    if node.target is functional.linear:
        rows, matrix, bias = (argument(node, i, name) for i, name in enumerate(("input", "weight", "bias")))
    elif node.target in _PRODUCTS and len(node.args) == 2 and not node.kwargs:
        rows, matrix = node.args
    elif node.target is torch.addmm and len(node.args) == 3 and not node.kwargs:
        bias, rows, matrix = node.args
    else:
        return None
    if not all(is_plain(value_of(each)) for each in (node, rows, matrix, *([] if bias is None else [bias]))):
        return None
    return _Product(rows, matrix, bias, node.target is functional.linear)


def _suits(product: _Product, node: fx.Node) -> bool:
    rows, matrix = tensor_of(product.rows), tensor_of(product.matrix)
    given = [rows, matrix, *([] if product.bias is None else [tensor_of(product.bias)])]
    if any(torch._C._functorch.is_functorch_wrapped_tensor(each) or each.dtype is not torch.float32 for each in given):
        return False
    if tensor_of(node).dtype is not torch.float32:  # autocast
        return False
    if rows.dim() < 2 or matrix.dim() != 2 or not all(isinstance(size, int) for size in matrix.shape):
        return False
    outputs, terms = matrix.shape if product.is_transposed else matrix.shape[::-1]
    if given[2:] and given[2].shape != (outputs,):
        return False
    if outputs % _ALIGNED or terms % _ALIGNED or terms < _LEAST_TERMS or outputs < _LEAST_TERMS:
        return False
    num_rows = rows.numel() // terms  # symbolic, if it varies: then what it was in this call decides nothing
    is_large = not isinstance(num_rows, int) or 2 * num_rows * outputs * terms >= _LEAST_FLOPS
    return is_large and bridge.multiplies(rows)
