"""What the ranks run with genesis.compile: a compiled step has the effects of the eager one, bit for bit."""

from __future__ import annotations

import contextlib
import copy
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import genesis
import genesis.nn.functional as F
from genesis import amp, growth, nn
from genesis import distributed as dist
from genesis.nn.parallel import DistributedDataParallel
from genesis.nn.utils import clip_grad_norm_
from genesis.settings import override
from tests.distributed import captured, fake_nccl, programs

Step = Callable[..., Any]


def _step(model: DistributedDataParallel, optimizer: str, how: str) -> Step:
    stepper = programs.OPTIMIZERS[optimizer](model.parameters())
    scaler = amp.GradScaler(init_scale=8.0, growth_interval=2, enabled="scaler" in how)
    has_clipping, accumulates, keeps = "clip" in how, "accumulate" in how, "keep" in how

    def step(inputs: Any, targets: Any) -> Any:
        stepper.zero_grad(set_to_none=not keeps)
        if accumulates:
            with model.no_sync():
                F.mse_loss(model(inputs * 2), targets).backward()
        with genesis.autocast(inputs.device.type, dtype=genesis.bfloat16, enabled="autocast" in how):
            loss = F.mse_loss(model(inputs).to(targets.dtype), targets)
        scaler.scale(loss).backward()
        if has_clipping:
            scaler.unscale_(stepper)
            clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(stepper)
        scaler.update()
        return loss.detach()

    return step


def _micro(model: DistributedDataParallel, optimizer: str, how: str) -> Step:
    """Forward and backward; the rest is outside of what is compiled."""

    def step(inputs: Any, targets: Any) -> Any:
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        return loss.detach()

    return step


def _sides(
    rank: int, network: str, norm: str, device: str, dtype: str = "float64", **options: Any
) -> list[DistributedDataParallel]:
    genesis.manual_seed(rank)
    module = programs.convolutional() if network == "convolutional" else programs.dense()
    module = module.to(device, programs.DTYPES[dtype])
    modules = [module, copy.deepcopy(module)]
    if norm == "synchronized":
        modules = [nn.SyncBatchNorm.convert_sync_batchnorm(each) for each in modules]
    made = [DistributedDataParallel(each, bucket_cap_mb=2e-4, **options) for each in modules]
    modules[1].load_state_dict(modules[0].state_dict())
    return made


def _same(models: list[DistributedDataParallel], what: str) -> None:
    for (name, one), other in zip(models[0].module.named_parameters(), models[1].module.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None), f"{what}: grad of {name}"
        if one.grad is not None and other.grad is not None:
            assert one.grad.tolist() == other.grad.tolist(), f"{what}: grad of {name}"
    for (name, one), other in zip(models[0].state_dict().items(), models[1].state_dict().values(), strict=True):
        assert one.tolist() == other.tolist(), f"{what}: {name}"


