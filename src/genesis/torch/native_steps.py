"""Run what a short step does for each of several hundred tensors in one call into C++: native_steps.cpp.

Autograd's engine queues a task for each parameter, which together take the host longer than anything else in a step.
accumulate() runs the same AccumulateGrad nodes in a loop, where nobody could tell the difference. PyTorch has no Python
interface for that, and no two versions the same binary one: the file is compiled against the PyTorch that is installed,
in the background, and kept in the cache folder. Until it is there, and where it cannot be compiled, the engine does its
work, and addresses are compared in Python.
"""

from __future__ import annotations

import array
import hashlib
import importlib.machinery
import importlib.util
import logging
import operator
import subprocess
import sys
import sysconfig
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor

from genesis.backends.engine import cache
from genesis.files import replaced
from genesis.settings import settings

_NAME = "native_steps"  # of the module in C++
_SOURCE = Path(__file__).with_suffix(".cpp")
_logger = logging.getLogger("genesis.torch")
_version = operator.attrgetter("_version")
_lock = threading.Lock()
_thread: threading.Thread | None = None
_accumulate: Callable[[object, list[Tensor | None], bool], bool] | None = None
_addresses: Callable[[list[Tensor]], bytes] | None = None
_looks: Callable[[list[Tensor]], bytes] | None = None
_kinds: Callable[[list[weakref.ref[Tensor]]], bytes | None] | None = None


def addresses(tensors: list[Tensor]) -> bytes:
    """The addresses of tensors, to be compared with others, or with as_bytes()."""
    return as_bytes(map(Tensor.data_ptr, tensors)) if _addresses is None else _addresses(tensors)


def looks(tensors: list[Tensor]) -> bytes:
    """The addresses and versions of tensors, to be compared with others."""
    if _looks is None:
        return as_bytes(map(Tensor.data_ptr, tensors)) + as_bytes(map(_version, tensors))
    return _looks(tensors)


def kinds(tensors: list[weakref.ref[Tensor]]) -> bytes | None:
    """requires_grad, dtype, device, shape and strides of tensors, to be compared with others.

    None where a tensor is gone, and as long as the module is not loaded.
    """
    return None if _kinds is None else _kinds(tensors)


def as_bytes(numbers: Iterable[int]) -> bytes:
    return array.array("Q", numbers).tobytes()


def accumulate(context: object, gradients: list[Tensor | None], copies: bool) -> bool:
    """Accumulate gradients in the leaves that the node's edges lead to.

    Args:
        context: of the autograd function whose backward this is.
        gradients: one for each of its tensors that needs one, in their order; emptied, as AccumulateGrad copies what
            is held elsewhere too.
        copies: they are in memory that the next replay overwrites, and are to be copied first.
    Returns: whether it is done, and backward has to return (). If not, the engine has to: leaves have hooks other than
        DistributedDataParallel's, or further gradients, backward() was asked for some inputs, or is to be repeated.
    """
    return _accumulate is not None and _accumulate(context, gradients, copies)


def prepare() -> None:
    """Load the module; if it has to be compiled first, in the background."""
    global _thread
    with _lock:
        if _thread is None:
            _thread = threading.Thread(target=_load, name="genesis-native-steps", daemon=True)
            _thread.start()


def wait() -> bool:
    """Wait until it is loaded. False: it cannot be."""
    prepare()
    assert _thread is not None
    _thread.join()
    return _accumulate is not None


def _load() -> None:
    global _accumulate, _addresses, _looks, _kinds
    try:
        path = _compiled()
        loader = importlib.machinery.ExtensionFileLoader(_NAME, str(path))
        spec = importlib.util.spec_from_loader(_NAME, loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        _accumulate, _addresses = module.accumulate, module.addresses
        _looks, _kinds = module.looks, module.kinds
    except Exception as error:  # no compiler, no headers of Python: the engine accumulates
        detail = error.stderr if isinstance(error, subprocess.CalledProcessError) else error
        _logger.debug("%s is not compiled: %s", _SOURCE.name, detail)


def _compiled() -> Path:
    from torch._inductor import cpp_builder

    source = _SOURCE.read_bytes()
    command = [cpp_builder.get_cpp_compiler(), *_options()]
    key = hashlib.sha256(repr((source, command, torch.__version__, torch.version.git_version)).encode()).hexdigest()
    folder = cache.private_folder(settings.cache_dir / "native")
    path = folder / f"{_NAME}-{key[:40]}{sysconfig.get_config_var('EXT_SUFFIX')}"
    if not path.exists():
        with tempfile.TemporaryDirectory() as place, replaced(path) as temporary:
            result = Path(place, path.name)
            command += [str(_SOURCE), "-o", str(result), *_libraries()]
            subprocess.run(command, check=True, capture_output=True, text=True)
            temporary.write_bytes(result.read_bytes())
    return path


def _options() -> list[str]:
    if sys.platform != "linux":
        raise NotImplementedError(f"no such module for {sys.platform}")
    root = Path(torch.__file__).parent / "include"
    folders = root, root / "torch/csrc/api/include", sysconfig.get_paths()["include"]
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    return [
        "-O2", "-std=c++20", "-shared", "-fPIC", "-w", f"-D_GLIBCXX_USE_CXX11_ABI={abi}",
        *(f"-I{folder}" for folder in folders),
    ]  # fmt: skip


def _libraries() -> list[str]:
    return [f"-L{Path(torch.__file__).parent / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-ltorch", "-lc10"]
