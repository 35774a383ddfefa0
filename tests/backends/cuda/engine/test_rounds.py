"""A network's problems, tuned in a time that is too short for all: by a clock that only building and running move."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Iterator

import pytest

from genesis.backends.backend import Backend
from genesis.backends.cuda.engine import tuner
from genesis.backends.cuda.engine.tuner import Contest, Outcome
from genesis.backends.cuda.ops.conv import families
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from tests.backends.cuda.engine.fake_tuner import PROBLEM, Bench, FakeFamily, cudnn, install, ours, share_out

BUDGETS = (0.5, 1, 2, 3, 5, 8, 13, 20, 30, 45, 60)
PROCESSORS = 8


class Network:
    """Problems with families of their own, and how often each is computed."""

    def __init__(self, seed: int, number: int = 60) -> None:
        draw = random.Random(seed)
        self.families: dict[ConvProblem, list[FakeFamily]] = {}
        self.counts: dict[ConvProblem, int] = {}
        for i in range(number):
            direction = (FORWARD, INPUT_GRAD, WEIGHT_GRAD)[i % 3]
            problem = dataclasses.replace(PROBLEM, direction=direction, input_shape=(1, 4, 5 + i, 5), padding=(1, 1))
            typical = math.exp(draw.gauss(-1, 1))  # milliseconds

            def times(most: int, typical: float = typical) -> list[float]:
                return [typical * math.exp(draw.gauss(0, 0.5)) for _ in range(draw.randint(1, most))]

            libraries, own = [cudnn(*times(12))], [ours("wgmma", *times(6)), ours("implicit_gemm", *times(3))]
            self.families[problem] = [*own, *libraries] if draw.random() < 0.3 else [*libraries, *own]
            self.counts[problem] = draw.choice([1, 1, 2, 5])

    def untuned(self, problem: ConvProblem) -> float:
        """Milliseconds of the best guess."""
        return self.families[problem][0].candidates[0].milliseconds

    def step(self, found: dict[ConvProblem, Outcome]) -> float:
        """Milliseconds of all."""
        return sum(
            count * (found[problem].milliseconds if problem in found else self.untuned(problem))
            for problem, count in self.counts.items()
        )


Tune = Callable[[Network, float], dict[ConvProblem, Outcome]]


@pytest.fixture(params=[True, False], ids=["processes", "threads"])
def tune(simulated: Backend, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Tune]:
    install(monkeypatch, PROCESSORS, apart=request.param)

    def run(network: Network, seconds: float) -> dict[ConvProblem, Outcome]:
        monkeypatch.setattr(families, "in_order", lambda problem: network.families[problem])
        Bench.start()
        contests = [Contest(CONV, problem, 1 << 20, count=count) for problem, count in network.counts.items()]
        return share_out(contests, seconds)

    yield run
    Bench.start()


@pytest.mark.parametrize("seed", range(3))
def test_any_time_is_well_spent(tune: Tune, seed: int) -> None:
    network = Network(seed)
    found = {seconds: tune(network, seconds) for seconds in BUDGETS}
    numbers = [len(outcomes) for outcomes in found.values()]
    assert numbers == sorted(numbers)
    assert numbers[-1] == len(network.counts) == len(found[20]), "20 seconds are enough for the basics of all"
    steps = [network.step({}), *[network.step(outcomes) for outcomes in found.values()]]
    assert steps == sorted(steps, reverse=True), "more time never ends worse, and none worse than no tuning"
    assert steps[-1] < 0.9 * steps[0]
    for less, more in zip(found.values(), list(found.values())[1:], strict=False):
        assert less.keys() <= more.keys()
        assert all(more[problem].milliseconds <= less[problem].milliseconds for problem in less)


def test_after_twenty_seconds_all_that_is_ready_made_was_measured(tune: Tune) -> None:
    network = Network(0)
    found = tune(network, 20)
    measured = set(map(id, Bench.measured))
    for problem, outcome in found.items():
        libraries = next(family for family in network.families[problem] if family.prefix == "cudnn")
        assert {id(each) for each in libraries.candidates[: tuner._FIRST_READY_MADE]} <= measured
        assert outcome.milliseconds <= min(each.milliseconds for each in libraries.candidates[:4])
        assert outcome.milliseconds <= network.untuned(problem)


@pytest.mark.parametrize("seconds", BUDGETS)
def test_no_budget_is_exceeded(tune: Tune, seconds: float) -> None:
    """Nothing is waited for: what is being compiled then is left to itself."""
    tune(Network(1), seconds)
    assert Bench.now <= 1.1 * seconds


def test_a_short_budget_measures_a_guess_and_an_alternative_of_every_problem(tune: Tune) -> None:
    """As twenty seconds with a cold cache found nothing for four networks."""
    network = Network(0)
    found = tune(network, 20)
    assert found.keys() == network.counts.keys()
    measured = set(map(id, Bench.measured))
    for problem in network.counts:
        guess, *others = [each for family in network.families[problem] for each in family.candidates]
        assert id(guess) in measured
        assert any(id(each) in measured for each in others)


def test_what_takes_the_network_longest_comes_first(tune: Tune) -> None:
    network = Network(2, number=9)
    rare, often = list(network.counts)[::3][:2]  # of one direction and about one size
    for problem in network.counts:
        network.counts[problem] = 50 if problem is often else 1
    assert next(iter(tune(network, 5))) == often
    network.counts[rare], network.counts[often] = 50, 1
    assert next(iter(tune(network, 5))) == rare


def test_all_time_tunes_all_to_the_end(tune: Tune) -> None:
    network = Network(3, number=12)
    found = tune(network, 1e9)
    for problem, outcome in found.items():
        every = [each.milliseconds for family in network.families[problem] for each in family.candidates]
        assert (outcome.complete, outcome.milliseconds) == (True, min(every))


def test_a_problem_without_candidates_that_are_right_ends(tune: Tune) -> None:
    network = Network(4, number=3)
    first, *others = network.counts
    for family in network.families[first]:
        for candidate in family.candidates:
            candidate.is_right = False
    assert list(tune(network, 1e9).keys() ^ set(others)) == []


def test_without_a_library_the_best_guesses_are_compiled_first(tune: Tune) -> None:
    network = Network(5, number=16)
    for problem, given in network.families.items():
        network.families[problem] = [family for family in given if family.prefix != "cudnn"]
    found = tune(network, 8)
    assert found.keys() == network.counts.keys()
    assert all(outcome.milliseconds <= network.untuned(problem) for problem, outcome in found.items())
