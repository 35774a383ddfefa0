"""Collectives: results, refusals before anything is sent, and errors on every rank."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from torch.distributed import HashStore

import genesis
from genesis import distributed as dist
from genesis.settings import override
from tests.distributed.ranks import Ranks


@pytest.mark.parametrize("seed", range(3))
def test_random_collectives_match_torch(two_ranks: Ranks, seed: int) -> None:
    two_ranks.run("fuzz.run", seed=seed, count=40)


def test_four_ranks_match_torch(four_ranks: Ranks) -> None:
    four_ranks.run("fuzz.run", seed=0, count=40)


def test_objects(two_ranks: Ranks) -> None:
    two_ranks.run("objects")


def test_objects_that_are_refused(alone: None) -> None:
    with pytest.raises(ValueError, match=r"^gather_object: argument 'dst': expected a rank from 0 to 0, got 1"):
        dist.gather_object(1, [None], dst=1)
    with pytest.raises(ValueError, match=r"^all_gather_object: argument 'object_list': expected a list of 1, got 2"):
        dist.all_gather_object([None, None], 1)


def test_a_simulated_device_goes_by_the_host(two_ranks: Ranks) -> None:
    two_ranks.run("fuzz.run", seed=1, count=15, device="cuda")


def test_the_fuzzer_finds_a_fault(two_ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    for is_right, said in two_ranks.outcomes("fuzz.run", seed=0, count=5, spoil=True):
        assert not is_right
        assert "fuzz.run(seed=0" in said  # the line that reproduces it


DIFFERENT: dict[str, tuple[list[dict[str, Any]], str]] = {
    "shapes": (
        [{"name": "all_reduce", "shape": (2, 3)}, {"name": "all_reduce", "shape": (3, 2)}],
        "rank 0: all_reduce(sum, float32 [2, 3]); rank 1: all_reduce(sum, float32 [3, 2])",
    ),
    "dtypes": (
        [{"name": "all_reduce", "dtype": "bfloat16"}, {"name": "all_reduce"}],
        "rank 0: all_reduce(sum, bfloat16 [2]); rank 1: all_reduce(sum, float32 [2])",
    ),
    "reductions": ([{"name": "all_reduce", "op": "MAX"}, {"name": "all_reduce"}], "rank 0: all_reduce(max, float32"),
    "calls": ([{"name": "all_reduce"}, {"name": "barrier"}], "rank 1: barrier()"),
    "sources": ([{"name": "broadcast", "src": 0}, {"name": "broadcast", "src": 1}], "rank 1: broadcast(from rank 1, "),
    "gathered shapes": (
        [{"name": "all_gather"}, {"name": "all_gather", "shape": (5,)}],
        "rank 1: all_gather(float32 [5]",
    ),
    "an empty tensor": (
        [{"name": "all_reduce", "shape": (0,)}, {"name": "all_reduce"}],
        "rank 0: all_reduce(sum, float32 [0]",
    ),
    "destinations": ([{"name": "reduce", "dst": 0}, {"name": "reduce", "dst": 1}], "rank 1: reduce(to rank 1, "),
    "objects and tensors": (
        [{"name": "all_reduce"}, {"name": "broadcast_object_list", "count": 1}],
        "rank 1: broadcast_object_list(from rank 0, 1 objects)",
    ),
    "lengths of lists": (
        [{"name": "broadcast_object_list", "count": 1}, {"name": "broadcast_object_list", "count": 2}],
        "rank 1: broadcast_object_list(from rank 0, 2 objects)",
    ),
}

REFUSALS: dict[str, tuple[list[dict[str, Any]], str, str]] = {  # a call of rank 0, and one that rank 1 itself refuses
    "a reduction": (
        [{"name": "all_reduce", "op": "AVG"}, {"name": "all_reduce", "op": "AVG", "dtype": "int64"}],
        "rank 0: all_reduce(avg, float32 [2]); rank 1: all_reduce(refused: all_reduce: argument 'op': expected SUM",
        "expected SUM, PRODUCT, MIN or MAX of int64, got AVG",
    ),
    "what pickle does not take": (
        [{"name": "all_gather_object"}, {"name": "all_gather_object", "fails": True}],
        "rank 1: all_gather_object(refused: all_gather_object: argument 'obj': expected what pickle takes, got functio",
        "argument 'obj': expected what pickle takes, got function",
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_ranks_that_differ_raise_everywhere(two_ranks: Ranks, name: str) -> None:
    calls, expected = DIFFERENT[name]
    for said in two_ranks.run("refused", calls=calls):
        assert "the ranks make different calls" in said
        assert expected in said


@pytest.mark.parametrize("name", REFUSALS)
def test_what_one_rank_refuses_is_an_error_on_all(two_ranks: Ranks, name: str) -> None:
    calls, there, here = REFUSALS[name]
    first, second = two_ranks.run("refused", calls=calls)
    assert there in first
    assert here in second


# --- alone ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), world_size=1, rank=0, timeout=5)
    yield
    dist.destroy_process_group()


def test_what_a_group_knows(alone: None) -> None:
    assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (0, 1, "gloo")
    assert dist.is_initialized()
    with pytest.raises(dist.DistributedError, match="there is a group already"):
        dist.init_process_group("gloo", store=HashStore(), world_size=1, rank=0)


def test_without_a_group() -> None:
    assert (dist.get_rank(), dist.get_world_size(), dist.is_initialized()) == (0, 1, False)
    for call in (dist.barrier, dist.destroy_process_group, dist.get_backend, lambda: dist.all_reduce(genesis.ones(1))):
        with pytest.raises(dist.DistributedError, match="there is no process group; call init_process_group"):
            call()


REFUSED: list[tuple[Any, type[Exception], str]] = [
    (lambda: dist.all_reduce(3), TypeError, "all_reduce: argument 'tensor': expected a Tensor, got int"),
    (lambda: dist.all_reduce(genesis.ones(2), op="sum"), TypeError, "'op': expected a ReduceOp, got str"),
    (lambda: dist.all_reduce(genesis.ones(2).to(genesis.int64), op=dist.ReduceOp.AVG), TypeError, "of int64, got AVG"),
    (lambda: dist.all_reduce(genesis.ones(2) > 0), TypeError, "expected MIN or MAX of bool, got SUM"),
    (lambda: dist.all_reduce(genesis.ones(1).expand(3)), ValueError, "expected elements of their own"),
    (lambda: dist.broadcast(genesis.ones(2), src=1), ValueError, "'src': expected a rank from 0 to 0, got 1"),
    (lambda: dist.all_gather([], genesis.ones(2)), ValueError, "'tensor_list': expected 1 tensors, one for each rank"),
    (lambda: dist.all_gather(None, genesis.ones(2)), TypeError, "expected 1 tensors, one for each rank, got NoneType"),
    (lambda: dist.broadcast_object_list((1,)), TypeError, "'object_list': expected a list, got tuple"),
    (lambda: dist.all_gather([genesis.ones(3)], genesis.ones(2)), ValueError, r"'tensor_list\[0\]': expected shape"),
    (
        lambda: dist.all_gather([genesis.ones(2, dtype=genesis.float64)], genesis.ones(2)),
        TypeError,
        r"'tensor_list\[0\]': expected float32, got float64",
    ),
    (lambda: dist.reduce_scatter(genesis.ones(2), [genesis.ones(3)]), ValueError, r"'input_list\[0\]': expected shape"),
    (
        lambda: dist.all_gather_into_tensor(genesis.ones(3), genesis.ones(2)),
        ValueError,
        "'output_tensor': expected",
    ),
    (lambda: dist.all_gather_into_tensor(genesis.ones(1), genesis.ones(())), ValueError, "at least 1 dimension"),
    (lambda: dist.reduce_scatter_tensor(genesis.ones(2), genesis.ones(3)), ValueError, "'input': expected shape"),
]


@pytest.mark.parametrize(("call", "kind", "message"), REFUSED)
def test_what_is_refused(alone: None, call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call()
    dist.barrier()


def test_devices_of_one_call(alone: None) -> None:
    with (
        override(cuda="simulated"),
        pytest.raises(genesis.errors.DeviceError, match="expected a tensor on cuda:0, got one on cpu"),
    ):
        dist.all_gather([genesis.ones(2)], genesis.ones(2, device="cuda"))


BEGINNINGS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"backend": "mpi"}, ValueError, "'backend': expected 'gloo' or 'nccl', got 'mpi'"),
    ({"backend": "nccl"}, ImportError, "'nccl' needs the package nccl4py"),
    ({"timeout": "soon"}, TypeError, "'timeout': expected a timedelta, or seconds, got str"),
    ({"timeout": 0}, ValueError, "'timeout': expected a positive time, got 0"),
    ({}, ValueError, "start the program by torchrun"),
    ({"init_method": "tcp://127.0.0.1:1"}, ValueError, "expected rank and world_size, beside tcp"),
    ({"init_method": "carrier://pigeon", "rank": 0, "world_size": 1}, ValueError, "expected a place to meet"),
    ({"store": HashStore(), "rank": 2, "world_size": 2}, ValueError, "'rank': expected 0 ≤ rank < world_size"),
    (
        {"store": HashStore(), "rank": 0, "world_size": 2, "timeout": 0.2},
        dist.DistributedError,
        "rank 0 did not meet the others of 2 ranks within 0.2 s",
    ),
]


def test_nccl_does_not_reach_a_simulated_device() -> None:
    with override(cuda="simulated"), pytest.raises(ValueError, match="'backend': expected 'gloo' for the simulated"):
        dist.init_process_group("nccl", store=HashStore(), world_size=1, rank=0)


@pytest.mark.parametrize(("arguments", "kind", "message"), BEGINNINGS)
def test_beginnings_that_are_refused(
    arguments: dict[str, Any], kind: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "nccl", None)  # as where it is not installed
    with pytest.raises(kind, match=message):
        dist.init_process_group(**arguments)
    assert not dist.is_initialized()


def test_a_change_is_counted(alone: None) -> None:
    x = genesis.ones(2, requires_grad=True)
    y = x * 2
    z = y * y
    dist.all_reduce(y)
    with pytest.raises(genesis.errors.GraphError, match="changed in place"):
        z.sum().backward()


def test_no_thread_is_left(alone: None) -> None:
    dist.destroy_process_group()
    names = [thread.name for thread in threading.enumerate()]
    dist.init_process_group("gloo", store=HashStore(), world_size=1, rank=0)
    assert "genesis.distributed" not in names


def test_calls_that_are_not_compared_may_be_waited_for_after_the_end_of_the_group() -> None:
    dist.init_process_group("gloo", store=HashStore(), world_size=1, rank=0, check=False)
    try:
        small, large = genesis.full((3,), 2.0), genesis.ones(1 << 19)  # started by the caller, and by gloo's thread
        works = [dist.all_reduce(x, async_op=True) for x in (small, large, small)]
    finally:
        dist.destroy_process_group()
    for work in works * 2:
        assert work.wait()
        assert work.is_completed()
    assert small.tolist() == [2.0] * 3