def train(
    rank: int, size: int, optimizer: str = "SGD", network: str = "dense", norm: str = "own", how: str = "",
    device: str = "cpu", steps: int = 7, **options: Any,
) -> int:  # fmt: skip
    """A compiled step of data parallel training does what the eager one does. Returns: how many steps were replays."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dtype = "float32" if "autocast" in how else "float64"  # which autocast leaves alone
        models = _sides(rank, network, norm, device, dtype, **options)
        ours, theirs = (_step(model, optimizer, how) for model in models)
        compiled = genesis.compile(ours)
        for number in range(steps):
            pair = programs.batch(number, dtype, image=network == "convolutional")
            given = [programs.mine(rank, size, each).to(device) for each in pair]
            assert compiled(*given).item() == theirs(*given).item(), number
            _same(models, f"step {number}")
        if network == "dense" or norm == "synchronized":
            programs.assert_equal_bits(models[0])
        _assert_overlap(compiled, models[0])
        if device == "cuda" and not how:
            _assert_late_waits(compiled)
    return compiled.num_replays


def _assert_overlap(compiled: Any, model: DistributedDataParallel) -> None:
    """The first bucket is on its way before backward makes the last gradient."""
    (entry,) = [entry for entry in compiled._entries.values() if entry.is_recorded]
    calls = [call.op for call in entry._replayable.recording.calls]
    assert model._reducer is not None
    assert len(model._reducer.buckets) > 2
    repeats = [index for index, op in enumerate(calls) if op == "repeat"]
    assert any(later - before > 2 for before, later in itertools.pairwise(repeats)), calls


def _assert_late_waits(compiled: Any) -> None:
    """In a CUDA graph, most parameters are updated before the last bucket is waited for."""
    (entry,) = [entry for entry in compiled._entries.values() if entry.is_recorded]
    ops = " ".join(call.op for call in entry._replayable.recording.calls)
    assert ops.removesuffix(" repeat").endswith(" update repeat update")  # rank 0 waits for its own buffers at the end
    batches = [batch for _, batch in entry._replayable._updates]
    assert len(batches[0].params) > len(batches[1].params)


def train_captured(rank: int, size: int, **arguments: Any) -> tuple[int, int]:
    """The same on a stand-in for NCCL. Returns: replays, and the collectives that one of them makes."""
    with fake_nccl.installed():
        num_replays = train(rank, size, device="cuda", **arguments)
        return num_replays, fake_nccl.Communicator.latest.num_made


def wrapped(rank: int, size: int) -> int:
    """DistributedDataParallel around a model whose steps are captured already: the device counts AdamW's steps."""
    with fake_nccl.installed(), warnings.catch_warnings():
        warnings.simplefilter("error")
        genesis.manual_seed(0)
        models: list[Any] = [programs.dense().to("cuda", genesis.float64) for _ in range(2)]
        models[1].load_state_dict(models[0].state_dict())
        steppers = [programs.OPTIMIZERS["AdamW"](model.parameters()) for model in models]
        num_replays = 0
        for _ in range(2):
            ours, theirs = map(captured.step_of, models, steppers)
            compiled = genesis.compile(ours)
            for number in range(7):
                given = [each.to("cuda") for each in programs.batch(number, "float64")]
                assert compiled(*given).item() == theirs(*given).item(), number
            num_replays = compiled.num_replays
            if type(models[0]) is DistributedDataParallel:
                _same(models, "wrapped")
                _assert_late_waits(compiled)
            else:
                models = [DistributedDataParallel(model, bucket_cap_mb=2e-4) for model in models]
        return num_replays


def accumulated(rank: int, size: int, device: str = "cpu") -> int:
    """no_sync() around calls of a compiled function: each sort of call has a recording of its own."""
    with fake_nccl.installed() if device == "cuda" else contextlib.nullcontext():
        models = _sides(rank, "dense", "own", device)
        targets = [_micro(model, "", "") for model in models]
        compiled = genesis.compile(targets[0])
        steppers = [programs.OPTIMIZERS["SGD"](model.parameters()) for model in models]
        for number in range(18):
            given = [programs.mine(rank, size, each).to(device) for each in programs.batch(number, "float64")]
            for model, call in zip(models, (compiled, targets[1]), strict=True):
                with model.no_sync() if number % 3 < 2 else contextlib.nullcontext():
                    call(*given)
            _same(models, f"part {number}")
            if number % 3 == 2:
                for stepper in steppers:
                    stepper.step()
                    stepper.zero_grad(set_to_none=number < 12)
        programs.assert_equal_bits(models[0])
        return int(compiled.num_replays)


def collective(rank: int, size: int) -> int:
    """Public collectives of a step, on its values, row-major or not, are made in each replay."""

    def made() -> tuple[DistributedDataParallel, Step]:
        model = DistributedDataParallel(programs.dense().double())
        stepper = programs.OPTIMIZERS["SGD"](model.parameters())

        def step(inputs: Any, targets: Any) -> Any:
            stepper.zero_grad()
            outputs = model(inputs)
            loss = F.mse_loss(outputs, targets)
            loss.backward()
            stepper.step()
            mean, rows, own = loss.detach(), genesis.zeros(3, size * len(inputs), dtype=genesis.float64).T, loss * 0
            dist.all_reduce(mean, dist.ReduceOp.AVG)
            dist.all_gather_into_tensor(rows, outputs.detach())
            dist.reduce_scatter(own.detach(), [rows.sum() * each for each in range(size)])
            dist.broadcast(first := mean * rank, src=1)
            return mean, rows, own, first

        return model, step

    genesis.manual_seed(0)
    (one, ours), (other, theirs) = made(), made()
    one.load_state_dict(other.state_dict())
    compiled = genesis.compile(ours)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(6):
            given = [programs.mine(rank, size, each) for each in programs.batch(number, "float64")]
            found, expected = compiled(*given), theirs(*given)
            assert [each.tolist() for each in found] == [each.tolist() for each in expected], number
            assert found[1].sum().item() != 0
            assert found[3].item() == found[0].item()
            _same([one, other], f"step {number}")
    return int(compiled.num_replays)


def _asynchronous(x: Any) -> None:
    work = dist.all_reduce(x * 1, async_op=True)
    assert work is not None
    work.wait()


