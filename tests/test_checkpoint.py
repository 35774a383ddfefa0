"""Checkpoints: what goes in comes out, an interruption never costs the old file, and nothing in a file is executed."""

from __future__ import annotations

import io
import itertools
import json
import math
import multiprocessing
import os
import pickle
import time
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import torch

import genesis
from genesis import dtypes
from genesis.checkpoint import read_metadata
from genesis.errors import CheckpointError, DTypeError
from genesis.settings import override


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.safetensors"


def listing(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.parent.iterdir())


def same(loaded: Any, saved: Any) -> None:
    """Equal in type and value, all the way down."""
    assert type(loaded) is type(saved)
    if isinstance(saved, genesis.Tensor):
        assert (loaded.shape, loaded.dtype) == (saved.shape, saved.dtype)
        np.testing.assert_array_equal(loaded.array.bits(), saved.array.bits())
    elif isinstance(saved, dict):
        assert list(loaded) == list(saved)
        for key, value in saved.items():
            same(loaded[key], value)
    elif isinstance(saved, list | tuple):
        assert len(loaded) == len(saved)
        for mine, other in zip(loaded, saved, strict=True):
            same(mine, other)
    else:
        assert loaded == saved or (saved != saved and loaded != loaded)


# --- what goes in comes out -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (0,), (2, 0, 3)], ids=str)
def test_tensors_of_every_dtype(dtype: genesis.dtype, shape: tuple[int, ...], path: Path) -> None:
    tensor = (genesis.randn(shape) * 3).to(dtype)
    genesis.save({"t": tensor}, path)
    same(genesis.load(path), {"t": tensor})


def test_nan_payloads_and_signed_zeros_survive(path: Path) -> None:
    bits = np.array([0x7FC1, 0x8000, 0x0001, 0xFF80], np.uint16)
    array = genesis.ones(1).array.from_numpy(bits, genesis.bfloat16)
    genesis.save([genesis.Tensor(array)], path)
    np.testing.assert_array_equal(genesis.load(path)[0].array.bits(), bits)


PLAIN = {
    "none": None,
    "numbers": [True, False, 0, -(2**80), 0.1, 1e-320, math.inf, -math.inf, math.nan],
    "text": "Köln \0 \" \\ \u2028",
    "bytes": bytes(range(256)),
    "tuple": (1, (2, [3, ()])),
    "empty": [{}, [], (), "", b""],
    7: {"int key": {None: 1, (1, "a"): 2, 2.5: 3, True: 4}},
    "dtype": genesis.bfloat16,
    "a/b": {"c": 1},
    "tensor": {"tensor": "looks like ours"},
}  # fmt: skip


def test_plain_values(path: Path) -> None:
    genesis.save(PLAIN, path)
    same(genesis.load(path), PLAIN)


def test_subclasses_become_plain(path: Path) -> None:
    genesis.save([Counter(a=2), OrderedDict(b=1), np.float32(0.5), np.int64(3), np.bool_(True)], path)
    same(genesis.load(path), [{"a": 2}, {"b": 1}, 0.5, 3, True])


@pytest.mark.parametrize("value", [3, None, "x", [], genesis.ones(2)], ids=repr)
def test_anything_at_the_top(value: Any, path: Path) -> None:
    genesis.save(value, path)
    same(genesis.load(path), value)


def test_names_that_collide(path: Path) -> None:
    state = {
        "a": {"b": genesis.ones(1)}, "a/b": genesis.zeros(1), "__metadata__": genesis.ones(2), "1": [genesis.ones(3)],
        1: [genesis.zeros(3)],
    }  # fmt: skip
    genesis.save(state, path)
    same(genesis.load(path), state)


def test_tied_tensors_stay_tied(path: Path) -> None:
    shared = genesis.randn(4, 4)
    genesis.save({"encoder": shared, "decoder": shared.detach(), "other": shared.clone(), "view": shared[0]}, path)
    assert path.stat().st_size < 2 * 64 + 16 + 1000
    loaded = genesis.load(path)
    assert loaded["encoder"] is loaded["decoder"]
    loaded["encoder"].zero_()
    assert loaded["other"].tolist() == shared.tolist()
    assert loaded["view"].tolist() == shared[0].tolist()


@pytest.mark.parametrize("view", [
    lambda t: t.contiguous(genesis.channels_last), lambda t: t.transpose(1, 3), lambda t: t[:, ::2], lambda t: t[1:],
    lambda t: t[:1].expand(3, -1, -1, -1),
])  # fmt: skip
def test_any_memory_order(view: Any, path: Path) -> None:
    tensor = view(genesis.randn(2, 3, 4, 5))
    genesis.save({"t": tensor}, path)
    loaded = genesis.load(path)["t"]
    assert loaded.is_contiguous()
    assert loaded.tolist() == tensor.tolist()


