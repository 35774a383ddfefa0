"""Random collectives on random tensors, compared bit by bit with torch.distributed on the same values.

python -m tests.distributed.fuzz --seeds 25 --count 100 --ranks 4
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as theirs

import genesis
from genesis import distributed as ours
from genesis.distributed.group import require
from genesis.settings import override
from tests.distributed.ranks import RanksError, ranks

FLOATS = ("float64", "float32", "float16", "bfloat16")
OTHERS = ("int64", "int32", "int16", "int8", "uint8", "bool")
CALLS = (
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "all_gather_into_tensor",
    "reduce_scatter",
    "reduce_scatter_tensor",
)
OBJECTS = ("all_gather_object", "gather_object", "broadcast_object_list")
DIFFERENT = ("shape", "dtype", "reduction", "call", "refused", "unpicklable")  # what one rank does otherwise
LAYOUTS = ("row-major", "transposed", "strided")


class Draw:
    """Random calls: the same on all ranks but for the values."""

    def __init__(self, rank: int, size: int, seed: int, device: str) -> None:
        self.rank, self.size, self.device = rank, size, device
        self.common, self.own = np.random.default_rng(seed), np.random.default_rng([seed, rank])

    def pick(self, names: tuple[str, ...]) -> str:
        return names[int(self.common.integers(len(names)))]

    def shape(self) -> tuple[int, ...]:
        return tuple(int(size) for size in self.common.choice([0, 1, 2, 3, 7, 65], self.common.integers(1, 4)))

    def tensor(self, shape: tuple[int, ...], dtype: str, layout: str) -> genesis.Tensor:
        """Values of this rank, in memory of some order."""
        values = torch.from_numpy(self.own.integers(0, 5, shape) + self.own.random(shape)).to(getattr(torch, dtype))
        x = genesis.from_torch(values).clone().to(self.device)
        if layout == "transposed":
            return x.permute(*reversed(range(x.ndim))).contiguous().permute(*reversed(range(x.ndim)))
        if layout == "strided" and x.ndim:
            return genesis.cat([x, x], -1)[..., : x.shape[-1]]
        return x


def run(rank: int, size: int, seed: int, count: int, device: str = "cpu", spoil: bool = False) -> int:
    """A rank's part: calls of both, some asynchronous, and waited for in another order. Returns: how many."""
    if not theirs.is_initialized():
        store = theirs.PrefixStore("torch", require("fuzz")._store)
        theirs.init_process_group("gloo", store=store, rank=rank, world_size=size)
    draw, present = Draw(rank, size, seed, device), require("fuzz")
    pending: list[tuple[ours.Work | None, Callable[[], None]]] = []
    with override(cuda="simulated"):
        for number in range(count):
            line = f"fuzz.run(seed={seed}, count={count}, device={device!r}), call {number}"
            kind = float(draw.common.random())
            if kind < 0.1 and not spoil:
                (objects if kind < 0.05 else disagreement)(draw, line)
            present.check = float(draw.common.random()) < 0.5  # those that are not compared take a shorter way
            try:
                pending.append(one(draw, line, spoil and number == count - 1))
            finally:
                present.check = True
            while len(pending) > 3 or (pending and (number == count - 1 or draw.common.random() < 0.5)):
                work, compare = pending.pop(int(draw.common.integers(len(pending))))
                assert work is None or (work.wait() and work.is_completed()), line
                compare()
    return count


def one(draw: Draw, line: str, spoil: bool) -> tuple[ours.Work | None, Callable[[], None]]:
    """Make a call on both sides. Returns: ours on its way, and what compares the results after it."""
    name, shape, layout = draw.pick(CALLS), draw.shape(), draw.pick(LAYOUTS)
    dtype = draw.pick(FLOATS + OTHERS)
    op = ours.ReduceOp[reduction(draw, dtype)]
    x = draw.tensor(shape, dtype, layout)
    whole = (draw.size * shape[0], *shape[1:])
    asynchronous = bool(draw.common.integers(2))
    source = int(draw.common.integers(draw.size))
    line = f"{line}: {name}, {op.value}, {dtype} {shape} {layout}, from {source}, async_op={asynchronous}"
    before = plain(x)
    results: list[genesis.Tensor] = [x]
    call: Callable[..., ours.Work | None] = getattr(ours, name)
    if name == "all_reduce":
        work = call(x, op, async_op=asynchronous)
        expected = [reduced(before, op, draw.size)]
    elif name == "reduce":
        work = call(x, source, op, async_op=asynchronous)
        every = reduced(before, op, draw.size)
        expected = [every if draw.rank == source else before]
    elif name == "broadcast":
        work = call(x, source, async_op=asynchronous)
        moved = as_bytes(before.clone())
        theirs.broadcast(moved, source)
        expected = [moved.view(before.dtype)]
    elif name.startswith("all_gather"):
        into = name == "all_gather_into_tensor"
        results = [draw.tensor(whole if into else shape, dtype, layout) for _ in range(1 if into else draw.size)]
        work = call(results[0] if into else results, x, async_op=asynchronous)
        parts = [torch.empty_like(as_bytes(before)) for _ in range(draw.size)]
        theirs.all_gather(parts, as_bytes(before))
        expected = [part.view(before.dtype) for part in parts]
        expected = [torch.cat(expected)] if into else expected
    else:
        into = name == "reduce_scatter_tensor"
        given = draw.tensor(whole, dtype, layout)
        parts = list(plain(given).chunk(draw.size)) if shape[0] else [before] * draw.size
        inputs = given if into else [given[rank * shape[0] : (rank + 1) * shape[0]] for rank in range(draw.size)]
        work = call(x, inputs, op, async_op=asynchronous)
        joined = reduced(torch.cat([part.reshape(-1) for part in parts]), op, draw.size)
        expected = [joined.chunk(draw.size)[draw.rank].reshape(shape) if joined.numel() else before]

    def compare() -> None:
        if spoil:
            results[0].zero_()
            expected[0] = torch.ones(1)
        for found, wanted in zip(results, expected, strict=True):
            assert bits(plain(found)) == bits(wanted), f"{line}: {plain(found)} and {wanted}"

    return work, compare


