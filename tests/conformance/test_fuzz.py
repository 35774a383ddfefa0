"""The fuzzer, a little on the simulated device and a lot on a GPU; and that it finds what is wrong."""

from __future__ import annotations

import pytest

from genesis import backends
from genesis.backends.contract import TRAITS
from genesis.settings import override
from tests.conformance import fuzz
from tests.conformance.fuzz import OPS
from tests.conformance.surface import words

SEEDS, SEEDS_ON_A_GPU = 2, 30
# Ops that have operands, but are called by another one's entry, or compared by tests of their own.
NOT_DRAWN = words(
    "copy copies copy_all_into conv_prepack conv_prepacked sgd_step adam_step scale_into norms unscale_into "
    "index_select_each update_scale recurrent recurrent_backward join "
    "make_complex conj angle fft rfft irfft"  # on the CPU only: test_complex.py
)


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
    operated = {
        op for op, traits in TRAITS.items() if traits.arrays and not (traits.idle or traits.random or traits.to_outside)
    }
    missing = operated - set(OPS) - {f"{op}_backward" for op in OPS} - set(NOT_DRAWN)
    assert not missing, f"draw the arguments of {missing} in tests/conformance/fuzz_ops.py (layers: fuzz_networks.py)"


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
