"""load_state_dict: what it takes, what it refuses, and that it takes all or nothing."""

from __future__ import annotations

import collections
import signal
from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis import nn
from genesis.errors import CheckpointError, DTypeError
from genesis.ndarray import NDArray


def net() -> nn.Sequential:
    return nn.Sequential(
        collections.OrderedDict(conv=nn.Conv2d(3, 4, 3), norm=nn.BatchNorm2d(4), head=nn.Conv2d(4, 2, 1))
    )


def values(module: nn.Module) -> dict[str, Any]:
    return {key: value.tolist() for key, value in module.state_dict().items()}


def test_everything_is_taken_over_in_place() -> None:
    source, target = net(), net()
    before = list(target.parameters())
    assert target.load_state_dict(source.state_dict()) == ([], [])
    assert values(target) == values(source)
    assert all(a is b for a, b in zip(target.parameters(), before, strict=True))
    assert all(p.requires_grad and p.is_leaf for p in target.parameters())
    assert target.conv.weight.array is not source.conv.weight.array


def test_the_order_in_memory_is_the_modules() -> None:
    target = net()
    target.load_state_dict({key: value.to_torch().contiguous() for key, value in net().state_dict().items()})
    assert target.conv.weight.stride() == (27, 1, 9, 3)


def test_a_missing_key_names_the_closest() -> None:
    state = net().state_dict()
    state["head.weigth"] = state.pop("head.weight")
    with pytest.raises(CheckpointError) as error:
        net().load_state_dict(state)
    assert "load_state_dict: the state does not fit Sequential; nothing was changed" in str(error.value)
    assert "missing key 'head.weight' (the closest given is 'head.weigth')" in str(error.value)
    assert "unexpected key 'head.weigth' (the closest expected is 'head.weight')" in str(error.value)


def test_a_prefix_names_the_closest() -> None:
    state = {f"module.{key}": value for key, value in net().state_dict().items()}
    with pytest.raises(
        CheckpointError, match=r"missing key 'norm.running_var' \(the closest given is 'module.norm.run"
    ):
        net().load_state_dict(state)


def test_long_lists_are_cut() -> None:
    deep = nn.Sequential(*(nn.Linear(1, 1) for _ in range(8)))
    with pytest.raises(CheckpointError, match="and 6 more missing keys"):
        deep.load_state_dict({})
    with pytest.raises(RuntimeError, match="and 2 more unexpected keys"):  # which is what PyTorch raises
        deep.load_state_dict({**deep.state_dict(), **{f"x{i}": genesis.ones(1) for i in range(12)}})


def test_a_wrong_shape_is_refused_always_and_changes_nothing() -> None:
    target, state = net(), net().state_dict()
    before = values(target)
    state["head.weight"] = genesis.ones(5, 4, 1, 1)
    for strict in (True, False):
        with pytest.raises(CheckpointError, match=r"'head.weight': expected shape \(2, 4, 1, 1\), got \(5, 4, 1, 1\)"):
            target.load_state_dict(state, strict=strict)
    assert values(target) == before


def test_missing_and_unexpected_keys_when_not_strict() -> None:
    target, state = net(), net().state_dict()
    del state["head.bias"]
    state["extra"] = genesis.ones(1)
    result = target.load_state_dict(state, strict=False)
    assert result.missing_keys == ["head.bias"]
    assert repr(target.load_state_dict(target.state_dict())) == "<All keys matched successfully>"
    assert repr(result) == "IncompatibleKeys(missing_keys=['head.bias'], unexpected_keys=['extra'])"
    assert result.unexpected_keys == ["extra"]
    assert target.conv.weight.tolist() == state["conv.weight"].tolist()


def test_old_batch_norms_without_counter() -> None:
    state = net().state_dict()
    del state["norm.num_batches_tracked"]
    assert net().load_state_dict(state) == ([], [])


def test_other_dtypes_are_cast_and_other_libraries_taken() -> None:
    layer = nn.Linear(2, 1)
    layer.load_state_dict({"weight": np.array([[1.0, 2.0]]), "bias": torch.tensor([3], dtype=torch.int32)})
    assert layer.weight.dtype is genesis.float32
    assert (layer.weight.tolist(), layer.bias.tolist()) == ([[1.0, 2.0]], [3.0])


def test_assign_takes_the_memory_and_keeps_the_parameter() -> None:
    layer = nn.Linear(2, 1)
    weight = layer.weight
    given = {"weight": genesis.ones(1, 2, dtype=genesis.float64), "bias": genesis.ones(1, dtype=genesis.float64)}
    layer.load_state_dict(given, assign=True)
    assert layer.weight is weight
    assert weight.dtype is genesis.float64
    given["weight"].fill_(5.0)
    assert weight.tolist() == [[5.0, 5.0]]
    assert weight.requires_grad


def test_what_is_no_state() -> None:
    with pytest.raises(DTypeError, match="'state_dict': expected a dict, got list"):
        net().load_state_dict([1])
    with pytest.raises(CheckpointError, match=r"expected a tensor for key 'head\.bias', got int"):
        net().load_state_dict({**net().state_dict(), "head.bias": 3})


def test_a_buffer_that_cannot_take_values_refuses_the_whole_state() -> None:
    layer = nn.Linear(2, 1)
    layer.register_buffer("places", genesis.arange(3).expand(2, 3))
    before = layer.weight.tolist()
    state = {"weight": genesis.ones(1, 2), "bias": genesis.ones(1), "places": genesis.zeros(2, 3)}
    with pytest.raises(CheckpointError, match="nothing was changed\n  'places': its elements share memory"):
        layer.load_state_dict(state)
    assert layer.weight.tolist() == before


def test_the_modules_own_tensors_under_other_names() -> None:
    module = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))
    values = [layer.weight.tolist() for layer in module]
    state = module.state_dict()
    turned = {f"{i}.{name}": state[f"{(i + 1) % 3}.{name}"] for i in range(3) for name in ("weight", "bias")}
    module.load_state_dict(turned)
    assert [layer.weight.tolist() for layer in module] == [*values[1:], values[0]]


def test_a_signal_waits_until_all_is_loaded() -> None:
    class InterruptError(BaseException):
        pass

    def interrupt(signum: int, frame: Any) -> None:
        raise InterruptError

    module, given = net(), net().state_dict()
    copy_into, calls = NDArray.copy_into, []

    def interrupted(self: NDArray, source: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        copy_into(self, source)

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with pytest.MonkeyPatch.context() as patch, pytest.raises(InterruptError):  # noqa: PT012
            patch.setattr(NDArray, "copy_into", interrupted)
            module.load_state_dict(given)
    finally:
        signal.signal(signal.SIGINT, before)
    assert all(module.state_dict()[key].tolist() == value.tolist() for key, value in given.items())
