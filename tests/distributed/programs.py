"""What the ranks run: each program compares with what one process computes on the whole batch."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import numpy as np

import genesis
import genesis.nn.functional as F
from genesis import amp, growth, nn, optim
from genesis import distributed as dist
from genesis.nn.parallel import DistributedDataParallel
from genesis.nn.utils import clip_grad_norm_
from genesis.settings import override

Tensor = genesis.Tensor
DTYPES = {"float64": genesis.float64, "float32": genesis.float32, "bfloat16": genesis.bfloat16}
TOLERANCE = {"float64": 1e-12, "float32": 1e-6}
OPTIMIZERS: dict[str, Callable[..., optim.Optimizer]] = {
    "SGD": lambda parameters: optim.SGD(parameters, lr=0.05, momentum=0.9),
    "AdamW": lambda parameters: optim.AdamW(parameters, lr=0.01),
}


# --- networks ---------------------------------------------------------------------------------------------------------


class Branches(nn.Module):
    """A network of which a call leaves parts out."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.never = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 3)
        self.norm = nn.BatchNorm1d(8) if norm else nn.Identity()
        self.last = nn.Linear(8, 3)

    def hidden(self, x: Tensor, which: str) -> Tensor:
        return F.tanh(self.first(x) if which == "first" else self.second(x))

    def forward(self, x: Tensor, which: str = "first") -> Tensor:
        return self.last(self.norm(self.hidden(x, which)))


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.ConvBNReLU(2, 4, 3), nn.Conv2d(4, 4, 3, bias=False), nn.BatchNorm2d(4), nn.SiLU(), nn.Flatten(),
        nn.Linear(16, 6), nn.BatchNorm1d(6), nn.Linear(6, 3),
    )  # fmt: skip


def batch(step: int, dtype: str, image: bool = False) -> tuple[Tensor, Tensor]:
    """The same whole batch on each rank."""
    generator = np.random.default_rng(step)
    shape = (8, 2, 4, 4) if image else (8, 4)
    draw = (generator.standard_normal(shape), generator.standard_normal((8, 3)))
    inputs, targets = (genesis.tensor(values.tolist(), dtype=DTYPES[dtype]) for values in draw)
    return inputs, targets


def mine(rank: int, size: int, tensor: Tensor) -> Tensor:
    """This rank's part of a batch."""
    count = tensor.shape[0] // size
    return tensor[rank * count : (rank + 1) * count]


def assert_close(found: nn.Module, expected: nn.Module, tolerance: float, what: str = "grad") -> None:
    pairs = zip(found.named_parameters(), expected.parameters(), strict=True)
    scale = max(float(p.grad.abs().max().item()) for p in expected.parameters() if p.grad is not None)
    for (name, one), other in pairs:
        first, second = (one.grad, other.grad) if what == "grad" else (one, other)
        assert (first is None) == (second is None), f"{what} of {name}: {first} and {second}"
        if first is not None:
            error = float((first - second).detach().abs().max().item())
            assert error <= tolerance * max(1.0, scale), f"{what} of {name}: off by {error}"


def assert_equal_bits(module: nn.Module) -> None:
    """Parameters and buffers of all ranks."""
    for name, tensor in module.state_dict().items():
        gathered = [genesis.zeros_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, tensor)
        for other in gathered:
            same = other.cpu().numpy().tobytes() == tensor.cpu().numpy().tobytes()
            assert same, f"{name} differs between ranks"


# --- data parallel ----------------------------------------------------------------------------------------------------


