"""The fuzzer, a little on the simulated device and a lot on a GPU; and that it finds what is wrong."""

from __future__ import annotations

import pytest

from genesis import backends
from genesis.backends.backend import OPS as CONTRACT
from genesis.settings import override
from tests.conformance import fuzz
from tests.conformance.fuzz import OPS
from tests.conformance.surface import words

SEEDS, SEEDS_ON_A_GPU = 2, 30
# Ops that have no operands to draw, change the generator's state, or are called by another one's entry.
NOT_DRAWN = words("""
    dtype strides offset data_pointer empty full arange view copy copies from_cpu to_cpu from_dlpack synchronize
    empty_pinned is_pinned current_stream record_stream time_mark seconds_between
    manual_seed get_rng_state set_rng_state rand randn randint randperm dropout
    conv_prepack conv_prepacked prepare
    sgd_step adam_step scale_into norms unscale_into index_select_each
""")


@pytest.mark.parametrize("op", OPS)
def test_simulated(op: str) -> None:
    with override(cuda="simulated"):
        for seed in range(SEEDS):
            fuzz.check(op, seed)


@pytest.mark.gpu
@pytest.mark.parametrize("op", OPS)
def test_gpu(op: str) -> None:
    with override(cuda="auto"):
        for seed in range(SEEDS_ON_A_GPU):
            fuzz.check(op, seed)


def test_every_op_is_drawn() -> None:
    backward_with_forward = {f"{op}_backward" for op in OPS}
    assert set(CONTRACT) - set(OPS) - backward_with_forward == set(NOT_DRAWN)


def test_a_failure_prints_the_line_that_repeats_it() -> None:
    with override(cuda="simulated"):
        cuda = backends.get("cuda")
        wrong = cuda.wrapped(lambda op, function: cuda.sub if op == "add" else function)
        expected = r"python -m tests.conformance.fuzz --op add --seed 3\n.*strides.*\nAssertionError: result 0: "
        with backends.use("cuda", wrong), pytest.raises(AssertionError, match=expected):
            fuzz.check("add", 3)


def test_equal_seeds_draw_equal_arguments() -> None:
    drawn = [fuzz.describe(OPS["matmul"](fuzz.Draw(seed, "matmul"))) for seed in (5, 5, 6)]
    assert drawn[0] == drawn[1] != drawn[2]
