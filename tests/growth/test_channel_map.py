"""The channel map: groups, places, what cannot grow and why, and that looking leaves no traces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import genesis
import genesis.nn.functional as F
from genesis import growth, models, nn
from genesis.autograd import Function
from genesis.errors import GrowthError
from genesis.growth import rules
from genesis.growth.rules import RULES
from genesis.tensor import Tensor
from tests.growth.measure import digest
from tests.growth.networks import CASES


class Of(nn.Module):
    """A network whose forward is a function of it and its input."""

    def __init__(self, forward: Callable[[Any, Tensor], Any], **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self._function = forward

    def forward(self, x: Tensor) -> Any:
        return self._function(self, x)


def places(model: nn.Module, x: Tensor, layer: str) -> set[tuple[str, int]]:
    """Where the channels that a layer makes show: names and dimensions."""
    mapped = growth.channel_map(model, x)
    _, group = mapped.made_by(layer)
    return {(name, site.dim) for site in mapped.sites_of(group.index) for name in site.names}


def reasons(model: nn.Module, x: Tensor, layer: str) -> str:
    _, group = growth.channel_map(model, x).made_by(layer)
    return "; ".join(group.fixed)


def conv(given: int, made: int, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(given, made, 3, padding=1, **options)


X = genesis.ones(2, 3, 8, 8)


# --- what belongs together ----------------------------------------------------------------------------------------


def test_residual_sums_join_their_ends() -> None:
    resnet = models.create("resnet18", num_classes=3)
    found = places(resnet, genesis.ones(2, 3, 32, 32), "layer2.0.downsample.0")
    assert {("layer2.0.conv2.weight", 0), ("layer2.1.conv2.weight", 0), ("layer2.1.conv1.weight", 1)} <= found
    assert {("layer3.0.conv1.weight", 1), ("layer3.0.downsample.0.weight", 1), ("layer2.0.bn2.running_var", 0)} <= found
    assert not any(name.startswith(("layer1", "layer4", "layer2.0.conv1")) for name, _ in found)


def test_concatenations_have_offsets() -> None:
    unet = models.create("unet", width=4, depth=2)
    mapped = growth.channel_map(unet, genesis.ones(2, 1, 8, 8))
    (site,) = [site for site in mapped.sites if site.names == ("decoder.0.0.0.weight",) and site.dim == 1]
    skip, up = mapped.made_by("encoder.0.1")[1].index, mapped.made_by("upsample.0")[1].index
    assert [(part.group, part.size) for part in site.parts] == [(skip, 4), (up, 4)]
    assert "decoder.0.0.0.weight        1    4:8" in str(mapped)


def test_flattened_channels_are_blocks_of_columns() -> None:
    net = nn.Sequential(conv(3, 4), nn.Flatten(), nn.Linear(256, 2))
    assert "2.weight   1    0:256 (64 each)" in str(growth.channel_map(net, X))


def test_a_single_channel_is_a_block_too() -> None:
    net = nn.Sequential(conv(3, 1), nn.Flatten(), nn.Linear(64, 2))
    before = net(X)
    growth.grow_width(net, "0", channels=3, example=X)
    assert net[2].in_features == 192
    assert (net(X) - before).abs().max().item() <= 1e-5


def test_unflattened_channels_come_in_blocks() -> None:
    net = nn.Sequential(nn.Linear(3, 24), nn.Unflatten(1, (2, 3, 4)), conv(2, 2))
    mapped = growth.channel_map(net, genesis.ones(2, 3))
    part, group = mapped.made_by("0")
    assert (group.units, part.width) == (2, 12)


def test_depthwise_and_grouped_convolutions_join_what_they_take_and_make() -> None:
    net = nn.Sequential(conv(3, 8), conv(8, 16, groups=8), conv(16, 8, groups=4), nn.Conv2d(8, 2, 1))
    assert places(net, X, "0") == {
        ("0.weight", 0), ("0.bias", 0), ("1.weight", 0), ("1.bias", 0), ("2.weight", 0), ("2.bias", 0), ("3.weight", 1),
    }  # fmt: skip
    part, group = growth.channel_map(net, X).made_by("1")
    assert (group.units, part.width) == (4, 4)  # two channels of the depthwise one, made four, are a block of the last


def test_group_norm_makes_blocks_and_instance_norm_does_not() -> None:
    net = nn.Sequential(conv(3, 8), nn.GroupNorm(2, 8), conv(8, 8), nn.InstanceNorm2d(8), conv(8, 2))
    mapped = growth.channel_map(net, X)
    assert [mapped.made_by(name)[1].units for name in ("0", "2")] == [2, 8]


def test_layer_norm_wants_whole_multiples() -> None:
    net = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    mapped = growth.channel_map(net, genesis.ones(2, 3))
    assert mapped.made_by("0")[1].uniform == ("a layer norm goes over it",)
    assert "by whole multiples" in str(mapped)


def test_shared_weights_are_one_place_with_all_its_names() -> None:
    shared = conv(4, 4)
    net = nn.Sequential(conv(3, 4), shared, nn.ReLU(), shared, conv(4, 2))
    mapped = growth.channel_map(net, X)
    assert len({mapped.made_by(name)[1].index for name in ("0", "1", "3")}) == 1
    assert [site.dim for site in mapped.sites if site.names == ("1.weight", "3.weight")] == [0, 1]


def test_a_parameter_of_ones_own_belongs_to_the_channels_it_meets() -> None:
    net = Of(
        lambda net, x: net.last(net.first(x) * net.scale.reshape(1, 4, 1, 1)),
        first=conv(3, 4), last=conv(4, 2), scale=nn.Parameter(genesis.ones(4)),
    )  # fmt: skip
    assert ("scale", 0) in places(net, X, "first")


def test_plain_matrix_products_and_embeddings() -> None:
    net = Of(
        lambda net, x: (net.table(x) @ net.weight).relu() @ net.last,
        table=nn.Embedding(5, 4), weight=nn.Parameter(genesis.ones(4, 6)), last=nn.Parameter(genesis.ones(6, 2)),
    )  # fmt: skip
    x = genesis.tensor([[0, 1], [2, 3]])
    assert places(net, x, "table") == {("table.weight", 1), ("weight", 0)}
    assert growth.channel_map(net, x).growable()[1].units == 6


def test_casts_do_not_hide_parameters() -> None:
    def forward(net: Any, x: Tensor) -> Any:
        with genesis.amp.autocast("cpu", dtype=genesis.bfloat16):
            return net.last(net.first(x))

    net = Of(forward, first=conv(3, 4), last=conv(4, 2))
    assert places(net, X, "first") == {("first.weight", 0), ("first.bias", 0), ("last.weight", 1)}


def test_changes_in_place_are_followed() -> None:
    net = nn.Sequential(conv(3, 4), nn.ReLU(inplace=True), nn.Hardswish(inplace=True), conv(4, 2))
    assert ("3.weight", 1) in places(net, X, "0")


def test_what_runs_only_in_training_is_seen_too() -> None:
    def forward(net: Any, x: Tensor) -> Any:
        y = net.first(x)
        return (net.main(y), net.auxiliary(y)) if net.training else net.main(y)

    net = Of(forward, first=conv(3, 4), main=conv(4, 2), auxiliary=conv(4, 2))
    assert ("auxiliary.weight", 1) in places(net, X, "first")


@pytest.mark.parametrize("name", CASES)
def test_every_network_can_grow_in_every_place(name: str) -> None:
    case = CASES[name]
    mapped = growth.channel_map(case.build(), genesis.ones(case.shape))
    for place in case.wide:
        assert mapped.made_by(place)[1].fixed == ()


def test_slices_along_the_batch_and_whole_layers_are_followed() -> None:
    def forward(net: Any, x: Tensor) -> Any:
        both = genesis.cat([net.first(x), net.second(x)], dim=1)[:, :, :4]
        one, other = both.split(4, dim=1)
        return net.last(one + other)

    net = Of(forward, first=conv(3, 4), second=conv(3, 4), last=conv(4, 2))
    assert ("second.weight", 0) in places(net, X, "first")
    assert reasons(net, X, "first") == ""


@pytest.mark.parametrize(
    "between",
    [
        lambda x: x - x.mean((2, 3), keepdim=True),
        lambda x: x * F.softmax(x.flatten(2), dim=-1).reshape(x.shape),
        lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect")[:, :, 1:-1, 1:-1],
        lambda x: genesis.where(x > 0, x, 0.1 * x).clamp(-1, 2),
        lambda x: F.interpolate(F.max_pool2d(x, 2), scale_factor=2, mode="bilinear"),
        lambda x: x + x.amax((0, 2, 3)).unsqueeze(0).unsqueeze(-1).unsqueeze(-1).expand(2, -1, 8, 8),
        lambda x: x.permute(0, 2, 3, 1).reshape(128, -1).reshape(2, 8, 8, -1).permute(0, 3, 1, 2),
        lambda x: F.pixel_unshuffle(F.pixel_shuffle(x, 2), 2),
        lambda x: x[0:1] + x[1:],
    ],
)
def test_what_leaves_channels_alone_is_followed(between: Callable[[Tensor], Tensor]) -> None:
    net = Of(lambda net, x: net.last(between(net.first(x))), first=conv(3, 4), last=conv(4, 2))
    x = genesis.randn(2, 3, 8, 8)
    before = net.eval()(x)
    growth.grow_width(net, "first", factor=2, example=x)
    assert (net(x) - before).abs().max().item() <= 1e-5
    assert net.last.in_channels == 8


# --- what cannot grow, and why ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("between", "reason"),
    [
        (lambda x: F.softmax(x, dim=1), "an op mixes the channels with each other"),
        (lambda x: x.mean(1, keepdim=True) + x, "it is reduced over the channels"),
        (lambda x: x.argmax(1, keepdim=True) + x, "it is reduced over the channels"),
        (lambda x: x.argmax() + x, "it is reduced over the channels"),
        (lambda x: F.log_softmax(x, dim=-3), "an op mixes the channels with each other"),
        (lambda x: x + x.max(1, keepdim=True).values, "it is reduced over the channels"),
        (lambda x: x.flip(1), "the channel map has no rule for the op Flip"),
        (lambda x: x[:, :2].repeat(1, 2, 1, 1), "channels are chosen by an index"),
        (lambda x: x[:, [0, 1, 2, 3]], "channels are chosen by an index"),
        (lambda x: genesis.cat(x.chunk(2, dim=1), dim=1), "a part of a layer's channels is taken by itself"),
        (lambda x: x + genesis.ones(1, 4, 1, 1), "it meets a tensor of fixed size"),
        (lambda x: x.permute(0, 2, 3, 1).flatten(1).reshape(2, 4, 8, 8), "a reshape mixes channels"),
        (lambda x: F.pad(x, (0, 0, 0, 0, 0, 1))[:, :4], "an op changes the number of elements along the channels"),
        (
            lambda x: F.scaled_dot_product_attention(*[x.flatten(2)] * 3).reshape(x.shape),
            "attention mixes all channels",
        ),
        (lambda x: (x.flatten(2) @ x.flatten(2).transpose(1, 2)).mean() + x, "a matrix product of two activations"),
    ],
)  # fmt: skip
def test_ops_that_are_not_understood_fix_their_channels(between: Callable[[Tensor], Tensor], reason: str) -> None:
    net = Of(lambda net, x: net.last(between(net.first(x))), first=conv(3, 4), last=conv(4, 2))
    assert reason in reasons(net, X, "first")
    with pytest.raises(GrowthError, match=r"grow_width: the channels of first cannot grow: "):
        growth.grow_width(net, "first", factor=2, example=X)


def test_other_refusals() -> None:
    broadcast = Of(lambda net, x: net.gate(x) * net.main(x), gate=conv(3, 1), main=conv(3, 4))
    assert "it is broadcast over other channels" in reasons(broadcast, X, "gate")
    computed = Of(lambda net, x: F.conv2d(net.first(x), net.last.weight * 2), first=conv(3, 4), last=conv(4, 2))
    assert "the layer's weight is computed from something" in reasons(computed, X, "first")
    both_ways = Of(
        lambda net, x: net.last(F.linear(net.first(x), net.first.weight.t().contiguous())),
        first=nn.Linear(3, 4), last=nn.Linear(3, 2),
    )  # fmt: skip
    assert "the layer's weight is computed from something" in reasons(both_ways, genesis.ones(2, 3), "first")
    square = Of(
        lambda net, x: (net.first(x) @ net.weight) + F.linear(net.first(x), net.weight),
        first=nn.Linear(3, 4), weight=nn.Parameter(genesis.ones(4, 4)),
    )  # fmt: skip
    assert "used both to make these channels and to take them" in reasons(square, genesis.ones(2, 3), "first")
    piecewise = Of(
        lambda net, x: net.last(genesis.cat([net.one(x), net.two(x)], dim=1) + net.sum(x)),
        one=conv(3, 2), two=conv(3, 2), sum=conv(3, 4), last=conv(4, 2),
    )  # fmt: skip
    assert "channels of different makes meet in one op" in reasons(piecewise, X, "one")
    straddling = Of(
        lambda net, x: net.norm(genesis.cat([net.one(x), net.two(x)], dim=1)).mean((2, 3)),
        one=conv(3, 3), two=conv(3, 5), norm=nn.GroupNorm(2, 8),
    )  # fmt: skip
    assert "straddle a concatenation" in reasons(straddling, X, "one")
    constant = nn.Sequential(nn.Conv2d(3, 3, 3, groups=3), nn.Conv2d(3, 2, 1))
    assert "takes channels that are fixed" in reasons(constant, X, "0")


def test_where_nothing_is_made() -> None:
    net = Of(
        lambda net, x: net.join(genesis.cat([net.one(x), net.two(x)], dim=1)),
        one=conv(3, 2), two=conv(3, 2), join=nn.ReLU(), spare=conv(1, 1),
    )  # fmt: skip
    mapped = growth.channel_map(net, X)
    with pytest.raises(GrowthError, match="a layer with channels of its own, got join, which joins those of others"):
        mapped.made_by("join")
    with pytest.raises(GrowthError, match="a layer that gives channels, and runs in the example's pass, got spare"):
        mapped.made_by("spare")
    with pytest.raises(GrowthError, match=r"channel_map|growth: argument 'example'"):
        growth.channel_map(net, "no tensor")


# --- your own ops -------------------------------------------------------------------------------------------------


class Cube(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * 3 * x * x


def test_an_op_of_ones_own_is_refused_until_it_has_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Of(lambda net, x: net.last(Cube.apply(net.first(x))), first=conv(3, 4), last=conv(4, 2))
    assert "the channel map has no rule for the op Cube" in reasons(net, X, "first")
    monkeypatch.setattr(rules, "RULES", dict(RULES))
    growth.register_rule(Cube, growth.elementwise)
    assert reasons(net, X, "first") == ""


def test_an_element_wise_op_says_so_itself() -> None:
    class Square(Cube):
        elementwise = True

    net = Of(lambda net, x: net.last(Square.apply(net.first(x))), first=conv(3, 4), last=conv(4, 2))
    assert reasons(net, X, "first") == ""


# --- no traces ----------------------------------------------------------------------------------------------------


def test_looking_leaves_no_traces() -> None:
    def forward(net: Any, x: Tensor) -> Any:
        y = F.dropout(net.norm(net.first(x)), 0.5, net.training)
        return (net.main(y), net.auxiliary(y)) if net.training else net.main(y)

    net = Of(forward, first=conv(3, 4), norm=nn.BatchNorm2d(4), main=conv(4, 2), auxiliary=conv(4, 2))
    net.first.requires_grad_(False)
    net.norm.eval()
    before, random_state = digest(net), genesis.get_rng_state().tolist()
    mapped = growth.channel_map(net, X)
    assert digest(net) == before
    assert genesis.get_rng_state().tolist() == random_state
    assert mapped.made_by("first")[1].fixed == ()


def test_multiplications_are_counted() -> None:
    net = nn.Sequential(conv(3, 4), nn.ConvTranspose2d(4, 2, 2, stride=2), nn.Flatten(), nn.Linear(512, 5))
    assert growth.channel_map(net, X).macs == 2 * (64 * 4 * 27 + 64 * 4 * 2 * 4 + 512 * 5)
