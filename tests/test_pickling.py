"""Copies and pickles: tensors come back as they were, what shares memory shares it, and modules learn on in them."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import genesis
from genesis import dtypes, growth, nn
from genesis.errors import GraphError
from genesis.fusion import fuse
from genesis.settings import override
from genesis.tensor import Tensor
from tests.copies import WAYS, Copy, equal, learn, values, ways
from tests.nn.table import CASES


@pytest.fixture(params=["cpu", "cuda:0"])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    with override(cuda="simulated"):
        yield request.param


# --- tensors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (0,), (2, 0, 3), (1, 1, 1)], ids=str)
@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
@ways
def test_every_dtype_and_shape(again: Copy, dtype: genesis.dtype, shape: tuple[int, ...]) -> None:
    tensor = (genesis.randn(shape) * 3).to(dtype)
    copied = again(tensor)
    equal(copied, tensor)
    assert copied.numel() == 0 or copied.data_ptr() != tensor.data_ptr()
    if shape == ():
        assert copied.item() == tensor.item()


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda t: t.transpose(0, 2),
    "channels_last": lambda t: t[None].contiguous(genesis.channels_last)[0],
    "slice": lambda t: t[1:, 1:3],
    "steps": lambda t: t[:, ::2],
    "row": lambda t: t[1, 2],
    "element": lambda t: t[1, 2, 3],
    "expanded": lambda t: t[:, :1].expand(2, 7, 4),
    "empty": lambda t: t[2:, 1:],
    "new dimension": lambda t: t[:, None, 1],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@ways
def test_views_keep_their_strides(again: Copy, view: Any, device: str) -> None:
    tensor = view(genesis.arange(24.0).reshape(2, 3, 4).to(device))
    equal(again(tensor), tensor)
    equal(again(tensor.detach().requires_grad_()), tensor.detach().requires_grad_())


def test_a_view_takes_along_what_it_reaches_and_no_more() -> None:
    large = genesis.zeros(1000, 1000)
    assert len(pickle.dumps(large[3])) < 5000
    assert len(pickle.dumps(large[:1].expand(1000, 1000))) < 5000
    assert len(pickle.dumps([large[3:5], large[3], large[4, :10], large[3:5].transpose(0, 1)])) < 9500


@ways
def test_what_shares_memory_shares_it_afterwards(again: Copy, device: str) -> None:
    base = genesis.arange(12.0).reshape(3, 4).to(device)
    other = base.clone()
    copied = again({"base": base, "row": base[1], "turned": base.t(), "detached": base.detach(), "other": other})
    copied["base"].fill_(7)
    assert copied["row"].tolist() == [7] * 4
    assert copied["turned"].tolist() == [[7] * 3] * 4
    assert copied["detached"].tolist() == copied["base"].tolist()
    assert copied["other"].tolist() == other.tolist() == base.tolist()


@ways
def test_one_object_stays_one(again: Copy) -> None:
    weight = nn.Parameter(genesis.ones(2))
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    net[1].weight = net[0].weight
    first, second, copied = again((weight, weight, net))
    assert first is second
    assert copied[0].weight is copied[1].weight


@ways
def test_parameters_and_what_users_hang_on_them(again: Copy) -> None:
    class_kept = again(nn.Parameter(genesis.ones(2, dtype=genesis.bfloat16)))
    assert isinstance(class_kept, nn.Parameter)
    assert class_kept.requires_grad
    assert type(again(genesis.ones(2, requires_grad=True))) is Tensor
    frozen = nn.Parameter(genesis.ones(2), requires_grad=False)
    frozen.tag = ["a", frozen]
    copied = again(frozen)
    assert not copied.requires_grad
    assert copied.tag[0] == "a"
    assert copied.tag[1] is copied


@ways
def test_gradients(again: Copy) -> None:
    """As in PyTorch, a deep copy has them and a pickle has not."""
    x = genesis.ones(2, requires_grad=True)
    (x * 3).sum().backward()
    assert (again(x).grad is None) == (again is not copy.deepcopy)
    with pytest.raises(GraphError, match="only leaves can be"):
        again(x * 2)


def test_a_shallow_copy_shares_the_memory() -> None:
    x = genesis.arange(6.0).reshape(2, 3).t()
    copied = copy.copy(x)
    equal(copied, x)
    assert copied is not x
    copied[0, 0] = 9
    assert x[0, 0].item() == 9


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_dtypes_and_devices_are_the_same_objects(dtype: genesis.dtype) -> None:
    for again in WAYS.values():
        assert again(dtype) is dtype
        assert again(genesis.device("cuda", 1)) is genesis.device("cuda", 1)
    assert copy.copy(dtype) is dtype


# --- modules ----------------------------------------------------------------------------------------------------------


def parts() -> dict[str, tuple[Callable[[], nn.Module], list[Any]]]:
    """Every module of genesis.nn: how to build it, and the shapes of inputs (or how they are made)."""
    found: dict[str, Any] = {}
    for case in CASES:
        build = functools.partial(getattr(nn, case.name), *case.args, **case.kwargs)
        found[str(case)] = (build, [*case.inputs])
    linear = functools.partial(nn.Linear, 3, 3)
    found |= {
        "Sequential": (lambda: nn.Sequential(linear(), nn.BatchNorm1d(3), nn.ReLU()), [(4, 3)]),
        "ModuleList": (lambda: nn.ModuleList([linear()]), []),
        "ModuleDict": (lambda: nn.ModuleDict({"a": linear()}), []),
        "ParameterList": (lambda: nn.ParameterList([nn.Parameter(genesis.ones(2))]), []),
        "ParameterDict": (lambda: nn.ParameterDict({"a": nn.Parameter(genesis.ones(2))}), []),
        "SyncBatchNorm": (lambda: nn.SyncBatchNorm(3), []),
        "GroupNormAct": (lambda: nn.GroupNormAct(2, 4, activation="silu"), [(2, 4, 3, 3)]),
        "CrossMapLRN2d": (lambda: nn.CrossMapLRN2d(3), [(2, 4, 3, 3)]),
        "FractionalMaxPool2d": (lambda: nn.FractionalMaxPool2d(2, output_size=2), []),
        "AdaptiveLogSoftmaxWithLoss": (lambda: nn.AdaptiveLogSoftmaxWithLoss(4, 6, [2, 4]), []),
        "DataParallel": (lambda: nn.DataParallel(linear()), [(2, 3)]),
        "EmbeddingBag": (lambda: nn.EmbeddingBag(5, 3), []),
        "CTCLoss": (lambda: nn.CTCLoss(), []),
        "LinearCrossEntropyLoss": (lambda: nn.LinearCrossEntropyLoss(3, 4), []),
        "Residual": (lambda: nn.Residual(linear()), [(2, 3)]),
        "ConvBNReLU": (lambda: nn.ConvBNReLU(2, 3, 3), [(2, 2, 5, 5)]),
        "Branch": (lambda: nn.Branch(linear(), nn.Linear(3, 3)), [(2, 3)]),
        "MultiBranch": (lambda: nn.MultiBranch(linear(), [nn.Branch(linear())]), [(2, 3)]),
        "FeedForwardSwiGLU": (lambda: nn.FeedForwardSwiGLU(4, 8), [(2, 4)]),
        "RotaryEmbedding": (lambda: nn.RotaryEmbedding(4), [(1, 3, 2, 4)]),
        "DiceLoss": (lambda: nn.DiceLoss(), [(2, 3, 4, 4), (2, 3, 4, 4)]),
        "TransformerEncoder": (lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 6), 2), [(3, 2, 4)]),
        "TransformerDecoder": (
            lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, 6, 0.0), 2, nn.LayerNorm(4)),
            [(3, 2, 4), (5, 2, 4)],
        ),
        "RNNBase": (lambda: nn.RNNBase("RNN_TANH", 2, 3, 2), []),
        "RNNCellBase": (lambda: nn.RNNCellBase(2, 3, False, 4), []),
        "Module": (nn.Module, []),
    }
    return found


PARTS = parts()


def inputs_of(made: list[Any]) -> list[Tensor]:
    import torch

    return [genesis.randn(m) if isinstance(m, tuple) else genesis.from_torch(m(torch.float32)) for m in made]


def test_every_module_is_there() -> None:
    classes = {name for name, kind in vars(nn).items() if inspect.isclass(kind) and issubclass(kind, nn.Module)}
    classes -= {"NLLLoss2d"}  # NLLLoss by its old name
    assert {name for name in classes if not name.startswith("Lazy")} == {name.partition("(")[0] for name in PARTS}


@pytest.mark.parametrize("name", PARTS)
@ways
def test_every_module(name: str, again: Copy) -> None:
    """A copy has the state, exchanges it with the original, and computes and learns what the original does."""
    build, made = PARTS[name]
    module = build()
    inputs = inputs_of(made)
    if made and name != "Module":
        learn(module, inputs)  # so that what it keeps between calls is there
    module.zero_grad()
    copied = again(module)
    assert type(copied) is type(module)
    assert repr(copied) == repr(module)
    for (key, value), (other, its) in zip(module.state_dict().items(), copied.state_dict().items(), strict=True):
        assert key == other
        equal(its, value)
    copied.load_state_dict(module.state_dict())
    module.load_state_dict(copied.state_dict())
    assert [type(p) for p in copied.parameters()] == [type(p) for p in module.parameters()]
    if made:
        genesis.manual_seed(1)
        expected = learn(module, inputs)
        genesis.manual_seed(1)
        assert learn(copied, inputs) == expected
        module.eval()
        copied.eval()
        with genesis.no_grad():
            assert values(copied(*inputs)) == values(module(*inputs))


@ways
def test_a_fused_and_a_grown_network(again: Copy) -> None:
    x = genesis.randn(2, 3, 8, 8)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1))
    growth.grow_width(net, "0", channels=6, example=x)
    fused = copy.deepcopy(net)
    fuse(fused, x)
    for module in (net, fused):
        copied = again(module)
        assert learn(copied, [x]) == learn(module, [x])
        assert len(growth.history(again(net))) == 1
        growth.grow_width(copied, "0", channels=8, example=x)


@pytest.mark.gpu
@ways
def test_on_a_gpu(again: Copy) -> None:
    base = genesis.randn(3, 4, device="cuda").to(genesis.bfloat16)
    for tensor in (base, base.t(), base[:, ::2], base[1], genesis.tensor(2.0, device="cuda"), base > 0):
        equal(again(tensor), tensor)