def test_parameters_keep_their_memory_order(path: Path) -> None:
    """The file is row-major; a channels_last weight takes the values and stays channels_last."""
    weight = genesis.randn(4, 3, 2, 2).contiguous(genesis.channels_last).requires_grad_()
    genesis.save({"weight": weight}, path)
    values = weight.tolist()
    with genesis.no_grad():
        weight.zero_()
        weight.copy_(genesis.load(path)["weight"])
    assert weight.tolist() == values
    assert weight.is_contiguous(genesis.channels_last)


def test_other_programs_read_and_write_it(path: Path) -> None:
    state = {"conv.weight": genesis.randn(2, 3), "conv.bias": genesis.zeros(2), "steps": genesis.tensor(3)}
    genesis.save(state, path)
    theirs = safetensors.numpy.load_file(path)
    assert {name: array.tolist() for name, array in theirs.items()} == {name: t.tolist() for name, t in state.items()}
    safetensors.numpy.save_file(theirs, path)
    loaded = genesis.load(path)
    assert {name: t.tolist() for name, t in loaded.items()} == {name: t.tolist() for name, t in state.items()}
    assert read_metadata(path) == {}


def test_every_tensor_is_aligned(path: Path) -> None:
    genesis.save([genesis.ones(3, dtype=dtype) for dtype in reversed(dtypes.ALL)], path)
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    sizes = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2}
    for name, entry in header.items():
        if name != "__metadata__":
            assert (8 + length + entry["data_offsets"][0]) % sizes.get(entry["dtype"], 1) == 0


def test_metadata(path: Path) -> None:
    genesis.save({"t": genesis.ones(1)}, path, metadata={"epoch": "3", "model": "unet"})
    assert read_metadata(path) == {"epoch": "3", "model": "unet"}
    same(genesis.load(path, device="cpu"), {"t": genesis.ones(1)})


def test_a_module_is_its_state_dict(path: Path) -> None:
    module = genesis.nn.Conv2d(2, 3, 3)
    genesis.save(module, path)
    loaded = genesis.load(path)
    same(loaded, {name: t.detach() for name, t in module.state_dict().items()})
    genesis.nn.Conv2d(2, 3, 3).load_state_dict(loaded)


def test_training_goes_on_from_the_file(path: Path) -> None:
    """Model, optimizer, schedule, scaler and random numbers: the resumed run takes the very same steps."""

    def build() -> dict[str, Any]:
        genesis.manual_seed(0)
        model = genesis.nn.Sequential(
            genesis.nn.Conv2d(1, 4, 3), genesis.nn.BatchNorm2d(4), genesis.nn.ReLU(), genesis.nn.Conv2d(4, 1, 1)
        )
        optimizer = genesis.optim.AdamW(model.parameters(), lr=0.01)
        return {
            "model": model,
            "optimizer": optimizer,
            "scaler": genesis.amp.GradScaler(init_scale=64.0, growth_interval=2),
            "schedule": genesis.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=20),
        }

    def train(parts: dict[str, Any], steps: int) -> None:
        for _ in range(steps):
            parts["optimizer"].zero_grad()
            loss = (parts["model"](genesis.randn(2, 1, 6, 6)) ** 2).mean()
            parts["scaler"].scale(loss).backward()
            parts["scaler"].step(parts["optimizer"])
            parts["scaler"].update()
            parts["schedule"].step()

    first = build()
    train(first, 5)
    backend = genesis.backends.get("cpu")
    state = {name: part.state_dict() for name, part in first.items()}
    genesis.save({**state, "epoch": 5, "random": backend.get_rng_state()}, path)
    train(first, 5)

    second = build()
    loaded = genesis.load(path)
    for name, part in second.items():
        part.load_state_dict(loaded[name])
    assert loaded["epoch"] == 5
    backend.set_rng_state(loaded["random"])
    train(second, 5)
    for name, part in second.items():
        expected = first[name].state_dict()
        genesis.save(expected, path)
        expected = genesis.load(path)
        genesis.save(part, path)
        same(genesis.load(path), expected)


# --- the old file is kept -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [object(), {"a": [1, {2, 3}]}, {object(): 1}, {"f": print}, 1j],
    ids=["object", "set", "key", "function", "complex"],
)
def test_what_cannot_be_saved_is_named(bad: Any, path: Path) -> None:
    genesis.save({"old": 1}, path)
    with pytest.raises(DTypeError, match=r"save: argument 'obj.*': expected"):
        genesis.save(bad, path)
    assert genesis.load(path) == {"old": 1}
    assert listing(path) == ["state.safetensors"]


