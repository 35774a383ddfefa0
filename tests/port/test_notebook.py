"""genesis port on notebooks: the imports of code cells are rewritten, all else stays byte by byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from genesis import cli
from genesis.port import rewrite_notebook

CELLS: list[Any] = [
    {"cell_type": "markdown", "source": ["import torch\n", "é"]},
    {"cell_type": "code", "outputs": [], "source": ["%matplotlib inline\n", "import torch\n", "if torch:\n", "  !ls"]},
    {"cell_type": "code", "source": "torch.vmap?\nfrom torch import nn, vmap\nx = 1"},
    {"cell_type": "code", "source": ["%%bash\n", "import torch"]},
    {"cell_type": "code", "source": ["%%time\n", "\n", "torch.vmap(nn.Conv3d)\n"]},
    {"cell_type": "code", "source": ["import torch\n", "files = !ls"]},
    {"cell_type": "code", "source": []},
]


def notebook(**options: Any) -> str:
    return json.dumps({"cells": CELLS, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, **options)


def test_code_cells_are_rewritten() -> None:
    found = rewrite_notebook(notebook())
    cells = json.loads(found.text)["cells"]
    assert cells[1] == {
        **CELLS[1], "source": ["%matplotlib inline\n", "import genesis as torch\n", "if torch:\n", "  !ls"],
    }  # fmt: skip
    assert cells[2]["source"] == "torch.vmap?\nfrom genesis import nn\nfrom torch import vmap\nx = 1"
    assert [cells[number] for number in (0, 3, 4, 5, 6)] == [CELLS[number] for number in (0, 3, 4, 5, 6)]
    assert [gap.split(";")[0] for gap in found.gaps] == [
        "cell 3, line 2: torch.vmap: Genesis has no function transforms",
        "cell 5, line 3: torch.nn.Conv3d: Genesis has no three-dimensional layers yet",
        "cell 5, line 3: torch.vmap: Genesis has no function transforms",
    ]
    assert found.unread == [
        "cell 6: not changed, as it cannot be parsed: invalid syntax (<unknown>, line 2)",
    ]


@pytest.mark.parametrize("options", [{"indent": 1, "ensure_ascii": False}, {"indent": 2}, {}])
@pytest.mark.parametrize("end", ["\n", ""])
def test_the_format_stays(options: dict[str, Any], end: str) -> None:
    after = rewrite_notebook(notebook(**options) + end).text
    assert after == json.dumps(json.loads(after), **options) + end
    assert rewrite_notebook(after).text == after


def test_an_unusual_format_changes_with_the_imports_only() -> None:
    text = '{"cells":\n [{"cell_type": "code", "source": "import torch"}]}'
    assert rewrite_notebook(text.replace("torch", "numpy")).text == text.replace("torch", "numpy")
    assert rewrite_notebook(text).text.startswith('{\n "cells": [\n  {\n   "cell_type": "code"')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "it is no notebook: Expecting"),
        ("[]", "no notebook of format 4"),
        ('{"worksheets": []}', "no notebook of format 4"),
        ('{"cells": [{"cell_type": "code", "source": ["import torch", 1]}]}', "the source of a cell is no text"),
        ('{"cells": [], "metadata": {"language_info": {"name": "julia"}}}', "a notebook of julia"),
    ],
)
def test_what_is_no_notebook(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rewrite_notebook(text)


def test_the_command_takes_notebooks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / ".ipynb_checkpoints").mkdir()
    for name in ("a.ipynb", ".ipynb_checkpoints/a.ipynb"):
        (tmp_path / name).write_text(notebook(), encoding="utf-8")
    (tmp_path / "broken.ipynb").write_text("{", encoding="utf-8")
    assert cli.main(["port", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert f"{tmp_path / 'a.ipynb'}:cell 3, line 2: torch.vmap: " in captured.out
    assert f"{tmp_path / 'a.ipynb'}: cell 6: not changed, as it cannot be parsed" in captured.err
    assert f"{tmp_path / 'broken.ipynb'}: not changed, as it cannot be parsed: it is no notebook" in captured.err
    assert captured.err.endswith("1 files changed; 3 places need a change by hand\n")
    assert "import genesis as torch" in (tmp_path / "a.ipynb").read_text(encoding="utf-8")
    assert (tmp_path / ".ipynb_checkpoints" / "a.ipynb").read_text(encoding="utf-8") == notebook()