def train(
    rank: int, size: int, dtype: str = "float64", optimizer: str = "SGD", network: str = "dense", steps: int = 3,
    accumulate: int = 1, clip: bool = False, scaled: bool = False, set_to_none: bool = True, cap: float = 1e-4,
    device: str = "cpu",
) -> list[list[int]]:  # fmt: skip
    """Data parallel training is the training of one process on the whole batch. Returns: the buckets."""
    genesis.manual_seed(rank)  # DistributedDataParallel begins with rank 0's
    image = network == "convolutional"
    module = (convolutional() if image else dense()).to(device, DTYPES[dtype])
    whole = copy.deepcopy(module)
    model = DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(module), bucket_cap_mb=cap)
    whole.load_state_dict(model.state_dict())
    sides = [
        (model, OPTIMIZERS[optimizer](model.parameters()), amp.GradScaler(init_scale=8.0, enabled=scaled)),
        (whole, OPTIMIZERS[optimizer](whole.parameters()), amp.GradScaler(init_scale=8.0, enabled=scaled)),
    ]
    for step in range(steps):
        for network_, stepper, scaler in sides:
            stepper.zero_grad(set_to_none=set_to_none)
            for part in range(accumulate):
                inputs, targets = (each.to(device) for each in batch(step * accumulate + part, dtype, image))
                is_last = part == accumulate - 1
                if network_ is model:
                    inputs, targets = mine(rank, size, inputs), mine(rank, size, targets)
                quiet = network_ is model and not is_last
                with model.no_sync() if quiet else contextlib.nullcontext():
                    loss = F.mse_loss(network_(inputs), targets) / accumulate
                    scaler.scale(loss).backward()
            scaler.unscale_(stepper)
            if clip:
                clip_grad_norm_(network_.parameters(), 0.1)
        assert_close(module, whole, TOLERANCE[dtype])
        for _, stepper, scaler in sides:
            scaler.step(stepper)
            scaler.update()
    assert_equal_bits(module)
    assert model._reducer is not None
    return [bucket.numbers for bucket in model._reducer.buckets]


def train_simulated(rank: int, size: int) -> None:
    with override(cuda="simulated"):
        train(rank, size, device="cuda", steps=2)


def fused_norms(rank: int, size: int, activation: str | None, device: str = "cpu") -> None:
    """nn.ConvBNReLU with SyncBatchNorm, a residual among its operands, is that of one process on the whole batch."""
    genesis.manual_seed(0)
    parts = [nn.ConvBNReLU(2, 16, 1, bias=True, activation=activation), nn.ConvBNReLU(16, 2, 3, activation="relu")]
    whole = nn.ModuleList(parts).double().to(device)
    ours = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(whole))
    inputs = genesis.randn(5, 2, 4, 4, dtype=genesis.float64).to(device)
    own = inputs[:2] if rank == 0 else inputs[2:]  # batches of different sizes
    given = [each.detach().clone().requires_grad_() for each in (own, inputs)]
    results = []
    for network, x in zip((ours, whole), given, strict=True):
        y = network[1](network[0](x), residual=x)
        (y * y).sum().backward()
        results.append(y)
    mine_ = slice(0, 2) if rank == 0 else slice(2, 5)
    assert float((results[0] - results[1][mine_]).detach().abs().max().item()) < 1e-12
    assert given[0].grad is not None
    assert given[1].grad is not None
    assert float((given[0].grad - given[1].grad[mine_]).abs().max().item()) < 1e-11
    for parameter in ours.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
    assert_close(ours, whole, 1e-12)
    for one, other in zip(ours.buffers(), whole.buffers(), strict=True):
        assert float((one - other).abs().max().item()) < 1e-12


def fused_norms_simulated(rank: int, size: int) -> None:
    with override(cuda="simulated"):
        fused_norms(rank, size, "relu", device="cuda")


def long_training(rank: int, size: int, optimizer: str = "AdamW", steps: int = 100) -> None:
    """After many steps on data of their own, the ranks have the same bits."""
    genesis.manual_seed(rank)
    model = DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(convolutional()), bucket_cap_mb=1e-3)
    stepper = OPTIMIZERS[optimizer](model.parameters())
    for _ in range(steps):
        stepper.zero_grad()
        F.mse_loss(model(genesis.randn(4, 2, 4, 4)), genesis.randn(4, 3)).backward()
        stepper.step()
    assert_equal_bits(model)