REFUSED: dict[str, Step] = {
    "async_op=True": _asynchronous,
    "distributed.barrier": lambda x: dist.barrier(),
    "distributed.all_gather_object": lambda x: dist.all_gather_object([None] * dist.get_world_size(), 1),
}


def refused(rank: int, size: int) -> list[str]:
    """Collectives that a replay cannot repeat. Returns: why the steps run eagerly."""
    said = []
    for call in REFUSED.values():
        weight = nn.Parameter(genesis.ones(2))

        def step(x: Any, weight: Any = weight, call: Step = call) -> Any:
            (weight * x).sum().backward()
            call(x)

        compiled = genesis.compile(step)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            for _ in range(4):
                compiled(genesis.ones(2))
        assert compiled.num_replays == 0
        said += [str(each.message) for each in warned]
    return said


def eagerly(rank: int, size: int, device: str, **options: Any) -> list[str]:
    """What cannot be recorded runs eagerly. Returns: the warnings."""
    with override(cuda="simulated"):
        models = _sides(rank, "dense", "own", device, **options)
        ours, theirs = (_step(model, "SGD", "") for model in models)
        compiled = genesis.compile(ours)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for number in range(5):
                given = [programs.mine(rank, size, each).to(device) for each in programs.batch(number, "float64")]
                assert compiled(*given).item() == theirs(*given).item(), number
                _same(models, f"step {number}")
        assert compiled.num_replays == 0
        return [str(each.message) for each in said]


def grown(rank: int, size: int) -> int:
    """A growth step between replays: new buckets, and a new recording."""
    models = _sides(rank, "dense", "own", "cpu")
    steppers = [programs.OPTIMIZERS["SGD"](model.parameters()) for model in models]

    ours, theirs = map(captured.step_of, models, steppers)
    compiled = genesis.compile(ours)
    for number in range(10):
        if number == 5:
            for model, stepper in zip(models, steppers, strict=True):
                genesis.manual_seed(7)
                example = genesis.zeros(2, 4, dtype=genesis.float64)
                growth.grow_width(model.module, "0", 12, optimizer=stepper, example=example)
        given = [programs.mine(rank, size, each) for each in programs.batch(number, "float64")]
        compiled(*given)
        theirs(*given)
        _same(models, f"step {number}")
    return int(compiled.num_replays)


def failed(rank: int, size: int) -> list[str]:
    """A replay that raises on one rank loses its batch on all, which then go on. Returns: what was said, replays."""
    model = _sides(rank, "dense", "own", "cpu")[0]
    stepper = programs.OPTIMIZERS["SGD"](model.parameters())

    def step(inputs: Any, labels: Any) -> Any:
        stepper.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        stepper.step()

    compiled = genesis.compile(step)
    said = []
    for number in range(8):
        inputs = genesis.ones(2, 4, dtype=genesis.float64) * (number + rank)
        if number == 5:
            _break_on(1, rank, compiled)
        try:
            compiled(inputs, genesis.tensor([0, 2]))
        except (ZeroDivisionError, dist.DistributedError) as error:
            said.append(f"{number}: {error}")
        if number == 5:
            _mend(rank, compiled)
    programs.assert_equal_bits(model)
    return [*said, str(compiled.num_replays)]


def _break_on(broken: int, rank: int, compiled: Any) -> None:
    """In the next replay of this rank, the second bucket cannot be packed."""
    if rank == broken:
        (entry,) = [entry for entry in compiled._entries.values() if entry.is_recorded]
        recording = entry._replayable.recording
        positions = [index for index, call in enumerate(recording.calls) if call.op == "repeat"]
        namespace = recording._replay.__globals__
        names = [name for name in namespace if namespace[name] is recording.calls[positions[2]].function]
        recording.kept = names[0], namespace[names[0]]

        def fail(*args: Any) -> None:
            raise ZeroDivisionError("no bucket")

        namespace[names[0]] = fail


def _mend(rank: int, compiled: Any) -> None:
    for entry in compiled._entries.values():
        kept = entry.is_recorded and getattr(entry._replayable.recording, "kept", None)
        if kept:
            entry._replayable.recording._replay.__globals__[kept[0]] = kept[1]


def inference(rank: int, size: int) -> int:
    """A compiled DistributedDataParallel replays in eval mode."""
    model = _sides(rank, "convolutional", "synchronized", "cpu")[0]
    model(genesis.ones(2, 2, 4, 4, dtype=genesis.float64)).sum().backward()
    compiled = genesis.compile(model.eval())
    with genesis.no_grad():
        x = programs.batch(0, "float64", image=True)[0]
        expected = model.module(x).tolist()
        for _ in range(4):
            assert compiled(x).tolist() == expected
    return int(compiled.num_replays)
