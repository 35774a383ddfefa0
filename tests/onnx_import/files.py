"""ONNX files for the tests, made by the package onnx, and what ONNX Runtime computes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import genesis
from genesis.export.runtime import Session
from genesis.onnx_import import OnnxModule

Arrays = Mapping[str, Any]


def write(
    path: Path, nodes: Sequence[Any], inputs: Arrays, outputs: Sequence[str], weights: Arrays | None = None,
    opset: int = 18,
) -> Path:  # fmt: skip
    """A file of these nodes; inputs are examples, whose sizes all vary."""
    from onnx import TensorProto, helper, numpy_helper

    kinds = {name: helper.np_dtype_to_tensor_dtype(np.asarray(array).dtype) for name, array in inputs.items()}
    graph = helper.make_graph(
        list(nodes), "graph",
        [helper.make_tensor_value_info(name, kinds[name], [None] * np.ndim(inputs[name])) for name in inputs],
        [helper.make_tensor_value_info(name, kinds.get(name, TensorProto.UNDEFINED), None) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in (weights or {}).items()],
    )  # fmt: skip
    for output in graph.output:
        if output.name not in inputs:
            output.ClearField("type")
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def both(path: Path, inputs: Arrays) -> list[tuple[Any, Any]]:
    """Each output as Genesis and as ONNX Runtime compute it."""
    model = genesis.load_onnx(path)
    theirs = Session(path).run(inputs)
    return list(zip(arrays(model, inputs), theirs, strict=True))


def arrays(model: OnnxModule, inputs: Arrays) -> list[Any]:
    with genesis.no_grad():
        found = model(*[genesis.tensor(np.asarray(inputs[each.name])) for each in model.inputs])
    return [tensor.numpy() for tensor in (found.values() if isinstance(found, dict) else [found])]


def normal(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)
