"""The README's first screen: both sides of its diff train alike, and its figure shows the committed result."""

from __future__ import annotations

import functools
import importlib.util
import json
import re
import sys
import types
from typing import Any

import pytest
import torch

import genesis.torch
from genesis.torch import bridge
from tests.docs.examples import ROOT
from tests.models.torch_resnet import Bottleneck, ResNet

README = (ROOT / "README.md").read_text(encoding="utf-8")
MAX_WORDS = 600


def sides() -> tuple[str, str]:
    """The code before and after the README's diff."""
    block = re.search(r"^```diff\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert block is not None
    lines = block[1].splitlines()
    assert {line[:1] for line in lines} <= {" ", "+", "-", ""}
    before, after = ("\n".join(line[1:] for line in lines if not line.startswith(sign)) for sign in "+-")
    return before, after


def train(source: str) -> dict[str, Any]:
    torch.manual_seed(0)
    batches = [(torch.randn(2, 3, 32, 32), torch.tensor([3, 7])) for _ in range(2)]
    names: dict[str, Any] = {"device": "cpu", "batches": batches}
    exec(compile(source, "README.md", "exec"), names)
    return names


@pytest.fixture
def torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands in for torchvision, which the tests do not install: ResNet-50's blocks, one per stage."""
    module: Any = types.ModuleType("torchvision")
    module.models = types.SimpleNamespace(resnet50=lambda: ResNet(Bottleneck, (1, 1, 1, 1), num_classes=10))
    monkeypatch.setitem(sys.modules, "torchvision", module)


@pytest.mark.usefixtures("torchvision")
def test_both_sides_of_the_diff_train_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "trains", lambda x: True)  # on the CPU too
    compile = functools.partial(genesis.torch.compile, compiler="aot_eager")  # Inductor would write code for a minute
    monkeypatch.setattr(genesis.torch, "compile", compile)
    before, after = sides()
    assert len(before.splitlines()) in range(8, 13)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        theirs, ours = train(before), train(after)
    finally:
        torch.set_default_dtype(default)
    torch.testing.assert_close(ours["loss"], theirs["loss"], rtol=1e-9, atol=0)
    learned = ours["model"].state_dict()
    for name, expected in theirs["model"].state_dict().items():  # norms of two pixels: single elements may differ more
        assert (learned[name] - expected).double().norm() <= 1e-6 * expected.double().norm(), name
    assert len(genesis.torch.report(ours["model"]).fused) > 0


def test_the_figure_shows_the_committed_result() -> None:
    spec = importlib.util.spec_from_file_location("figures", ROOT / "benchmarks" / "figures.py")
    assert spec is not None
    assert spec.loader is not None
    figures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(figures)
    result = json.loads(figures.RESULT.read_text(encoding="utf-8"))
    assert figures.PICTURE.read_text(encoding="utf-8") == figures.bar_chart(result), "run benchmarks/figures.py"
    caption = re.search(r"!\[(.*?)\]\(docs/images/loops\.svg\)", README)
    assert caption is not None
    times = {(row["case"].partition(",")[0], row["side"]): row["median_ms"] for row in result["rows"]}
    speeds = [times[name, figures.THEIRS] / times[name, figures.OURS] for name in figures.NETWORKS]
    ours, theirs = (times["resnet50", side] for side in (figures.OURS, figures.THEIRS))
    assert f"{min(speeds):.2f} to {max(speeds):.2f} times" in caption[1]
    assert f"ResNet-50 {ours:.1f} ms instead of {theirs:.1f}" in caption[1]


def test_it_is_short() -> None:
    assert len(README.split()) < MAX_WORDS
