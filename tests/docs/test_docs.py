"""Every example that a reader can copy runs: docstrings, README, docs/, CONTRIBUTING."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs import examples

PAGES = sorted([*examples.ROOT.glob("*.md"), *(examples.ROOT / "docs").rglob("*.md")])
COINAGES = (
    re.compile(  # the field says: eagerly, consumers, free list, fast path, heuristically, pass-through, separate
        r"\bas (?:it|they) stands?\b|\btakers?\b|\bshelf\b|\bshort way\b|\bguessed\b|\bhands? on\b|\bconvolved apart\b"
    )
)


def need_extra(name: str) -> None:
    """Skip the examples of the export where its packages are not installed."""
    if name in ("genesis.export.api", "genesis.onnx_import.api", "export.md"):
        pytest.importorskip("onnx_ir", reason="onnx_ir, of the extra 'export', is not installed")


@pytest.mark.parametrize("module", examples.modules_with_examples())
def test_docstring_examples(module: str) -> None:
    need_extra(module)
    tries, report = examples.run_docstrings(module, examples.namespace())
    assert tries > 0, f"{module} has '>>>' outside a docstring that doctest finds"
    assert not report, report


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_extra(page.name)
    monkeypatch.chdir(tmp_path)
    report = examples.run_markdown(page)
    assert not report, report


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_use_the_terms_of_the_field(page: Path) -> None:
    assert COINAGES.findall(page.read_text(encoding="utf-8")) == []


def test_a_wrong_docstring_example_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = '"""Adds.\n\n    Example: >>> 1 + 1\n    3\n"""\n'
    (tmp_path / "wrong_example.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    tries, report = examples.run_docstrings("wrong_example", {})
    assert tries == 1
    assert "Expected:\n    3\nGot:\n    2" in report


def test_a_wrong_block_fails_with_its_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n```python\nx = 2\n```\n\n```python\n>>> x\n3\n```\n\n```py\nfragment(\n```\n")
    assert "line 8" in examples.run_markdown(page)
    page.write_text("# Page\n\n```python\nassert 1 == 2\n```\n")
    with pytest.raises(AssertionError) as error:
        examples.run_markdown(page)
    assert error.traceback[-1].lineno + 1 == 4
