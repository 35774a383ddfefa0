"""Tuning as users ask for it: models, blocks, files, the command line."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import genesis
from genesis import cli, nn
from genesis.backends.cuda import driver
from genesis.backends.cuda.engine import planner as engine
from genesis.backends.cuda.ops.conv.accuracy import error_bound
from genesis.backends.cuda.ops.conv.problem import ConvProblem
from genesis.cli import tune
from genesis.cuda import plans
from genesis.errors import CheckpointError
from genesis.settings import override


@pytest.fixture
def simulated(tmp_path: Path) -> Iterator[Path]:
    with override(cuda="simulated", cache_dir=tmp_path):
        engine.forget()
        yield tmp_path
        engine.forget()


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1)).to("cuda")


def test_a_model_is_tuned_with_its_gradients_and_left_as_it_was(simulated: Path) -> None:
    model, x = network(), genesis.randn(2, 3, 6, 6, device="cuda")
    before = {name: value.tolist() for name, value in model.state_dict().items()}
    told: list[tuple[str, int, int]] = []
    with genesis.float32_precision("high"):  # of so few results, the last bit of their error hangs on the processor
        report = genesis.tune(model, x, progress=lambda *args: told.append(args))
    directions = sorted(outcome.problem.direction for outcome in report.outcomes)
    assert directions == ["forward", "forward", "input_grad", "weight_grad", "weight_grad"]
    assert len(report) == 5
    assert str(report).count("TFLOP/s") == 5
    assert {name: value.tolist() for name, value in model.state_dict().items()} == before
    assert all(parameter.grad is None for parameter in model.parameters())
    assert told[-1][1] == told[-1][2]
    with genesis.float32_precision("high"):
        assert len(genesis.tune(model, x)) == 0, "all of it is known now"
    assert sum("(tuned)" in line for line in plans.describe_plans()) == 5


@pytest.mark.gpu
def test_a_short_time_on_empty_caches_tunes_every_convolution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """20 seconds tuned nothing. See benchmarks/bench_tuning.py for networks as they are trained."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    model = genesis.models.create("resnet18").to("cuda", genesis.bfloat16)
    x = genesis.randn(16, 3, 128, 128, device="cuda", dtype=genesis.bfloat16)
    with override(cache_dir=tmp_path):
        engine.forget()
        few = genesis.tune(lambda images: model(images), x, budget=10)
        for budget in (20, 100):  # the longer one where other tests keep processors and GPU busy
            engine.forget()
            report = genesis.tune(model, x, budget=budget)
            if report.num_left == 0:
                break
        assert report.num_left == 0
        outcomes = [*few.outcomes, *report.outcomes]  # what was measured to its end the first time is known
        convolutions = [each for each in outcomes if isinstance(each.problem, ConvProblem)]
        num_forward = len({each.problem for each in convolutions if each.problem.direction == "forward"})
        assert len(few) + few.num_left >= 3 * num_forward - 1  # both gradients too; not that of the images
        assert 0 < len(convolutions) < len(outcomes)  # the last layer is a product
        assert all(each.error <= error_bound(each.problem) for each in convolutions)
    engine.forget()


def test_without_gradients_only_the_forward(simulated: Path) -> None:
    x = genesis.randn(1, 3, 5, 5, device="cuda")
    with genesis.no_grad():
        report = genesis.tune(network().eval(), x)
    assert {outcome.problem.direction for outcome in report.outcomes} == {"forward"}


def test_a_function_is_tuned(simulated: Path) -> None:
    x, w = genesis.randn(1, 2, 5, 5, device="cuda"), genesis.randn(3, 2, 3, 3, device="cuda")
    assert len(genesis.tune(lambda a: {"y": [genesis.conv(a, w)]}, x)) == 1


def test_a_function_around_a_model_is_tuned_in_both_directions(simulated: Path) -> None:
    model, x = network(), genesis.randn(1, 3, 5, 5, device="cuda")
    hidden = (x * model[0].weight.sum()).exp()
    report = genesis.tune(lambda: {"loss": (model(hidden) ** 2).sum()})
    assert {outcome.problem.direction for outcome in report.outcomes} == {"forward", "input_grad", "weight_grad"}
    assert all(parameter.grad is None for parameter in model.parameters())
    hidden.sum().backward()  # the graph that was there before still has what it saved


