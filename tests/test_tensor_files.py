"""What save() refuses because it could not be read back, and damaged or hostile files: one sentence, bounded memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis import files
from genesis.checkpoint import read_metadata
from genesis.errors import CheckpointError, DTypeError, OutOfMemoryError
from tests.fuzz_files import mutations, with_header

LONE = os.fsdecode(b"caf\xe9")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.safetensors"


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


def cyclic(kind: type) -> Any:
    value: Any = kind()
    if kind is dict:
        value["self"] = value
    else:
        value.append(value)
    return value


# --- what could not be read back --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("content", "metadata", "said"), [
    ({LONE: genesis.ones(1)}, {}, r"argument 'obj': expected keys that are Unicode text, got 'caf\\udce9'"),
    ({"a": [{LONE: genesis.ones(1)}]}, {}, r"expected keys that are Unicode text, got 'a/0/caf\\udce9'"),
    ({"t": genesis.ones(1)}, {LONE: "x"}, r"argument 'metadata': expected Unicode text, got 'caf\\udce9'"),
    ({"t": genesis.ones(1)}, {"x": LONE}, r"argument 'metadata': expected Unicode text, got 'caf\\udce9'"),
    ({"t": genesis.ones(1)}, {"epoch": 3}, r"argument 'metadata': expected strings, got 3, of int"),
    ({"t": genesis.ones(1)}, {1: "a"}, r"argument 'metadata': expected strings, got 1, of int"),
    ({"t": genesis.ones(1)}, {"genesis.tree": "[]"}, r"expected keys other than genesis.tree and genesis.format"),
    (nested(102), {}, r"argument 'obj/0/a/0/…': expected containers nested at most 100 deep, and none inside itself"),
    (cyclic(dict), {}, r"none inside itself, got deeper nesting"),
    (cyclic(list), {}, r"none inside itself, got deeper nesting"),
    ({"n": -(2**20_000)}, {}, r"argument 'obj/n': expected integers of at most 14,000 bits, got 20,001"),
    ({"x": np.longdouble(1)}, {}, r"argument 'obj/x': expected tensors, numbers, .*, got longdouble"),
])  # fmt: skip
def test_what_could_not_be_read_back_is_refused(content: Any, metadata: Any, said: str, path: Path) -> None:
    genesis.save({"old": 1}, path)
    with pytest.raises((DTypeError, ValueError), match=said) as caught:
        genesis.save(content, path, metadata=metadata)
    str(caught.value).encode()  # it can be printed
    assert genesis.load(path) == {"old": 1}
    assert os.listdir(path.parent) == [path.name]


def test_a_header_that_no_reader_takes_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genesis.tensor_files.MAX_HEADER", 10_000)
    with pytest.raises(ValueError, match=r"at most 10,000 bytes outside of tensors, got 1[34],"):
        genesis.save({"bytes": bytes(10_000)}, path)
    assert not path.exists()
    genesis.save({"tensor": genesis.zeros(10_000)}, path)


def test_the_longest_header_is_that_of_the_library(path: Path) -> None:
    for length, said in ((files.MAX_HEADER, "invalid JSON|start"), (files.MAX_HEADER + 1, "too large")):
        with open(path, "wb") as file:
            file.write(length.to_bytes(8, "little"))
            file.truncate(8 + length)
        with pytest.raises(CheckpointError, match=rf"not a complete safetensors file \(.*({said})"):
            genesis.load(path)


@pytest.mark.parametrize(
    "name", ["__metadata__", "a\0b", "", "ü/ñ/日本", "\x7f\n", '"\\', "#2", "\U0001f600"], ids=ascii
)
def test_odd_names_come_back(name: str, path: Path) -> None:
    state = {name: genesis.arange(2), "text": LONE, "nested": nested(95)}
    genesis.save(state, path, metadata={name: name})
    loaded = genesis.load(path)
    assert loaded.pop(name).tolist() == [0, 1]
    assert loaded == {"text": LONE, "nested": nested(95)}
    assert read_metadata(path) == {name: name}


def test_names_of_files_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / f"{LONE}.safetensors"
    genesis.save({"t": genesis.arange(2)}, path)
    assert genesis.load(path)["t"].tolist() == [0, 1]


# --- damaged and hostile files ----------------------------------------------------------------------------------------


def noted(**notes: str) -> Callable[[dict[str, Any]], Any]:
    return lambda header: {**header, "__metadata__": {**header["__metadata__"], **notes}}


@pytest.mark.parametrize(("change", "said"), [
    (noted(**{"genesis.tree": "[" * 100_000}), "damaged: its tree does not match its tensors"),
    (noted(**{"genesis.tree": '{"dict": 3}' * 10_000}), "damaged: its tree"),
    (noted(**{"genesis.tree": '{"' + "x" * 100_000 + '": 3}'}), "damaged: its tree"),
    (noted(**{"genesis.tree": "9" * 10_000}), "damaged: its tree"),
    (noted(**{"genesis.format": "²"}), "written in format ²"),
    (noted(**{"genesis.format": "9" * 10_000}), "written in format '999"),
    (noted(**{"genesis.format": "0"}), "written in format 0"),
    (lambda header: {**header, "__metadata__": {"a": {"b": "c"}}}, "not a complete safetensors file"),
    (lambda header: {**header, "__metadata__": json.loads("[" * 100 + "]" * 100)}, "not a complete safetensors file"),
    (lambda header: json.dumps(header).replace("{", '{"b": 1, "b": 1, ', 1), "not a complete safetensors file"),
    (lambda header: json.dumps(header).replace('"__meta', '"__metadata__": {}, "__meta', 1), "not a complete"),
    (lambda header: "[" * 1000, "not a complete safetensors file"),
    (lambda header: {"t": {"dtype": "F32", "shape": [2**62, 8, 0], "data_offsets": [0, 0]}}, "impossible shape|not a"),
    (lambda header: {"t": {"dtype": "F32", "shape": [2**63, 0], "data_offsets": [0, 0]}}, "impossible shape|not a"),
])  # fmt: skip
def test_a_damaged_header_is_refused_in_a_sentence(change: Any, said: str, path: Path) -> None:
    genesis.save({"a": genesis.zeros(0), "n": 1}, path)
    path.write_bytes(with_header(path.read_bytes(), change))
    with pytest.raises(CheckpointError, match=rf"state\.safetensors: .*({said})") as caught:
        genesis.load(path)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("entry", ["duplicate"])
def test_a_name_that_stands_there_twice_is_refused(entry: str, path: Path) -> None:
    genesis.save({entry: genesis.ones(1)}, path)

    def doubled(header: dict[str, Any]) -> str:
        text = json.dumps(header)
        return text[:-1] + f', "{entry}": ' + json.dumps(header[entry]) + "}"

    path.write_bytes(with_header(path.read_bytes(), doubled))
    with pytest.raises(CheckpointError, match="not a complete safetensors file"):
        genesis.load(path)


@pytest.mark.parametrize("content", [cyclic(dict), cyclic(list), {"a": [cyclic(dict)]}, nested(3000)])
def test_a_pth_that_contains_itself(content: Any, path: Path) -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(30_000)
    try:
        torch.save(content, path)
    finally:
        sys.setrecursionlimit(limit)
    with pytest.raises(CheckpointError, match=r"state\.safetensors: (its containers|.*recursion)"):
        genesis.load_torch(path)
    with pytest.raises(CheckpointError, match=r"state\.safetensors: "):
        genesis.nn.Linear(1, 1).load(path)


def test_a_pth_cut_anywhere_is_refused_in_a_sentence(path: Path) -> None:
    for new_format in (True, False):
        torch.save({"t": torch.ones(100), "n": 1}, path, _use_new_zipfile_serialization=new_format)
        whole = path.read_bytes()
        for length in range(0, len(whole), 37):
            path.write_bytes(whole[:length])
            with pytest.raises(CheckpointError, match=r"state\.safetensors: (refused|not a complete)") as caught:
                genesis.load_torch(path)
            assert "Errno" not in str(caught.value)


def test_a_compressed_pth_is_not_blown_up(path: Path) -> None:
    torch.save({"t": torch.zeros(200_000)}, path)
    packed = path.with_name("packed.pth")
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))
    with pytest.raises(CheckpointError, match=r"packed\.pth: refused: it is compressed"):
        genesis.load_torch(packed)


def test_entries_that_are_not_named_by_text(path: Path) -> None:
    torch.save({1: torch.ones(1), (2, 3): torch.ones(1)}, path)
    with pytest.raises(CheckpointError, match="the state does not fit Linear"):
        genesis.nn.Linear(1, 1).load(path)


_WITH_LITTLE_MEMORY = """
import resource, sys
import torch, genesis, genesis.nn as nn
from genesis.errors import CheckpointError, GenesisError
genesis.nn.Linear(2, 2)(genesis.ones(1, 2))
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 150_000_000, resource.RLIM_INFINITY))
for path in sys.argv[1:]:
    try:
        nn.Linear(1, 1).load(path)
    except GenesisError as error:
        print(type(error).__name__, str(error)[:300].replace(chr(10), " "))