def unused(rank: int, size: int, different: bool, norm: bool) -> None:
    """Parameters that no rank uses keep no gradient; what one rank does not use counts as zero there."""
    genesis.manual_seed(rank)
    module = Branches(norm).double()
    whole = copy.deepcopy(module)
    model = DistributedDataParallel(
        nn.SyncBatchNorm.convert_sync_batchnorm(module), find_unused_parameters=True, bucket_cap_mb=1e-5
    )
    whole.load_state_dict(model.state_dict())
    for step in range(4):
        inputs, targets = batch(step, "float64")
        names = ["first", "second" if different else "first"]
        for network in (model, whole):
            for parameter in network.parameters():
                parameter.grad = None
        ours = F.mse_loss(model(mine(rank, size, inputs), names[rank]), mine(rank, size, targets))
        ours.backward()
        hidden = [whole.hidden(mine(part, size, inputs), names[part]) for part in range(size)]
        F.mse_loss(whole.last(whole.norm(genesis.cat(hidden))), targets).backward()
        assert module.never.weight.grad is None
        assert_close(module, whole, 1e-12)


def unused_is_an_error(rank: int, size: int) -> str:
    """Without find_unused_parameters, all ranks raise, and go on."""
    model = DistributedDataParallel(Branches())
    try:
        model(genesis.ones(2, 4), "first" if rank == 0 else "second").sum().backward()
    except genesis.errors.GraphError as error:
        dist.barrier()
        return str(error)
    raise AssertionError("no error")


def overflow(rank: int, size: int) -> tuple[float, float]:
    """An overflow of one rank is one of all: none takes the step, and all scales fall."""
    model = DistributedDataParallel(nn.Linear(2, 1))
    before = model.module.weight.detach().clone()
    stepper, scaler = optim.SGD(model.parameters(), lr=0.1), amp.GradScaler(init_scale=8.0)
    inputs = genesis.full((2, 2), float("inf") if rank == 1 else 1.0)
    scaler.scale(model(inputs).sum()).backward()
    scaler.step(stepper)
    scaler.update()
    return scaler.get_scale(), float((model.module.weight - before).abs().max().item())


def grown(rank: int, size: int) -> list[int]:
    """A growth step in the midst: the ranks draw alike, and new buckets hold the new gradients."""
    genesis.manual_seed(100 + rank)
    module = dense().double()
    model = DistributedDataParallel(module, bucket_cap_mb=1e-4)
    stepper = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    widths = []
    for step in range(4):
        if step == 2:
            growth.grow_width(module, "0", 12, optimizer=stepper, example=genesis.zeros(2, 4, dtype=genesis.float64))
            with genesis.no_grad():  # now they are equal: the reference starts here
                model(genesis.zeros(1, 4, dtype=genesis.float64))
        stepper.zero_grad()
        inputs, targets = batch(step, "float64")
        F.mse_loss(model(mine(rank, size, inputs)), mine(rank, size, targets)).backward()
        whole = copy.deepcopy(module)
        for parameter in whole.parameters():
            parameter.grad = None
        F.mse_loss(whole(inputs), targets).backward()
        assert_close(module, whole, 1e-12)
        stepper.step()
        assert_equal_bits(module)
        widths.append(module[0].out_features)
    return widths


def frozen_and_thawed(rank: int, size: int) -> None:
    """A layer that begins to require grad later is averaged from then on."""
    module = dense().double()
    module[0].requires_grad_(False)
    model = DistributedDataParallel(module)
    for step in range(3):
        if step == 1:
            module[0].requires_grad_(True)
        inputs, targets = batch(step, "float64")
        whole = copy.deepcopy(module)
        for network in (module, whole):
            for parameter in network.parameters():
                parameter.grad = None
        F.mse_loss(model(mine(rank, size, inputs)), mine(rank, size, targets)).backward()
        F.mse_loss(whole(inputs), targets).backward()
        assert_close(module, whole, 1e-12)