def test_the_place_of_what_cannot_be_saved(path: Path) -> None:
    with pytest.raises(DTypeError, match=r"argument 'obj/optimizer/0': expected tensors, numbers, .*, got set"):
        genesis.save({"optimizer": [{1, 2}]}, path)


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failure_while_writing_keeps_the_old_file(call: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    genesis.save({"old": genesis.ones(3)}, path)

    def fail(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="No space left"):
        genesis.save({"new": genesis.ones(3)}, path)
    monkeypatch.undo()
    same(genesis.load(path), {"old": genesis.ones(3)})
    assert listing(path) == ["state.safetensors"]


def test_a_link_stays_a_link(path: Path) -> None:
    latest = path.with_name("latest")
    genesis.save(1, path)
    latest.symlink_to(path.name)
    genesis.save(2, latest)
    assert latest.is_symlink()
    assert genesis.load(path) == 2


def _write_for_ever(path: Path, done: Any) -> None:
    for step in itertools.count(1):
        values = np.full(200_000, step, np.float32)
        genesis.save({"step": step, "tensors": [genesis.from_numpy(values.copy()) for _ in range(4)]}, path)
        done.value = step


def test_kill_in_the_middle_of_writing(path: Path) -> None:
    processes = multiprocessing.get_context("fork")
    for attempt in range(8):
        done = processes.Value("q", 0, lock=False)
        process = processes.Process(target=_write_for_ever, args=(path, done))
        process.start()
        while not done.value:
            time.sleep(0.001)
        time.sleep(0.002 + 0.003 * attempt)
        process.kill()
        process.join()
        state = genesis.load(path)
        assert state["step"] in (done.value, done.value + 1)
        assert all(set(tensor.tolist()) == {float(state["step"])} for tensor in state["tensors"])


# --- files that are refused -----------------------------------------------------------------------------------------


def test_a_file_cut_anywhere_is_refused(path: Path) -> None:
    genesis.save({"t": genesis.randn(5), "u": genesis.ones(3, dtype=genesis.int8), "n": 1}, path)
    whole = path.read_bytes()
    cut = path.with_name("cut")
    for length in range(0, len(whole), 3):
        cut.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"cut: (empty|not a complete safetensors file)"):
            genesis.load(cut)
    cut.write_bytes(whole + b"\0")
    with pytest.raises(CheckpointError, match="cut: not a complete safetensors file"):
        genesis.load(cut)


def test_files_of_other_kinds_are_refused(path: Path) -> None:
    for content in (b"\x89PNG\r\n\x1a\n" + b"\0" * 64, b"hello, world, this is text", b"\0" * 100, b"{}"):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"state\.safetensors: not a complete safetensors file"):
            genesis.load(path)
    torch.save({"t": torch.ones(2)}, path)
    with pytest.raises(CheckpointError, match=r"a PyTorch checkpoint\? try genesis\.load_torch"):
        read_metadata(path)
    with pytest.raises(FileNotFoundError):
        genesis.load(path.with_name("absent"))


def test_a_newer_format_is_refused(path: Path) -> None:
    safetensors.numpy.save_file({"t": np.ones(1)}, path, metadata={"genesis.format": "2"})
    with pytest.raises(CheckpointError, match="written in format 2, this Genesis reads up to 1; update Genesis"):
        genesis.load(path)


@pytest.mark.parametrize(
    "tree", ["", "{", '{"dict": [["t", {"tensor": "absent"}]]}', '{"code": "print()"}', '{"dict": 3}', "{}"]
)
def test_a_damaged_tree_is_refused(tree: str, path: Path) -> None:
    notes = {"genesis.format": "1", "genesis.tree": tree}
    safetensors.numpy.save_file({"t": np.ones(1)}, path, metadata=notes)
    with pytest.raises(CheckpointError, match="damaged: its tree does not match its tensors"):
        genesis.load(path)


def test_a_dtype_that_genesis_has_not_is_refused(path: Path) -> None:
    safetensors.numpy.save_file({"t": np.ones(1, np.uint32)}, path)
    with pytest.raises(CheckpointError, match="tensor 't' has the unsupported dtype U32"):
        genesis.load(path)


# --- PyTorch's files ------------------------------------------------------------------------------------------------


