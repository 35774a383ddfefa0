"""PyTorch's small names: limits of dtypes, modes, what models ask of jit and compiler, utils.data, tensorboard."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis.errors import DTypeError

FLOATS = ("float64", "float32", "float16", "bfloat16")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8")


@pytest.mark.parametrize("name", FLOATS)
def test_finfo(name: str) -> None:
    ours, theirs = genesis.finfo(getattr(genesis, name)), torch.finfo(getattr(torch, name))
    for limit in ("bits", "eps", "max", "min", "tiny", "smallest_normal", "dtype"):
        assert getattr(ours, limit) == getattr(theirs, limit)
    assert ours.resolution == pytest.approx(theirs.resolution, rel=0.01)
    assert genesis.finfo().dtype == "float32"
    with pytest.raises(DTypeError, match="finfo: argument 'type': expected a floating dtype"):
        genesis.finfo(genesis.int64)


@pytest.mark.parametrize("name", INTEGERS)
def test_iinfo(name: str) -> None:
    ours, theirs = genesis.iinfo(getattr(genesis, name)), torch.iinfo(getattr(torch, name))
    assert (ours.bits, ours.max, ours.min, ours.dtype) == (theirs.bits, theirs.max, theirs.min, theirs.dtype)
    with pytest.raises(DTypeError, match="iinfo: argument 'type': expected an integer dtype"):
        genesis.iinfo(genesis.float32)


def test_inference_mode() -> None:
    x = genesis.ones(2, requires_grad=True)

    def records() -> bool:
        return (x * 2).requires_grad

    assert records()
    assert not genesis.is_inference_mode_enabled()
    for decorate in (genesis.inference_mode, genesis.inference_mode(), genesis.no_grad, genesis.no_grad()):
        assert not decorate(records)()
    assert genesis.inference_mode(False)(records)()
    assert genesis.enable_grad(genesis.no_grad(records))() is False
    with genesis.inference_mode():
        assert genesis.is_inference_mode_enabled()
        assert not records()
        with genesis.inference_mode(mode=False):
            assert records()
            assert not genesis.is_inference_mode_enabled()
        assert not records()
    assert records()


def test_set_grad_enabled_decorates() -> None:
    x = genesis.ones(2, requires_grad=True)
    function = genesis.set_grad_enabled(False)(lambda: (x * 2).requires_grad)
    assert genesis.is_grad_enabled()
    assert function() is False
    assert genesis.is_grad_enabled()


def test_what_models_ask_of_the_compilers() -> None:
    assert not any((genesis.jit.is_scripting(), genesis.jit.is_tracing(), genesis.compiler.is_compiling()))

    def f() -> int:
        return 1

    jit, compiler = genesis.jit, genesis.compiler
    decorators = [jit.script, jit.ignore, jit.ignore(), jit.unused, jit.export, jit.script_if_tracing]
    for decorator in (*decorators, compiler.disable, compiler.disable(recursive=False), compiler.allow_in_graph):
        assert decorator(f) is f
    with pytest.raises(NotImplementedError, match="there is no TorchScript"):
        jit.trace(f)


def test_utils_data_has_pytorchs_names() -> None:
    names = {name for name in torch.utils.data.__all__ if "DataPipe" not in name and name[0].isupper()}
    data = genesis.utils.data
    missing = {name for name in names if not hasattr(data, name)}
    assert missing == {"DFIterDataPipe", "DataChunk", "DistributedSampler"} & missing
    for name in ("default_collate", "default_convert", "get_worker_info", "random_split"):
        assert callable(getattr(data, name))


def test_a_loader_without_batches_converts_samples() -> None:
    data = genesis.utils.data
    samples = [{"x": genesis.ones(2), "y": np.zeros(1)}, {"x": genesis.zeros(2), "y": np.ones(1)}]
    loaded = list(data.DataLoader(samples, batch_size=None))
    assert [item["x"].tolist() for item in loaded] == [[1, 1], [0, 0]]
    assert isinstance(loaded[0]["y"], genesis.Tensor)


class Written:
    """The part of PyTorch's writer that sees the arguments."""

    def __init__(self, log_dir: str | None = None) -> None:
        self.seen: list[Any] = []

    def add_scalar(self, *args: Any, **options: Any) -> None:
        self.seen.append((args, options))

    add_histogram = add_image = add_scalar


def test_the_writer_of_tensorboard_takes_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Written  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.delitem(sys.modules, "genesis.utils.tensorboard", raising=False)
    writer = importlib.import_module("genesis.utils.tensorboard").SummaryWriter("runs")
    writer.add_scalar("loss", genesis.tensor(2.0, requires_grad=True), global_step=1)
    writer.add_histogram(tag="w", values=genesis.arange(3))
    (scalar, step), (_, histogram) = writer.seen
    assert scalar[0] == "loss"
    assert isinstance(scalar[1], torch.Tensor)
    assert scalar[1].item() == 2
    assert step["global_step"] == 1
    assert histogram["values"].tolist() == [0, 1, 2]
    with pytest.raises(NotImplementedError, match="add_graph"):
        writer.add_graph(None)
    monkeypatch.delitem(sys.modules, "genesis.utils.tensorboard")


def test_without_tensorboard_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.delitem(sys.modules, "genesis.utils.tensorboard", raising=False)
    with pytest.raises(ImportError, match="pip install tensorboard"):
        importlib.import_module("genesis.utils.tensorboard")