def objects(draw: Draw, line: str) -> None:
    """Objects of other sizes on each rank."""
    name, source = draw.pick(OBJECTS), int(draw.common.integers(draw.size))
    own = {"rank": draw.rank, "text": "ä" * int(draw.own.integers(0, 300)), "values": draw.own.random(3)}
    here: list[Any] = [own, draw.rank] if name.startswith("broadcast") else [None] * draw.size
    there: list[Any] = list(here)
    for library, places in ((ours, here), (theirs, there)):
        if name == "broadcast_object_list":
            library.broadcast_object_list(places, source)
        elif name == "all_gather_object":
            library.all_gather_object(places, own)
        else:
            library.gather_object(own, places if draw.rank == source else None, source)
    assert repr(here) == repr(there), f"{line}: {name}, {source}: {here} and {there}"


def disagreement(draw: Draw, line: str) -> None:
    """One rank does something else: an error on every rank, and the next call is as any."""
    what, odd = draw.pick(DIFFERENT), draw.rank == int(draw.common.integers(draw.size))
    x = genesis.ones(3 if odd and what == "shape" else 2, dtype=genesis.float64 if odd and what == "dtype" else None)
    try:
        if what == "unpicklable":
            ours.all_gather_object([None] * draw.size, (lambda: None) if odd else None)
        elif odd and what == "call":
            ours.barrier()
        elif odd and what == "refused":
            ours.all_reduce(x.to(genesis.int32), ours.ReduceOp.AVG)
        else:
            ours.all_reduce(x, ours.ReduceOp.MAX if odd and what == "reduction" else ours.ReduceOp.SUM)
        said = "nothing"
    except (ours.DistributedError, genesis.errors.DTypeError) as error:
        said = str(error)
    wanted = "expected" if odd and what in ("refused", "unpicklable") else "the ranks make different calls"
    assert wanted in said, f"{line}: {what}: {said}"


def reduction(draw: Draw, dtype: str) -> str:
    if dtype == "bool":
        return draw.pick(("MIN", "MAX"))
    return draw.pick(("SUM", "PRODUCT", "MIN", "MAX", "AVG")[: 5 if dtype in FLOATS else 4])


def reduced(x: torch.Tensor, op: ours.ReduceOp, size: int) -> torch.Tensor:
    """torch.distributed's all_reduce; of what gloo does not have, that of a wider dtype."""
    wide = {torch.int16: torch.int32, torch.bool: torch.uint8}.get(x.dtype, x.dtype)
    y = x.clone().to(wide)
    if op is ours.ReduceOp.AVG:
        y /= size
    if y.numel():
        theirs.all_reduce(y, getattr(theirs.ReduceOp, "SUM" if op is ours.ReduceOp.AVG else op.name))
    return y.to(x.dtype)


def plain(x: genesis.Tensor) -> torch.Tensor:
    return x.cpu().contiguous().to_torch().clone()


def bits(x: torch.Tensor) -> bytes:
    return bytes(as_bytes(x).tolist())


def as_bytes(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().as_strided((x.numel(),), (1,)).view(torch.uint8)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=25)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=100, help="calls per seed")
    parser.add_argument("--ranks", type=int, default=4)
    arguments = parser.parse_args(argv)
    done = 0
    with ranks(arguments.ranks) as started:
        for seed in range(arguments.first, arguments.first + arguments.seeds):
            try:
                done += started.run("fuzz.run", seed=seed, count=arguments.count)[0]
            except RanksError as error:
                print(error)
                return 1
    print(f"{done} calls of {arguments.ranks} ranks: all as torch.distributed's")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