class Malicious:
    """Restoring it runs a command."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


@pytest.mark.parametrize("new_format", [True, False])
def test_load_torch(path: Path, new_format: bool) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(1, 1, 5, 5)).sum().backward()
    optimizer.step()
    saved = {
        "model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "half": torch.ones(2).bfloat16(),
        "parameter": model[0].weight, "sizes": (torch.Size([2]), [True, None, 0.5, "x"]),
    }  # fmt: skip
    torch.save(saved, path, _use_new_zipfile_serialization=new_format)
    loaded = genesis.load_torch(path)
    assert loaded["epoch"] == 3
    assert loaded["sizes"] == ((2,), [True, None, 0.5, "x"])
    assert loaded["half"].dtype is genesis.bfloat16
    assert not loaded["parameter"].requires_grad
    for name, tensor in model.state_dict().items():
        assert loaded["model"][name].tolist() == tensor.tolist()
    ours = genesis.nn.Sequential(genesis.nn.Conv2d(1, 2, 3), genesis.nn.BatchNorm2d(2))
    ours.load_state_dict(loaded["model"])
    genesis.optim.Adam(ours.parameters()).load_state_dict(loaded["optimizer"])


def test_tied_tensors_of_pytorch_stay_tied(path: Path) -> None:
    shared = torch.ones(3)
    torch.save({"a": shared, "b": shared, "c": shared[1:]}, path)
    loaded = genesis.load_torch(path)
    loaded["a"].zero_()
    assert [loaded[name].sum().item() for name in "abc"] == [0.0, 0.0, 0.0]


def test_nothing_is_executed(path: Path) -> None:
    witness = path.with_name("witness")
    bomb = Malicious(f"touch {witness}")
    torch.save({"model": bomb}, path)
    with pytest.raises(CheckpointError, match="refused: it is damaged, or contains objects that only running"):
        genesis.load_torch(path)
    path.write_bytes(pickle.dumps(bomb))
    with pytest.raises(CheckpointError, match="refused"):
        genesis.load_torch(path)
    with pytest.raises(CheckpointError, match="refused"):
        genesis.load(path)
    assert not witness.exists()
    os.system(f"touch {witness}")  # the command itself would have left its trace
    assert witness.exists()


def test_damaged_files_of_pytorch_are_refused(path: Path) -> None:
    torch.save({"t": torch.ones(100)}, path)
    whole = path.read_bytes()
    for length in (0, 1, 20, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"state\.safetensors: "):
            genesis.load_torch(path)
    with pytest.raises(FileNotFoundError):
        genesis.load_torch(path.with_name("absent"))
    for tensor in (torch.ones(1, dtype=torch.uint16), torch.eye(2).to_sparse()):
        torch.save([tensor], path)
        with pytest.raises(CheckpointError, match="contains an unsupported tensor"):
            genesis.load_torch(path)


# --- file objects, and torch.load's arguments -------------------------------------------------------------------------


def test_file_objects(path: Path) -> None:
    state = {"weight": genesis.arange(6.0).reshape(2, 3), "step": 3}
    buffer = io.BytesIO()
    genesis.save(state, buffer)
    genesis.save(state, path)
    assert buffer.getvalue() == path.read_bytes()
    buffer.seek(0)
    assert str(genesis.load(buffer)) == str(state)
    with open(path, "wb") as file:
        genesis.save(state, file)
    with open(path, "rb") as file:
        assert str(genesis.load(file, map_location="cpu", weights_only=True)) == str(state)
    with pytest.raises(CheckpointError, match=r"^the file object: empty"):
        genesis.load(buffer)
    with pytest.raises(CheckpointError, match=r"^the file object: not a complete safetensors file"):
        genesis.load(io.BytesIO(buffer.getvalue()[:-1]))
    for call in (genesis.load, lambda file: genesis.save(state, file)):
        with pytest.raises(DTypeError, match=r"argument 'path': expected a path or a binary file object, got int"):
            call(3)


@pytest.mark.parametrize("where", [None, "cpu", genesis.device("cpu"), {"cuda:0": "cpu"}, lambda storage, at: storage])
def test_files_of_pytorch_are_recognized(path: Path, where: Any) -> None:
    torch.save({"t": torch.ones(2)}, path)
    assert str(genesis.load(path, where)) == "{'t': tensor([1., 1.])}"
    assert str(genesis.load(io.BytesIO(path.read_bytes()), map_location=where)) == "{'t': tensor([1., 1.])}"
    assert str(genesis.load_torch(io.BytesIO(path.read_bytes()))) == "{'t': tensor([1., 1.])}"


def test_map_location_is_a_device(path: Path) -> None:
    genesis.save([genesis.ones(2)], path)
    with override(cuda="simulated"):
        assert genesis.load(path, "cuda")[0].is_cuda
        assert genesis.load(path, map_location={"cpu": "cuda"})[0].is_cuda