"""


def test_what_does_not_fit_into_memory_is_said_in_a_sentence(path: Path) -> None:
    with open(path, "wb") as file:  # a sparse file: it takes no room on the disk
        header = json.dumps({"big": {"dtype": "F32", "shape": [2**28], "data_offsets": [0, 2**30]}}).encode()
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 2**30)
    legacy = path.with_name("legacy.pth")
    torch.save({"t": torch.zeros(50_000_000)}, path.with_name("large.pth"))
    torch.save({"t": torch.zeros(2**5)}, legacy, _use_new_zipfile_serialization=False)
    paths = [str(path), str(path.with_name("large.pth")), str(legacy)]
    run = subprocess.run([sys.executable, "-c", _WITH_LITTLE_MEMORY, *paths], capture_output=True, text=True)
    assert run.stderr == ""
    lines = run.stdout.splitlines()
    assert lines[0].startswith("OutOfMemoryError"), lines
    assert "state.safetensors: not enough memory to read it" in lines[0], lines
    assert lines[1].endswith("large.pth: not enough memory for its tensors"), lines
    assert lines[2].startswith("CheckpointError"), lines
    path.with_name("large.pth").unlink()


def test_an_array_that_has_no_room_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    genesis.save({"big": genesis.zeros(1000)}, path)

    def full(*args: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("genesis.tensor_files.np.empty", full)
    with pytest.raises(OutOfMemoryError, match=r"state\.safetensors: not enough memory for tensor 'big' of 0\.0 GB"):
        genesis.load(path)


def test_a_device_without_room_names_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    genesis.save({"t": genesis.ones(1)}, path)

    def full(*args: Any) -> None:
        raise OutOfMemoryError("device cuda:0: no room for 4 bytes")

    monkeypatch.setattr("genesis.ndarray.NDArray.to_device", full)
    with pytest.raises(OutOfMemoryError, match=r"state\.safetensors: device cuda:0: no room"):
        genesis.load(path)


@pytest.mark.parametrize("seed", range(3))
def test_random_damage_ends_in_a_sentence(seed: int, tmp_path: Path) -> None:
    loaded = list(mutations(tmp_path, seed, 60))
    assert None in loaded
