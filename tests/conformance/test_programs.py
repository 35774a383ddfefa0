"""Random programs against PyTorch, a few of each kind; and that they find what is wrong."""

from __future__ import annotations

import pytest

from genesis import backends
from genesis.ndarray import NDArray
from genesis.settings import override
from tests.conformance import programs

SEEDS, SEEDS_SIMULATED, SEEDS_ON_A_GPU = 90, 9, 300


def check_all(seeds: range, device: str = "cpu") -> None:
    for seed in seeds:
        programs.check(seed, device)


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_programs(first: int) -> None:
    check_all(range(first, first + 10))


@pytest.mark.parametrize("seed", range(SEEDS_SIMULATED))
def test_programs_on_the_simulated_device(seed: int) -> None:
    with override(cuda="simulated"):
        programs.check(seed, "cuda")


@pytest.mark.gpu
def test_programs_on_a_gpu() -> None:
    with override(cuda="auto"):
        check_all(range(SEEDS_ON_A_GPU), "cuda")


def test_a_difference_prints_the_program_and_the_line_that_repeats_it() -> None:
    cpu = backends.get("cpu")
    wrong = cpu.wrapped(lambda op, function: cpu.sub if op == "add" else function)
    with backends.use("cpu", wrong), pytest.raises(programs.DifferenceError) as error:
        check_all(range(30))
    text = str(error.value)
    assert text.startswith("python -m tests.conformance.programs --seed ")
    assert "t0: " in text
    assert "+" in text.splitlines()[-2]


def test_a_lost_alias_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    permute = NDArray.permute
    monkeypatch.setattr(NDArray, "permute", lambda x, dims: permute(x, dims).clone())
    with pytest.raises(programs.DifferenceError, match="the result shares memory on one side only"):
        check_all(range(60))


def test_equal_seeds_are_equal_programs() -> None:
    listed = []
    for seed in (4, 4, 7):
        program = programs.Program(seed, "cpu")
        program.run()
        listed.append(program.lines)
    assert listed[0] == listed[1] != listed[2]
