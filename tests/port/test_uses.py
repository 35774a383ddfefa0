"""The count of the names that packages use."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.port import uses

SOURCE = """
import torch, torch.nn as nn
import torch.nn.functional as F
from torch import vmap, Tensor
from torch.utils.tensorboard import SummaryWriter
class Net(nn.Module):
    def forward(self, x: Tensor):
        x = F.relu(nn.Linear(2, 3).forward(x)).clamp_min(0).to_sparse()
        return vmap(x.split(2)), torch.Tensor.to_sparse, torch.nothing, torch.backends.mps.is_available(), torch._C.x
"""


def test_names_are_counted() -> None:
    found = Counter(uses.used(ast.parse(SOURCE)))
    assert found == {
        "torch.nn.Module": 1, "torch.nn.functional.relu": 1, "torch.nn.Linear": 1, "torch.Tensor.clamp_min": 1,
        "torch.Tensor.to_sparse": 2, "torch.vmap": 2, "torch.Tensor": 2, "torch.backends.mps.is_available": 1,
        "torch.utils.tensorboard.SummaryWriter": 1,
    }  # fmt: skip


def test_what_is_there_is_told_from_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.py").write_text(SOURCE, encoding="utf-8")
    (tmp_path / "broken.py").write_text("def (:", encoding="utf-8")
    found = uses.count(uses.files_of(str(tmp_path)))
    assert found.missing == {"torch.vmap": 2, "torch.Tensor.to_sparse": 2}
    assert str(found.of(False)) == "77.8 % of names (7 of 9); 66.7 % of uses (8 of 12)"
    assert found.of(True) == (Counter(), Counter())
    with pytest.raises(SystemExit, match="uses: no_such_package: no folder, and no installed package"):
        uses.files_of("no_such_package")
