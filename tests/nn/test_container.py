"""Sequential, ModuleList, ModuleDict, ParameterList, Residual against PyTorch's where it has them."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch

import genesis
from genesis import nn
from genesis.errors import DTypeError


def three(space: Any) -> list[Any]:
    return [space.ReLU(), space.Tanh(), space.Sigmoid()]


@pytest.mark.parametrize("kind", ["Sequential", "ModuleList"])
def test_lists_of_modules_do_what_pytorchs_do(kind: str) -> None:
    def play(space: Any) -> list[str]:
        parts = three(space)
        box = getattr(space, kind)(*parts) if kind == "Sequential" else getattr(space, kind)(parts)
        seen = [repr(box), repr(box[1]), repr(box[-1]), repr(box[1:]), str(len(box))]
        box.append(space.GELU())
        box.insert(1, space.ELU())
        box.extend([space.SiLU(), space.SiLU()])
        seen.append(repr(box))
        box[0] = space.Hardswish()
        del box[1]
        seen.append(repr(box))
        seen.append(repr(box.pop(2)))
        del box[1:3]
        return [*seen, repr(box), str([name for name, _ in box.named_children()])]

    assert play(nn) == play(torch.nn)


def test_sequential_runs_in_order_and_shares_its_slices() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU(), nn.Conv2d(2, 1, 1))
    x = genesis.ones(1, 1, 2, 2)
    assert net(x).tolist() == net[2](net[1](net[0](x))).tolist()
    assert net[:2][0] is net[0]


def test_sequential_by_names() -> None:
    net = nn.Sequential(collections.OrderedDict(first=nn.ReLU(), second=nn.Tanh()))
    assert net.first is net[0]
    assert [name for name, _ in net[1:].named_children()] == ["second"]
    assert nn.Sequential()(3) == 3


def test_module_dict() -> None:
    box = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Tanh()})
    assert repr(box) == repr(torch.nn.ModuleDict({"a": torch.nn.ReLU(), "b": torch.nn.Tanh()}))
    box["c"] = nn.Conv2d(1, 1, 1)
    assert (list(box), len(box), "c" in box) == (["a", "b", "c"], 3, True)
    assert list(box.state_dict()) == ["c.weight", "c.bias"]
    assert box.pop("a") is not None
    del box["b"]
    assert [key for key, _ in box.items()] == list(box.keys()) == ["c"]
    assert list(box.values()) == [box["c"]]
    box["c"] = nn.ReLU()
    box.update([("d", nn.ReLU())])
    assert len(box) == 2
    box.clear()
    assert len(box) == 0


def test_parameter_list() -> None:
    box = nn.ParameterList([genesis.ones(2), nn.Parameter(genesis.zeros(1))])
    box.append(genesis.ones(3))
    assert list(box.state_dict()) == ["0", "1", "2"]
    assert [p.shape for p in box] == [(2,), (1,), (3,)]
    assert len(box) == 3
    assert isinstance(box[-1], nn.Parameter)
    assert box[-1].shape == (3,)


def test_operators_of_lists_of_modules() -> None:
    def play(space: Any) -> list[str]:
        chain, other = space.Sequential(*three(space)), space.Sequential(space.ELU())
        seen = [repr(chain + other), repr(chain * 2), repr(2 * other)]
        chain += other
        other *= 3
        parts = space.ModuleList(three(space))
        seen += [repr(chain), repr(other), repr(parts + [space.ELU()]), repr(parts[::2]), repr(chain[-2:])]
        parts += [space.SiLU()]
        return [*seen, repr(parts), str(type(parts + []).__name__)]

    assert play(nn) == play(torch.nn)
    relu = nn.ReLU()
    assert all(part is relu for part in nn.Sequential(relu) * 2)


class Doubled(nn.Sequential):
    def __init__(self, width: int) -> None:
        super().__init__(nn.Linear(width, width), nn.Linear(width, width))


def test_sums_of_subclasses_are_plain() -> None:
    """Their __init__ takes something else."""
    assert type(Doubled(1) + nn.Sequential(nn.ReLU())) is type(Doubled(1) * 2) is nn.Sequential


def test_operators_refuse() -> None:
    box = nn.Sequential(nn.ReLU())
    with pytest.raises(DTypeError, match="'other': expected a Sequential, got list"):
        box + [nn.ReLU()]
    with pytest.raises(DTypeError, match="'other': expected an int, got float"):
        box * 1.5
    with pytest.raises(ValueError, match="'other': expected an int >= 1, got 0"):
        box *= 0
    with pytest.raises(IndexError, match="insert: argument 'index': expected a place among 1 modules, got 3"):
        box.insert(3, nn.ReLU())
    assert len(box) == 1


def of(space: Any, *shape: int) -> Any:
    return (genesis if space is nn else torch).ones(*shape)


def test_parameter_list_does_what_pytorchs_does() -> None:
    def play(space: Any) -> list[str]:
        box = space.ParameterList([of(space, 2), 3, "text"])
        box.extend([of(space, 4)])
        box[0] = of(space, 5)
        box += [of(space, 6)]
        return [repr(box).replace("torch.", "genesis."), str(list(box.state_dict())), str(len(box[1:4:2])), str(box[2])]

    assert play(nn) == play(torch.nn)


def test_parameter_dict_does_what_pytorchs_does() -> None:
    def play(space: Any) -> list[str]:
        box = space.ParameterDict({"b": of(space, 2), "a": of(space, 3)})
        box["c"] = 5
        box.update([("d", of(space, 1))])
        other = space.ParameterDict({"a": of(space, 7), "e": of(space, 8)})
        seen = [str(list(box)), str(list(reversed(box))), str(list(box | other)), str((box | other)["a"].shape[0])]
        box |= other
        seen += [str([name for name, _ in box.named_parameters()]), str(box.get("none")), str(box.setdefault("c", 1))]
        seen += [str(box.popitem()[0]), str(box.pop("c")), str("c" in box), str(list(box.copy().keys()))]
        seen += [str(list(box.fromkeys(["x", "y"], 1).items())), str(type(box.d).__name__)]
        seen.append(str(list(box.state_dict())))
        del box["a"]
        box.clear()
        return [*seen, str(len(box))]

    assert play(nn) == play(torch.nn)


def test_parameter_dict_as_text() -> None:
    box = nn.ParameterDict({"a": genesis.ones(2, 3)})
    assert "(a): Parameter containing: [genesis.float32 of size 2x3]" in repr(box)


def test_refusals_of_collections_of_parameters() -> None:
    with pytest.raises(RuntimeError, match="ParameterDict: it holds parameters, and cannot be called"):
        nn.ParameterDict()(1)
    with pytest.raises(DTypeError, match="'values': expected an iterable of tensors, got Tensor"):
        nn.ParameterList(genesis.ones(2))
    with pytest.raises(IndexError, match="'index': expected an index into 1 entries, got 1"):
        nn.ParameterList([genesis.ones(1)])[1]
    with pytest.raises(DTypeError, match="'key': expected a str, got int"):
        nn.ParameterDict()[1] = genesis.ones(1)  # type: ignore[index]
    with pytest.raises(KeyError, match="'key': expected a name that is not taken, got 'keys'"):
        nn.ParameterDict({"keys": genesis.ones(1)})
    with pytest.raises(KeyError, match="expected one of \\[\\], got 'a'"):
        nn.ParameterDict()["a"]
    with pytest.raises(DTypeError, match="expected a name and a tensor, got 'abc'"):
        nn.ParameterDict(["abc"])  # type: ignore[list-item]


def test_residual() -> None:
    x = genesis.randn(2, 3, 4, 4)
    block = nn.Conv2d(3, 3, 1)
    assert nn.Residual(block)(x).tolist() == (block(x) + x).tolist()
    wide, projection = nn.Conv2d(3, 5, 1), nn.Conv2d(3, 5, 1)
    both = nn.Residual(wide, projection)
    assert both(x).tolist() == (wide(x) + projection(x)).tolist()
    assert list(both.state_dict()) == ["module.weight", "module.bias", "projection.weight", "projection.bias"]
    assert list(nn.Residual(block).state_dict()) == ["module.weight", "module.bias"]


def test_refusals() -> None:
    with pytest.raises(DTypeError, match="Sequential: argument 'module': expected a Module, got function"):
        nn.Sequential(lambda x: x)
    with pytest.raises(IndexError, match="'index': expected an index into 1 modules, got 1"):
        nn.Sequential(nn.ReLU())[1]
    with pytest.raises(DTypeError, match="ModuleDict: argument 'module': expected a Module, got int"):
        nn.ModuleDict({"a": 1})
    with pytest.raises(DTypeError, match="Residual: argument 'module': expected a Module, got NoneType"):
        nn.Residual(None)
    with pytest.raises(DTypeError, match="append: argument 'module': expected a Module, got int"):
        nn.ModuleList().append(1)
