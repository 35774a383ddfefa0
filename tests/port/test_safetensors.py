"""Scripts that save and load by safetensors find in their files what PyTorch does, and give PyTorch the same files."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

import genesis
from genesis.port import run_script
from tests.draws import needs_equal_draws

SCRIPT = """
import importlib
import sys

import safetensors.torch
import torch
from safetensors import safe_open
from safetensors.torch import load, load_file, load_model, save, save_file, save_model
from torch import nn

folder = sys.argv[1]
torch.manual_seed(0)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(5, 3), nn.Linear(3, 5)
        self.head.weight = self.embed.weight
        self.register_buffer("count", torch.tensor(7))


net, other = Tied(), Tied()
state = {"a": net.head.weight, "half": torch.ones(2, 2, dtype=torch.bfloat16), "count": net.count}
save_file(state, f"{folder}/state.safetensors", metadata={"format": "pt"})
back = load_file(f"{folder}/state.safetensors", device="cpu")
assert isinstance(back["a"], torch.Tensor)
save_model(net, f"{folder}/model.safetensors")
found = [[list(keys) for keys in load_model(other, f"{folder}/model.safetensors")], other.head.bias.tolist()]
found += [sorted(back), back["a"].tolist(), str(back["half"].dtype).split(".")[1], back["count"].item()]
found += [torch.equal(load(save({"x": net.head.bias.detach()}))["x"], net.head.bias)]
found += [importlib.import_module("safetensors.torch").load_file is safetensors.torch.load_file is load_file]
with safe_open(f"{folder}/state.safetensors", framework="pt", device="cpu") as file:
    part = file.get_slice("a")
    found += [sorted(file.keys()), file.metadata(), part.get_shape(), part[:2, 1].tolist()]
    found += [isinstance(part[:1], torch.Tensor), file.get_tensor("count") + 1 == 8]
try:
    load_model(nn.Linear(1, 1), f"{folder}/model.safetensors")
except RuntimeError as error:
    found += ["Missing key(s)" in str(error)]
"""


@needs_equal_draws
def test_safetensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("argv", "path", "meta_path"):
        monkeypatch.setattr(sys, name, list(getattr(sys, name)))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    path = tmp_path / "script.py"
    path.write_text(SCRIPT, encoding="utf-8")
    files: list[bytes] = []
    results = []
    for library in ("genesis", "torch"):
        if library == "genesis":
            run_script(path, [str(tmp_path)])
            script = vars(sys.modules["__main__"])
            assert script["torch"].Tensor is genesis.Tensor
        else:
            sys.argv = ["script", str(tmp_path)]
            script = runpy.run_path(str(path), run_name="__main__")
        results.append([bool(each) if hasattr(each, "item") else each for each in script["found"]])
        files += [(tmp_path / "state.safetensors").read_bytes(), (tmp_path / "model.safetensors").read_bytes()]
    assert results[0] == results[1]
    assert files[:2] == files[2:]
