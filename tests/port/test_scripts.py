"""Short training scripts in plain PyTorch end at the same losses when `genesis run` runs them, unchanged."""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path

import pytest

import genesis
from genesis.port import run_script
from tests.draws import needs_equal_draws

SCRIPTS = Path(__file__).resolve().parents[1] / "port_scripts"
LOOSE = {"dcgan": 2e-3}  # batch norm behind tiny weights amplifies rounding
NEEDS = {"summaries": "tensorboard"}  # installed packages


@pytest.fixture
def own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a script changes in the interpreter lasts for the test."""
    for name in ("argv", "path", "meta_path"):
        monkeypatch.setattr(sys, name, list(getattr(sys, name)))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


def run_on_genesis(path: Path) -> list[float]:
    run_script(path)
    script = vars(sys.modules["__main__"])
    assert script["torch"].Tensor is genesis.Tensor
    losses: list[float] = script["losses"]
    return losses


@needs_equal_draws
@pytest.mark.usefixtures("own_process")
@pytest.mark.parametrize("script", sorted(path.stem for path in SCRIPTS.glob("*.py")))
def test_scripts_end_where_pytorch_ends(script: str) -> None:
    path = SCRIPTS / f"{script}.py"
    if script in NEEDS and importlib.util.find_spec(NEEDS[script]) is None:
        with pytest.raises(ImportError, match=NEEDS[script]):
            run_script(path)
        return
    found = run_on_genesis(path)
    wanted = runpy.run_path(str(path), run_name="__main__")["losses"]
    assert len(wanted) > 4
    assert found == pytest.approx(wanted, rel=LOOSE.get(script, 1e-4), abs=1e-6)


def test_the_scripts_are_pytorchs() -> None:
    assert len(list(SCRIPTS.glob("*.py"))) >= 17
    for path in SCRIPTS.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "genesis" not in text
        assert len(text.splitlines()) < 65
