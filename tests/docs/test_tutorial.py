"""The tutorial shows what the example does: its fragments are the script's, and the script runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from PIL import Image

import genesis
from genesis import models

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "immunohistochemistry.py"


def test_the_fragments_are_the_scripts() -> None:
    page = (ROOT / "docs" / "tutorial-segmentation.md").read_text(encoding="utf-8")
    fragments = re.findall(r"^```py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(fragments) == 6
    source = SCRIPT.read_text(encoding="utf-8")
    assert [fragment for fragment in fragments if fragment not in source] == []


def test_the_script_runs(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--epochs", "2", "--steps", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    pattern = r"epoch 2/2  loss \d\.\d{3}  held-out IoU: background 0\.\d\d  nucleus 0\.\d\d  stain 0\.\d\d"
    assert re.fullmatch(pattern, lines[1])
    with Image.open(tmp_path / "runs/immunohistochemistry/held_out.png") as picture:
        assert picture.size == (342, 512)
    model = models.unet(in_channels=3, num_classes=3, width=8)
    assert model.load(tmp_path / "runs/immunohistochemistry/unet.safetensors") == ([], [])
    assert isinstance(model, genesis.nn.Module)
