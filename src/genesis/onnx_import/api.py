"""genesis.load_onnx."""

from __future__ import annotations

import os
from pathlib import Path

from genesis.errors import CheckpointError, GenesisError
from genesis.onnx_import import ops_dense, ops_elementwise, ops_pooling, ops_reduction, ops_resize, ops_shape, ops_views
from genesis.onnx_import.graph import network_of
from genesis.onnx_import.module import OnnxModule
from genesis.onnx_import.reading import read

# Imported for their entries in the table.
OPS = (ops_dense, ops_elementwise, ops_pooling, ops_reduction, ops_resize, ops_shape, ops_views)


def load_onnx(path: str | os.PathLike[str]) -> OnnxModule:
    """The network of an ONNX file as a module, in eval mode.

    Weights become parameters and buffers with the file's names, so they can be moved, saved and trained; batch norms
    use their running statistics and dropout does nothing, in training mode too. Sizes may be whatever the file allows.
    The file is not trusted: it runs no code, weights beside it are only read from its folder, and nothing is allocated
    that it does not hold.

    Args:
        path: a file of opset 11 to 26. See `genesis.onnx_import.registry.names()` for its ops.
    Returns: a module. It takes the file's inputs in their order or by name, and returns its output, or a dictionary of
        several by name.
    Raises: NotImportableError: the file uses ops that Genesis does not import; names all of them, and their nodes.
        CheckpointError: the file is no ONNX file, or damaged. OSError: it cannot be read.
        ImportError: a package of the extra `export` is missing.

    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/model.onnx"
        >>> _ = genesis.export.onnx(nn.Conv2d(1, 2, 3), genesis.ones(1, 1, 8, 8), path, dynamic=[0])
        >>> model = genesis.load_onnx(path)
        >>> model(genesis.ones(4, 1, 8, 8)).shape, [name for name, _ in model.named_parameters()]
        ((4, 2, 6, 6), ['weight', 'bias'])
    """
    file = Path(path)
    model = read(file)
    try:
        return OnnxModule(network_of(model, file))
    except (GenesisError, OSError):
        raise
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise CheckpointError(f"{file}: a damaged ONNX file: {error}") from error
