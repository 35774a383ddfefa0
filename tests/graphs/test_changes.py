"""genesis.compile sees each change of what a run reads, wherever it stands; or says that it cannot."""

from __future__ import annotations

import builtins
import cProfile
import importlib
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis import functional, nn
from genesis.graphs.snapshot import Snapshot
from genesis.nn import functional as nn_functional
from tests.graphs import fuzz
from tests.graphs.programs import MODEL, STEP, Program, read_blocks, run
from tests.graphs.steps import as_genesis

PLACES = read_blocks(Path(__file__).with_name("places.txt"))
WATCHED = {name: program for name, program in PLACES.items() if not program.refused}
REFUSED = {name: program for name, program in PLACES.items() if program.refused}


@pytest.mark.parametrize("kind", [MODEL, STEP])
@pytest.mark.parametrize("name", WATCHED)
def test_what_is_watched(name: str, kind: str) -> None:
    program = WATCHED[name]
    try:
        outcome = run(program, kind)
    finally:
        _restore()
    assert outcome.compiled == outcome.as_it_stands
    assert not outcome.warned
    assert outcome.num_recordings >= 1


@pytest.mark.parametrize("kind", [MODEL, STEP])
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str, kind: str) -> None:
    program = REFUSED[name]
    try:
        outcome = run(program, kind)
    finally:
        _restore()
    assert outcome.compiled == outcome.as_it_stands
    assert len(outcome.warned) == 1
    assert re.search(f"genesis.compile: .* runs eagerly: it .*({program.refused})", outcome.warned[0])


def _restore() -> None:
    """What a program that failed might have left."""
    genesis.set_default_dtype(genesis.float32)
    sys.modules.pop("a_module", None)
    vars(builtins).pop("K", None)
    builtins.ascii = _ascii  # type: ignore[assignment]
    nn_functional.relu = functional.relu


_ascii = ascii


@pytest.mark.parametrize("seed", range(30))
def test_random_programs(seed: int) -> None:
    wrong, _ = fuzz.check(seed)
    assert not wrong


def test_the_fuzzer_finds_what_is_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Snapshot, "changed", lambda self: None)
    assert any(fuzz.check(seed)[0] for seed in range(10))


SETTINGS = [
    (lambda: nn.Conv2d(3, 4, 3), "stride", (2, 2)),
    (lambda: nn.Conv2d(3, 4, 3, padding=1), "padding", (0, 0)),
    (lambda: nn.ConvBNReLU(3, 4, 3), "activation", None),
    (lambda: nn.Sequential(nn.ConvBNReLU(3, 4, 3)), "0.1.eps", 0.5),
    (lambda: nn.Sequential(nn.ConvBNReLU(3, 4, 3)), "0.0.stride", (2, 2)),
    (lambda: nn.BatchNorm2d(3), "eps", 0.5),
    (lambda: nn.GroupNorm(1, 3), "eps", 0.5),
    (lambda: nn.MaxPool2d(2), "stride", 1),
    (lambda: nn.LeakyReLU(), "negative_slope", 0.5),
    (lambda: nn.Softmax(1), "dim", 2),
    (lambda: nn.Flatten(), "start_dim", 2),
    (lambda: nn.Upsample(scale_factor=2), "scale_factor", 3),
]  # fmt: skip


@pytest.mark.parametrize(("build", "name", "value"), SETTINGS)
def test_settings_of_layers(build: Callable[[], nn.Module], name: str, value: Any) -> None:
    model = build().eval()
    compiled = genesis.compile(model)
    with genesis.no_grad():
        for changed in (False, True):
            if changed:
                path, _, attribute = name.rpartition(".")
                setattr(model.get_submodule(path), attribute, value)
            for _ in range(3):
                x = genesis.randn(2, 3, 8, 8)
                torch.testing.assert_close(compiled(x).to_torch(), model(x).to_torch(), rtol=1e-5, atol=1e-5)
    assert compiled.num_recordings == 1


def write_numpy(model: Any) -> Any:
    values = model[0].weight.detach().numpy()
    values *= 3.0
    return values


def write_torch(model: Any) -> Any:
    return model[0].weight.to_torch().mul_(3.0)


def write_memoryview(model: Any) -> Any:
    view = memoryview(np.asarray(model[1].norm.bias.detach()))
    view[0] += 9.0
    return view


