"""The benchmarks of many networks and of their convolutions, without a GPU."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def script(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    name, options = request.param
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--dry-run", *options.split(), "--out", str(tmp_path)])
    return importlib.import_module(name)


@pytest.mark.parametrize("script", [("bench_zoo", "--rounds 1 --steps 1")], indirect=True)
def test_networks_are_timed_and_failures_are_told(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fails(model: object) -> None:
        raise RuntimeError("no such side")

    monkeypatch.setattr(script, "without_norms", fails)
    monkeypatch.setattr(script, "TINY", script.TINY[1:])
    assert script.main() == 0
    rows = json.loads((tmp_path / "bench_zoo.json").read_text(encoding="utf-8"))["rows"]
    timed, failed = ([row for row in rows if ("error" in row) is bad] for bad in (False, True))
    assert {row["side"] for row in timed} == {"torch", "genesis", "genesis without biases"}
    assert {row["case"] for row in rows} == {"tiny_diffusion_unet, 2 of 16²"}
    assert len({round(row["loss"], 2) for row in timed}) == 1  # the same network and images on each side
    assert [row["side"] for row in failed] == ["genesis without norms"]
    table = (tmp_path / "bench_zoo.md").read_text(encoding="utf-8")
    assert "1 networks, geometric mean" in table
    assert "tiny_diffusion_unet, genesis without norms: RuntimeError: no such side" in table
    assert script.Link._runs_alone.__name__ == "_runs_alone"  # as it was


@pytest.mark.parametrize("script", [("bench_zoo_convs", "--tune 0.05")], indirect=True)
def test_convolutions_are_compared_guessed_and_tuned(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert script.main() == 0
    report = json.loads((tmp_path / "bench_zoo_convs.json").read_text(encoding="utf-8"))
    assert len(report["rows"]) == 5  # two convolutions, one of them of the image
    for row in report["rows"]:
        assert max(row["guess_error"], row["torch_error"]) < 1e-6
    table = (tmp_path / "bench_zoo_convs.md").read_text(encoding="utf-8")
    assert "| fp32 all | 5 |" in table
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--more"])
    monkeypatch.setattr(script, "compared", None)
    assert script.main() == 0  # nothing is left to be measured


@pytest.mark.parametrize("script", [("bench_zoo_convs", "")], indirect=True)
def test_odd_convolutions_have_rows_that_no_vector_takes(script: ModuleType) -> None:
    cases = list(script.cases(script.odd(), ["bf16"], script.DIRECTIONS))
    assert len({case.name for case in cases}) == len(cases) == 48
    for problem in (case.problem for case in cases):
        assert any(channels % 8 for channels in problem.weight_shape[:2])
        assert problem.output_shape[2:] == tuple(-(-n // problem.stride[0]) for n in problem.input_shape[2:])


def test_the_stored_convolutions_are_those_of_the_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    zoo = importlib.import_module("zoo_networks")
    stored = {each._replace(count=0, networks=()): each for each in zoo.stored()}
    for network in (each for each in zoo.NETWORKS if each.name in ("yolo", "diffusion_unet")):
        found = zoo.convolutions_of(network)
        assert len(found) > 50
        for each in found:
            assert network.name in stored[each].networks


def test_any_network_of_the_packages_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    zoo = importlib.import_module("zoo_networks")
    assert zoo.named("yolo") in zoo.NETWORKS
    assert zoo.named("timm:dpn68") == zoo.Network("dpn68", "dpn68", "timm", 32, 224)
    assert zoo.named("torchvision:googlenet:64:192")[3:] == (64, 192)
    for network in (zoo.NETWORKS[0], zoo.named("timm:dpn68:16")):
        assert zoo.named(zoo.spelled(network)) == network
    for name in ("dpn68", "elsewhere:dpn68", "timm:dpn68:1:2:3", "timm:dpn68:many"):
        with pytest.raises(ValueError, match=r"dpn68|many"):
            zoo.named(name)
