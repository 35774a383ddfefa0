"""genesis port: the imports of a file are rewritten, nothing else is; what has no counterpart is listed."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

import genesis
from genesis import cli
from genesis.port import rewrite


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import torch\n", "import genesis as torch\n"),
        ("import os, torch as th  # both\n", "import os, genesis as th  # both\n"),
        ("import torch.nn as nn\r\nx = 1\r\n", "import genesis.nn as nn\r\nx = 1\r\n"),
        ("import torch.nn.functional as F", "import genesis.nn.functional as F"),
        ("import torch.optim\n", "import genesis as torch, genesis.optim\n"),
        ("from torch import nn, Tensor\n", "from genesis import nn, Tensor\n"),
        ("from  torch.nn import (  # é\n    Linear,\n    ReLU as R,\n)\n",
         "from  genesis.nn import (  # é\n    Linear,\n    ReLU as R,\n)\n"),
        ("from torch.nn.parameter import Parameter; x = 'é'; import torch\n",
         "from genesis.nn.parameter import Parameter; x = 'é'; import genesis as torch\n"),
        ("def f():\n    from torch import (\n        vmap,  # one\n        nn,\n    )\n",
         "def f():\n    # one\n    from torch import vmap\n    from genesis import nn\n"),
        ("from torch.fx import wrap\n", "from genesis.port.stand_ins.fx import wrap\n"),
        ("import torch\ntorch.backends.cudnn.benchmark = True\n",
         "import genesis.port.torch as torch\ntorch.backends.cudnn.benchmark = True\n"),
        ("import torchvision, mytorch.nn\nfrom . import torch\nfrom .torch import x\n",
         "import torchvision, mytorch.nn\nfrom . import torch\nfrom .torch import x\n"),
        ("s = 'import torch'  # import torch\n", "s = 'import torch'  # import torch\n"),
        ("", ""),
    ],
)  # fmt: skip
def test_imports_are_rewritten(before: str, after: str) -> None:
    assert rewrite(before).text == after
    assert rewrite(after).text == after or "from torch import vmap" in after


def test_what_has_no_counterpart_is_listed_by_line() -> None:
    source = (
        "import torch\nfrom torch import nn, vmap\n\nx = nn.Conv3d(1, 2, 3)\n"
        "torch.sparse_coo_tensor(1, 2).geqrf(\n  x)\n"
    )
    found = rewrite(source).gaps
    assert [(gap.line, gap.name) for gap in found] == [
        (2, "torch.vmap"), (4, "torch.nn.Conv3d"), (5, "torch.Tensor.geqrf"), (5, "torch.sparse_coo_tensor"),
    ]  # fmt: skip
    assert str(found[0]) == "2: torch.vmap: Genesis has no function transforms; write a batch dimension or a loop"


def test_names_that_are_there_are_no_gaps() -> None:
    source = (
        "import torch, torch.nn.functional as F\nfrom torch import nn\nclass Net(nn.Module):\n    x: torch.Tensor\n"
        "    def forward(self, x):\n        return F.relu(x.view(-1)).to(torch.half) if torch.jit.is_scripting() else x"
    )
    assert rewrite(source).gaps == []


def test_a_ported_file_runs() -> None:
    source = (
        "import torch\nimport torch.nn as nn\nfrom torch.optim import SGD\nfrom torch.jit import ignore\n"
        "net = nn.Linear(3, 2)\nSGD(net.parameters(), lr=0.1)\nout = ignore(net)(torch.ones(1, 3))\n"
    )
    space: dict[str, object] = {}
    exec(rewrite(source).text, space)
    assert isinstance(space["out"], genesis.Tensor)


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / ".hidden").mkdir()
    for name in ("a.py", ".hidden/b.py"):
        (tmp_path / name).write_bytes("# -*- coding: latin-1 -*-\nimport torch  # é\r\n".encode("latin-1"))
    (tmp_path / "broken.py").write_text("import torch\ndef (:\n", encoding="utf-8")
    (tmp_path / "a.py").chmod(0o640)
    return tmp_path


def test_a_folder_is_ported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["port", str(folder)]) == 1
    ported = (folder / "a.py").read_bytes()
    assert ported == "# -*- coding: latin-1 -*-\nimport genesis as torch  # é\r\n".encode("latin-1")
    assert stat.S_IMODE((folder / "a.py").stat().st_mode) == 0o640
    assert "import torch " in (folder / ".hidden" / "b.py").read_text(encoding="latin-1")
    assert (folder / "broken.py").read_text(encoding="utf-8") == "import torch\ndef (:\n"
    said = capsys.readouterr().err
    assert "broken.py: not changed, as it cannot be parsed" in said
    assert said.endswith("1 files changed; 0 places need a change by hand\n")


@pytest.mark.parametrize(("option", "code", "shown"), [("--check", 1, ""), ("--diff", 0, "+import genesis as torch")])
def test_check_and_diff_change_nothing(
    option: str, code: int, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.py"
    path.write_text("import torch\n", encoding="utf-8")
    assert cli.main(["port", option, str(path)]) == code
    assert path.read_text(encoding="utf-8") == "import torch\n"
    captured = capsys.readouterr()
    assert shown in captured.out
    assert "1 files would change" in captured.err


def test_gaps_are_printed_as_file_and_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.py"
    path.write_text("import torch\ntorch.vmap(f)\n", encoding="utf-8")
    assert cli.main(["port", str(path)]) == 1
    assert capsys.readouterr().out.startswith(f"{path}:2: torch.vmap: Genesis has no function transforms")


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["port", str(tmp_path / "none.py")]) == 2
    assert capsys.readouterr().err == f"genesis port: {tmp_path / 'none.py'}: No such file or directory\n"
