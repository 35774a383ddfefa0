"""Random damage to files of tensors. Each must load, or be refused by an error of Genesis' that names the file.

python -m tests.fuzz_files --seeds 200        prints the seed of what ends otherwise
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import genesis
from genesis import nn
from genesis.errors import CheckpointError
from genesis.nn import state
from genesis.segmentation import recipe

_VALUES = [
    None, True, False, 0, 1, -1, 2**31, 2**63, 10**30, 1e308, float("nan"), "", "\0", "x" * 300, "__metadata__", [], {},
    [[]], {"a": {}}, [-1], [2**40, 2**40], [0, 2**62], "/etc/passwd", {"tensor": "a"}, {"dict": [[1, 2]]},
    {"bytes": "é"},
]  # fmt: skip


def with_header(content: bytes, change: Callable[[dict[str, Any]], Any]) -> bytes:
    """A safetensors file with another header: an object, or its very text."""
    length = int.from_bytes(content[:8], "little")
    changed = change(json.loads(content[8 : 8 + length]))
    text = (changed if isinstance(changed, str) else json.dumps(changed)).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + length :]


def mutations(folder: Path, seed: int, count: int) -> Iterator[Any]:
    """What is loaded of `count` damaged files, or None where one is refused."""
    generator = np.random.default_rng(seed)
    wholes = _files(folder)
    for number in range(count):
        name = list(wholes)[generator.integers(len(wholes))]
        path = folder / f"{seed}-{number}-{name}"
        content = wholes[name]
        if name.endswith("safetensors") and generator.random() < 0.8:
            content = with_header(content, lambda header: _changed_header(header, generator))
        else:
            content = _changed_bytes(content, generator)
        path.write_bytes(content)
        yield _read(path)
        path.unlink()


def _read(path: Path) -> Any:
    try:
        content = state.read(path)
        if "training" in path.name:
            recipe.load(path, "unet")
        else:
            nn.Linear(2, 3).load(path)
    except CheckpointError as error:
        if str(path) not in str(error) or len(str(error)) > 5000:
            raise AssertionError(f"not a sentence about the file: {error}") from error
        return None
    return content


def _files(folder: Path) -> dict[str, bytes]:
    """Whole ones of each kind, the network of a training among them."""
    weights = genesis.models.create("unet", in_channels=3, num_classes=2, width=2, depth=2).state_dict()
    noted = recipe.Recipe(
        "unet", {"in_channels": 3, "num_classes": 2, "width": 2, "depth": 2}, ("a", "b"), (0.0,) * 3, (1.0,) * 3
    )
    states: dict[str, Any] = {
        "flat.safetensors": nn.Linear(2, 3).state_dict(),
        "training.safetensors": {"model": weights, "recipe": noted.as_dict(), "growth": {"steps": []}, "n": [1, 2.5]},
    }
    for name, content in states.items():
        genesis.save(content, folder / name)
    theirs = {key: torch.from_numpy(value.numpy(force=True)) for key, value in states["flat.safetensors"].items()}
    torch.save({"state_dict": theirs, "epoch": 3}, folder / "zip.pth")
    torch.save({"model": theirs}, folder / "legacy.pth", _use_new_zipfile_serialization=False)
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def _changed_bytes(content: bytes, generator: np.random.Generator) -> bytes:
    changed = bytearray(content)
    for _ in range(generator.integers(1, 6)):
        kind, place = generator.integers(4), int(generator.integers(len(changed)))
        if kind == 0:
            changed[place] = int(generator.integers(256))
        elif kind == 1:
            changed = changed[: place + 1]
        elif kind == 2:
            changed[place:place] = generator.bytes(int(generator.integers(1, 9)))
        else:
            del changed[place : place + int(generator.integers(1, 9))]
            changed = changed or bytearray(1)
    return bytes(changed)


def _changed_header(header: dict[str, Any], generator: np.random.Generator) -> Any:
    """One to three values anywhere in it, and in the tree of plain values that its metadata hold."""
    notes = header["__metadata__"]
    tree = json.loads(notes["genesis.tree"])
    for _ in range(generator.integers(1, 4)):
        if generator.random() < 0.6:
            tree = _changed(tree, generator)
        else:
            header = _changed(header, generator)
    if isinstance(header, dict) and isinstance(header.get("__metadata__"), dict):
        header["__metadata__"]["genesis.tree"] = json.dumps(tree)
    return header


def _changed(value: Any, generator: np.random.Generator) -> Any:
    if not (isinstance(value, dict | list) and value) or generator.random() < 0.1:
        return _VALUES[generator.integers(len(_VALUES))]
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = keys[generator.integers(len(keys))]
    changed: Any = value.copy()
    if generator.random() < 0.08:
        del changed[key]
    else:
        changed[key] = _changed(value[key], generator)
    return changed


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    done = refused = 0
    for seed in range(given.first, given.first + given.seeds):
        print(f"seed {seed}", end="\r", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            for loaded in mutations(Path(folder), seed, 60):
                done, refused = done + 1, refused + (loaded is None)
    print(f"{done} files, {refused} refused")