def compressed(rank: int, size: int, compression: str) -> None:
    """Gradients that are sent in 16 bits have their precision, and the same bits on all ranks."""
    module = dense()
    model = DistributedDataParallel(module, compression=compression)
    whole = copy.deepcopy(module)
    inputs, targets = batch(0, "float32")
    F.mse_loss(model(mine(rank, size, inputs)), mine(rank, size, targets)).backward()
    F.mse_loss(whole(inputs), targets).backward()
    assert_close(module, whole, 2.0**-8 if compression == "bfloat16" else 2.0**-11)
    for parameter in module.parameters():
        assert parameter.grad is not None
        gathered = [genesis.zeros_like(parameter.grad) for _ in range(size)]
        dist.all_gather(gathered, parameter.grad)
        assert all(other.tolist() == gathered[0].tolist() for other in gathered)


def buffers(rank: int, size: int, broadcast: bool) -> float:
    """Running statistics of plain batch norm: rank 0's on all ranks, or each rank's own."""
    model = DistributedDataParallel(nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 1)), broadcast_buffers=broadcast)
    for _ in range(2):
        model(genesis.tensor([[float(rank)], [rank + 2.0]])).sum().backward()
    return float(model.module[0].running_mean.item())


def states(rank: int, size: int) -> list[str]:
    """The state has the module's names, and takes PyTorch's with "module." before them."""
    model = DistributedDataParallel(nn.Linear(2, 1))
    given = {f"module.{name}": genesis.full(tensor.shape, 3.0) for name, tensor in model.module.state_dict().items()}
    model.load_state_dict(given)
    assert model.module.weight.tolist() == [[3.0, 3.0]]
    model.module.load_state_dict(model.state_dict())
    return list(model.state_dict())


def different_modules(rank: int, size: int) -> str:
    try:
        DistributedDataParallel(nn.Linear(2, 1 + rank))
    except dist.DistributedError as error:
        return str(error)
    raise AssertionError("no error")


def bucket_order(rank: int, size: int) -> list[str]:
    """A model that goes on with the order of another has its buckets, and makes the same bits."""
    genesis.manual_seed(0)
    first = DistributedDataParallel(convolutional(), bucket_cap_mb=1e-4)
    assert first.bucket_order == []
    inputs, targets = (mine(rank, size, each) for each in batch(0, "float32", image=True))
    F.mse_loss(first(inputs), targets).backward()
    order = first.bucket_order
    assert sorted(order) == sorted(name for name, _ in first.module.named_parameters())
    second = DistributedDataParallel(copy.deepcopy(first.module), bucket_cap_mb=1e-4)
    second.bucket_order = order
    for model in (first, second):
        for parameter in model.parameters():
            parameter.grad = None
        F.mse_loss(model(inputs), targets).backward()
        assert model.bucket_order == order
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert one.grad.tolist() == other.grad.tolist()
    second.bucket_order = ["of another network"]
    second(inputs)
    assert second.bucket_order == []
    return order


def views(rank: int, size: int) -> bool:
    """Gradients are views of one flat array, which is reduced as it is."""
    model = DistributedDataParallel(dense())
    for _ in range(2):
        model(genesis.ones(2, 4)).sum().backward()
    grads = [parameter.grad for parameter in model.parameters()]
    return all(grad is not None and grad.array.is_view_of(grads[0].array) for grad in grads)


def after_an_error(rank: int, size: int, failing: list[int], position: int, find_unused: bool) -> str:
    """A backward pass that fails on some ranks is lost on all, which then go on together. Returns: the error."""
    module = nn.Sequential(*[nn.Linear(2, 2) for _ in range(4)]).double()
    model = DistributedDataParallel(module, bucket_cap_mb=1e-5, find_unused_parameters=find_unused)
    model(genesis.ones(1, 2, dtype=genesis.float64)).sum().backward()

    def fail(grad: Tensor) -> None:
        raise RuntimeError("meant")

    handles = [module[position].weight.register_hook(fail)] if rank in failing else []
    said = ""
    try:
        model(genesis.ones(1, 2, dtype=genesis.float64)).sum().backward()
        if rank in failing:
            raise AssertionError("no error")
    except (RuntimeError, dist.DistributedError) as error:
        said = str(error)
    for handle in handles:
        handle.remove()
    whole = copy.deepcopy(module)
    for network in (module, whole):
        for parameter in network.parameters():
            parameter.grad = None
    inputs, targets = genesis.arange(2 * size, dtype=genesis.float64).reshape(size, 2), genesis.ones(size, 2)
    F.mse_loss(model(mine(rank, size, inputs)), mine(rank, size, targets.double())).backward()
    F.mse_loss(whole(inputs), targets.double()).backward()
    assert_close(module, whole, 1e-12)
    return said


