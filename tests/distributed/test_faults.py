"""A rank that dies or does not come: the others raise, name it, and end."""

from __future__ import annotations

import pytest

from tests.distributed.ranks import ranks


@pytest.mark.parametrize(
    ("size", "victim", "call"), [(2, 0, "all_reduce"), (3, 1, "all_reduce"), (3, 2, "backward"), (4, 0, "backward")]
)
def test_a_killed_rank_is_named_by_all_others(size: int, victim: int, call: str) -> None:
    with ranks(size) as started:
        found = started.outcomes("faulty.die", victim=victim, call=call)
        for rank, (is_right, result) in enumerate(found):
            if rank != victim:
                assert is_right, result
                seconds, said = result
                assert f"failed on rank {rank} of {size}" in said
                assert f"rank {victim} (process {started.processes[victim].pid} on " in said
                assert said.endswith("no longer runs")
                assert seconds < 10


def test_a_rank_that_is_late_is_named() -> None:
    with ranks(3, timeout=3.0) as started:
        found = started.run("faulty.late", late_rank=2)
    for rank in (0, 1):
        assert f"all_reduce: failed on rank {rank} of 3 (all_reduce(sum, float32 [3]), call " in found[rank]
        assert "nothing was heard of rank 2" in found[rank]
    assert any("timed out after 3 s" in said for said in found[:2])
    assert "all_reduce: failed on rank 2 of 3" in found[2]


_WAITED = "the ranks waited in different calls: rank 2: DistributedDataParallel("
APART: dict[str, tuple[str, str]] = {  # what the first ranks say, and the last
    "steps": (f"{_WAITED}bucket 0); rank 0, 1: all_reduce(sum, float32 [2])",) * 2,
    "frozen": (f"{_WAITED}11 parameters and 398 elements, ",) * 2,
    "raises": ("has ended: ValueError: no picture 7", ""),
    "left": ("rank 2: all_reduce(sum, float32 [2])", "all_reduce: the process group ended during the call ("),
}


@pytest.mark.parametrize("kind", APART)
def test_what_one_rank_alone_does_ends_the_others_long_before_the_timeout(kind: str) -> None:
    with ranks(3) as started:
        found = started.run("faulty.apart", kind=kind)
    for rank, (seconds, said) in enumerate(found):
        assert APART[kind][rank == 2] in said, said
        assert seconds < 10