@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize("write", [write_numpy, write_torch, write_memoryview])
def test_values_that_others_write(write: Callable[[Any], Any], is_kept: bool) -> None:
    """Recorded or not, before the memory is handed out, while it is, and after."""
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ConvBNReLU(16, 16, 3)).eval()
    compiled, x = genesis.compile(model), genesis.randn(1, 3, 12, 12)
    parts = nn.Sequential(model[0], model[1].conv, model[1].norm, nn.ReLU()).eval()
    before = None
    with genesis.no_grad():
        for number in range(12):
            if number in (3, 7, 9):
                held = write(model)  # in turn with replays
                if not is_kept:
                    del held
            expected = parts(x).to_torch()
            torch.testing.assert_close(compiled(x).to_torch(), expected, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(model(x).to_torch(), expected, rtol=1e-4, atol=1e-4)
            assert number not in (3, 7) or not torch.equal(expected, before)
            before = expected
    assert compiled.num_recordings == 1


_CACHED = "import functools\n@functools.lru_cache\ndef one():\n    return 1\none()\n"


@pytest.mark.parametrize("is_ours", [True, False])
def test_packages_imported_by_the_first_call(
    is_ours: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """Those that Genesis needs are no part of the program, whatever their modules do; the user's own are."""
    name = f"imported_{is_ours}"
    (tmp_path / f"{name}.py").write_text("import time\nSTARTED = time.time()\n")
    monkeypatch.syspath_prepend(tmp_path)

    def load() -> None:
        importlib.import_module(name)

    load = as_genesis(load) if is_ours else load

    def step(x: genesis.Tensor) -> genesis.Tensor:
        load()
        return x * 2

    compiled = genesis.compile(step)
    _ = [compiled(genesis.ones(3)) for _ in range(3)]
    assert compiled.num_recordings == is_ours
    assert (len(recwarn) == 0) == is_ours


def test_a_program_that_changes_in_each_call_is_given_up() -> None:
    names = Program("K = 2.0\n", "K", ()).namespace()
    compiled = genesis.compile(names["step"])

    def change_and_run() -> None:
        for number in range(40):
            names["K"] = float(number // 2)
            compiled(genesis.ones(3))

    with pytest.warns(RuntimeWarning, match="changes before each recording could be replayed: 'K' has changed"):
        change_and_run()
    assert compiled.num_recordings == 0


@pytest.mark.parametrize(("steps_between", "verb"), [(1, "runs eagerly"), (3, "is recorded anew time and again")])
def test_a_step_that_returns_a_scheduled_rate_says_why_it_is_not_replayed(steps_between: int, verb: str) -> None:
    weight = genesis.ones(3).requires_grad_()
    optimizer = genesis.optim.SGD([weight], lr=1.0)

    def step(x: genesis.Tensor) -> tuple[genesis.Tensor, float]:
        optimizer.zero_grad()
        loss = (weight * x).sum()
        loss.backward()
        optimizer.step()
        return loss, optimizer.param_groups[0]["lr"]

    compiled = genesis.compile(step)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for number in range(60):
            _, rate = compiled(genesis.ones(3))
            assert rate == optimizer.param_groups[0]["lr"]
            optimizer.param_groups[0]["lr"] = 0.9 ** (number // steps_between)
    (message,) = [str(each.message) for each in warned]
    assert verb in message
    assert """'optimizer.param_groups[0]["lr"]' has changed""" in message


def test_profilers_go_on() -> None:
    """cProfile, and a function of sys.setprofile, see what comes after a recording."""
    names = Program("K = 2.0\n", "K", ()).namespace()
    seen: list[str] = []

    def marked() -> None: ...

    profile = cProfile.Profile()
    for start, stop in (
        (lambda: sys.setprofile(lambda frame, *_: seen.append(frame.f_code.co_name)), lambda: sys.setprofile(None)),
        (profile.enable, profile.disable),
    ):
        before = sys.getprofile()
        compiled = genesis.compile(names["step"])
        start()
        for _ in range(3):
            compiled(genesis.ones(3))
        marked()
        stop()
        sys.setprofile(before)
    assert "marked" in seen
    assert any(each.code.co_name == "marked" for each in profile.getstats() if hasattr(each.code, "co_name"))