def after_an_error_under_autocast(rank: int, size: int) -> None:
    """The pass of a graph made before another one's failed on a rank: that rank sends first what it left out."""
    module = nn.Sequential(*[nn.Linear(2, 2) for _ in range(4)])
    model = DistributedDataParallel(module, bucket_cap_mb=1e-5)
    model(genesis.ones(1, 2)).sum().backward()
    inputs = genesis.arange(2.0 * size).reshape(size, 2)
    with genesis.autocast("cpu", dtype=genesis.bfloat16):
        broken, loss = model(genesis.ones(1, 2)).sum(), model(mine(rank, size, inputs)).sum()

    def fail(grad: Tensor) -> None:
        raise RuntimeError("meant")

    handles = [module[3].weight.register_hook(fail)] if rank == 1 else []
    try:
        broken.backward()
    except (RuntimeError, dist.DistributedError):
        pass
    else:
        raise AssertionError("no error")
    for handle in handles:
        handle.remove()
    model.zero_grad()
    loss.backward()
    whole = copy.deepcopy(module)
    whole.zero_grad()
    for row in range(size):
        with genesis.autocast("cpu", dtype=genesis.bfloat16):
            (whole(inputs[row : row + 1]).sum() / size).backward()
    assert_close(module, whole, 1e-6)


def refused(rank: int, size: int, calls: list[dict[str, Any]]) -> str:
    """Calls that differ between ranks raise on all of them, and the group goes on."""
    call = dict(calls[rank])
    name, shape, dtype = call.pop("name"), call.pop("shape", (2,)), call.pop("dtype", "float32")
    x = genesis.ones(shape, dtype=getattr(genesis, dtype))
    if "op" in call:
        call["op"] = dist.ReduceOp[call["op"]]
    try:
        if name == "barrier":
            dist.barrier()
        elif name == "all_gather":
            dist.all_gather([genesis.zeros_like(x) for _ in range(size)], x)
        elif name == "all_gather_object":
            dist.all_gather_object([None] * size, (lambda: None) if call else None)
        elif name == "broadcast_object_list":
            dist.broadcast_object_list([None] * call["count"])
        else:
            getattr(dist, name)(x, **call)
    except (dist.DistributedError, genesis.errors.DTypeError) as error:
        total = genesis.ones(2)
        dist.all_reduce(total)
        assert total.tolist() == [size, size]
        return str(error)
    raise AssertionError("no error")


# --- objects ----------------------------------------------------------------------------------------------------------


def objects(rank: int, size: int) -> None:
    """Objects and sums arrive where they should, and only there."""
    every: list[Any] = [None] * size
    dist.all_gather_object(every, {"rank": rank, "x": np.full(2, rank)})
    assert [each["rank"] for each in every] == list(range(size))
    assert [each["x"].tolist() for each in every] == [[number, number] for number in range(size)]
    at_last: list[Any] | None = [None] * size if rank == size - 1 else None
    dist.gather_object((rank, "ä" * rank), at_last, dst=size - 1)
    assert at_last == ([(number, "ä" * number) for number in range(size)] if rank == size - 1 else None)
    given = ["first", {1, 2}] if rank == 1 else [None, None]
    dist.broadcast_object_list(given, src=1)
    assert given == ["first", {1, 2}]
    x = genesis.full((3,), float(rank + 1))
    dist.reduce(x, dst=1)
    assert x.tolist() == [sum(range(1, size + 1)) if rank == 1 else rank + 1.0] * 3
