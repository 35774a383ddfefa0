"""The file: a graph with its metadata, and its weights beside it where one file cannot hold them."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import genesis
from genesis.export.converting import Converted
from genesis.files import replaced

if TYPE_CHECKING:
    import onnx_ir as ir

OPSETS = {18: 8, 19: 9, 20: 9, 21: 10, 22: 10, 23: 11, 24: 12}  # and the IR version that came with each
LARGEST = 2_000_000_000  # bytes of weights in the file itself: protocol buffers end at 2³¹


def model_of(converted: Converted, name: str, metadata: Mapping[str, str]) -> ir.Model:
    import onnx_ir as ir

    graph = converted.graph
    made = ir.Graph(
        list(converted.inputs.values()), list(converted.outputs.values()), nodes=graph.nodes,
        initializers=list(graph.initializers.values()), opset_imports={"": graph.opset}, name=name,
    )  # fmt: skip
    return ir.Model(
        made, ir_version=OPSETS[graph.opset], producer_name="genesis", producer_version=genesis.__version__,
        metadata_props=dict(metadata),
    )  # fmt: skip


def write(model: ir.Model, path: Path, check: Callable[[Path], float] | None = None) -> float | None:
    """Write path atomically; weights of more than LARGEST bytes go into a new file beside it.

    A file of weights is never overwritten, so that the model that was there before stays whole until it is replaced;
    then the weights that only it used are removed.

    Args:
        check: called with the new file before it replaces the old one, which stays if this raises.
    Returns: what check returned.
    """
    import onnx_ir as ir

    size = sum(value.const_value.nbytes for value in model.graph.initializers.values())
    name = _free_name(path) if size > LARGEST else None
    before = _weights_beside(path)
    try:
        with replaced(path) as temporary:
            ir.save(model, temporary, format="protobuf", external_data=name)
            found = None if check is None else check(temporary)
    except BaseException:
        if name is not None:
            (path.parent / name).unlink(missing_ok=True)
        raise
    for old in before:
        with contextlib.suppress(OSError):
            (path.parent / old).unlink()
    return found


def _free_name(path: Path) -> str:
    """A name for a file of weights beside path."""
    name = f"{path.name}.data"
    while (path.parent / name).exists():
        name = f"{path.name}.{secrets.token_hex(4)}.data"
    return name


def _weights_beside(path: Path) -> set[str]:
    """Files of weights that the model at path uses, and that write() has made for it."""
    import onnx_ir as ir

    if not path.is_file():
        return set()
    beside = {file for file in os.listdir(path.parent) if file.startswith(f"{path.name}.") and file.endswith(".data")}
    if not beside:
        return set()
    try:
        values = ir.load(path, format="protobuf").graph.initializers.values()
    except Exception:  # not a model: whatever lies beside it is not ours
        return set()
    used = {str(value.const_value.location) for value in values if isinstance(value.const_value, ir.ExternalTensor)}
    return beside & used