def test_matrix_products_share_the_session_the_store_and_the_file(simulated: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(64, 5)).to("cuda")
    x = genesis.randn(2, 3, 6, 6, device="cuda")
    with genesis.no_grad():
        model(x)
        assert sum("(heuristic)" in line for line in plans.describe_plans()) == 2
        report = genesis.tune(model, x)
        assert sorted(str(outcome.problem).split()[0] for outcome in report.outcomes) == ["conv", "matmul"]
        assert genesis.cuda.export_plans(simulated / "model.plans") == 2
        with override(cache_dir=simulated / "elsewhere"):
            assert genesis.cuda.import_plans(simulated / "model.plans") == 2
            model(x)
            assert sum("(stored)" in line for line in plans.describe_plans()) == 2
            slower = [line for line in plans.describe_plans() if line.startswith("matmul 2x64 @ 64x5 + bias")]
            assert len(slower) == 1


def test_there_is_nothing_to_tune_without_convolutions_on_the_cpu() -> None:
    report = genesis.tune(nn.Linear(1, 1), genesis.ones(1, 1))
    assert (len(report), str(report)) == (0, "nothing was tuned")


def test_a_budget_must_be_a_time() -> None:
    with pytest.raises(ValueError, match="tuning: argument 'budget': expected a number of seconds above 0, got 0"):
        genesis.tune(nn.Conv2d(1, 1, 3), genesis.ones(1, 1, 4, 4), budget=0)


def test_plans_go_with_a_model(simulated: Path) -> None:
    model, x = network().eval(), genesis.randn(1, 3, 5, 5, device="cuda")
    with genesis.no_grad():
        genesis.tune(model, x)
        assert genesis.cuda.export_plans(simulated / "model.plans") == 2
        with override(cache_dir=simulated / "elsewhere"):
            assert genesis.cuda.import_plans(simulated / "model.plans") == 2
            model(x)
            assert sum("(stored)" in line for line in plans.describe_plans()) == 2


def test_the_command(simulated: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(genesis.models, "create", lambda name: nn.Conv2d(3, 2, 3))
    file = simulated / "model.plans"
    arguments = ["tune", "small", "--size", "6", "--train", "--precision", "high", "--export", str(file)]
    assert cli.main(arguments) == 0
    printed = capsys.readouterr()
    assert "conv forward 1x3x6x6 * 2x3x3" in printed.out
    assert ", high" in printed.out
    assert f"2 plans to {file}" in printed.out
    assert "1 of " in printed.err
    assert cli.main(["tune", "--import", str(file)]) == 0
    assert capsys.readouterr().out == f"0 plans from {file}\n"
    assert cli.main(["tune"]) == 2
    assert "expected a model's name, --import or --export" in capsys.readouterr().err


def test_the_command_on_a_processor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(genesis.models, "create", lambda name: nn.Conv2d(3, 2, 3))
    with override(cache_dir=tmp_path, cuda="off"):
        assert cli.main(["tune", "small", "--size", "6", "--train", "--device", "cpu"]) == 0
    assert '"op": "conv weight_grad"' in capsys.readouterr().out


def test_the_command_without_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    with override(cuda="off"):
        assert cli.main(["tune", "resnet18"]) == 2
    assert "there is no CUDA device" in capsys.readouterr().err


def test_the_command_without_triton(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_drivers", {})
    monkeypatch.setitem(sys.modules, "triton", None)
    with override(cuda="simulated"):
        assert cli.main(["tune", "resnet18"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(
        "genesis tune: there is no CUDA device; --device cpu tunes the processor: Triton is not installed"
    )
    assert "[cuda]" in said
    assert "[demo]" not in said


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_in_a_terminal_is_one_line_and_in_a_pipe_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(tune.time, "monotonic", lambda: now[0])
    terminal, pipe = Terminal(), io.StringIO()
    progress, piped = tune.Progress(terminal), tune.Progress(pipe)
    for each in (progress, piped):
        for problem, done, second in (("a long name", 1, 0.0), ("b", 1, 0.1), ("b", 2, 2.5), ("c", 3, 2.6)):
            now[0] = second
            each(problem, done, 3)
        each.end()
        each.end()
    line = len("a long name: 1 of 3")
    shown = [text.ljust(line) if i == 1 else text for i, text in enumerate(["a long name: 1 of 3", "b: 1 of 3"])]
    assert terminal.getvalue() == "".join(f"\r{text}" for text in [*shown, "b: 2 of 3", "c: 3 of 3"]) + "\n"
    assert pipe.getvalue() == "a long name: 1 of 3\nb: 2 of 3\n"


def test_a_file_that_is_none(simulated: Path) -> None:
    with pytest.raises(CheckpointError):
        genesis.cuda.import_plans(simulated / "absent")
