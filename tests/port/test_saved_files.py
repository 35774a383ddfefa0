"""torch.save and torch.load of redirected code: files that PyTorch reads, and everything that PyTorch's hold."""

from __future__ import annotations

import io
import pickle
from argparse import Namespace
from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis.errors import CheckpointError, GraphError
from genesis.port import facade

OURS: Any = facade.facade("torch")


class Net(genesis.nn.Module):
    """A user's model, which a script saves whole."""

    def __init__(self) -> None:
        super().__init__()
        self.first = genesis.nn.Linear(2, 3)
        self.second = genesis.nn.Linear(2, 3)
        self.second.weight = self.first.weight
        self.register_buffer("mean", genesis.arange(3.0))

    def forward(self, x: genesis.Tensor) -> genesis.Tensor:
        return self.first(x) + self.second(x) - self.mean


def checkpoint() -> dict[str, Any]:
    model = Net()
    optimizer = genesis.optim.Adam(model.parameters(), lr=1e-2)
    model(genesis.ones(1, 2)).sum().backward()
    optimizer.step()
    return {"epoch": 3, "best": 0.5, "model": model.state_dict(), "optimizer": optimizer.state_dict()}


def test_pytorch_reads_a_checkpoint(tmp_path: Path) -> None:
    written = checkpoint()
    OURS.save(written, tmp_path / "model.pt")
    read = torch.load(tmp_path / "model.pt")
    assert (read["epoch"], read["best"]) == (3, 0.5)
    assert type(read["model"]) is OrderedDict
    for name, value in written["model"].items():
        np.testing.assert_array_equal(read["model"][name].numpy(), value.numpy())
    assert read["model"]["first.weight"].data_ptr() == read["model"]["second.weight"].data_ptr()
    assert read["optimizer"]["param_groups"][0]["lr"] == 1e-2
    twin = torch.optim.Adam([torch.nn.Parameter(torch.zeros(each.shape)) for each in Net().parameters()], lr=1.0)
    twin.load_state_dict(read["optimizer"])
    assert twin.param_groups[0]["lr"] == 1e-2


@pytest.mark.parametrize("weights_only", [True, False])
def test_a_checkpoint_comes_back(weights_only: bool) -> None:
    written = checkpoint()
    file = io.BytesIO()
    OURS.save(written, file)
    file.seek(0)
    read = OURS.load(file, map_location="cpu", weights_only=weights_only)
    model = Net()
    model.load_state_dict(read["model"])
    optimizer = genesis.optim.Adam(model.parameters(), lr=1.0)
    optimizer.load_state_dict(read["optimizer"])
    assert optimizer.param_groups[0]["lr"] == 1e-2
    assert all(isinstance(value, genesis.Tensor) for value in read["model"].values())
    np.testing.assert_array_equal(model.first.bias.detach().numpy(), written["model"]["first.bias"].numpy())


def test_whole_modules_come_back(tmp_path: Path) -> None:
    model = Net()
    OURS.save(model, tmp_path / "net.pt")
    with pytest.raises(CheckpointError, match="objects that only running its code could restore"):
        OURS.load(tmp_path / "net.pt")
    read = OURS.load(tmp_path / "net.pt", weights_only=False)
    assert type(read) is Net
    assert isinstance(read.first.weight, genesis.nn.Parameter)
    assert read.second.weight is read.first.weight
    x = genesis.randn(4, 2)
    np.testing.assert_array_equal(read(x).detach().numpy(), model(x).detach().numpy())
    read(x).sum().backward()
    assert read.first.weight.grad is not None


def test_any_object_comes_back(tmp_path: Path) -> None:
    counts: defaultdict[str, int] = defaultdict(int, a=1)
    written = {
        "array": np.arange(3.0),
        "options": Namespace(lr=0.1),
        "counts": counts,
        "shape": genesis.ones(2, 3).shape,
    }
    OURS.save(written, tmp_path / "any.pt")
    read = OURS.load(tmp_path / "any.pt", weights_only=False)
    np.testing.assert_array_equal(read.pop("array"), written.pop("array"))
    assert read == written
    assert isinstance(read["shape"], genesis.Size)


def test_dtypes_and_views_come_back() -> None:
    base = genesis.arange(6.0).reshape(2, 3)
    tensors = [base.T, base[1:], base.bfloat16(), base.long(), base > 2, genesis.tensor(2.0, requires_grad=True)]
    file = io.BytesIO()
    OURS.save(tensors, file)
    for weights_only in (True, False):
        file.seek(0)
        for read, value in zip(OURS.load(file, weights_only=weights_only), tensors, strict=True):
            assert (read.shape, read.dtype, read.tolist()) == (value.shape, value.dtype, value.tolist())


def test_pytorchs_files_are_read_with_what_they_hold(tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(2), "array": np.ones(2), "dtype": torch.float16}, tmp_path / "any.pt")
    read = OURS.load(tmp_path / "any.pt", weights_only=False)
    assert isinstance(read["weight"], genesis.Tensor)
    assert read["dtype"] is genesis.float16
    torch.save(torch.nn.Linear(2, 3), tmp_path / "module.pt")
    with pytest.raises(CheckpointError, match=r"of PyTorch's class torch\.nn\.modules\.linear\.Linear; load its state"):
        OURS.load(tmp_path / "module.pt", weights_only=False)


def test_a_failed_save_leaves_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    OURS.save({"weight": genesis.ones(2)}, path)
    before = path.read_bytes()
    with pytest.raises((pickle.PicklingError, AttributeError)):
        OURS.save({"weight": genesis.zeros(2), "hook": lambda: None}, path)
    with pytest.raises(GraphError, match="save: only leaves can be saved"):
        OURS.save(genesis.ones(2, requires_grad=True) * 2, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_what_genesis_saved_is_read(tmp_path: Path) -> None:
    genesis.save({"weight": genesis.ones(2)}, tmp_path / "model.safetensors")
    assert OURS.load(tmp_path / "model.safetensors", weights_only=False)["weight"].tolist() == [1.0, 1.0]
    assert OURS.serialization.save is OURS.save
