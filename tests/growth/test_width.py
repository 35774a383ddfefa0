"""Width: the function is kept, everything moves along, and what is new learns."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import genesis
from genesis import amp, growth, models, nn, optim
from genesis.errors import GraphError, GrowthError
from genesis.tensor import Tensor
from tests.growth.deviations import measure
from tests.growth.measure import OPTIMIZERS, deviations, digest, outputs, train
from tests.growth.networks import CASES, LARGE, Case, small
from tests.narrow import narrow

# --- the function is kept -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("new", ["copy", "zero"])
@pytest.mark.parametrize("name", CASES)
def test_the_function_is_kept_and_what_is_new_learns(name: str, new: str) -> None:
    genesis.manual_seed(1)
    case = CASES[name]
    model, x = case.build(), genesis.randn(16, *case.shape[1:])
    optimizer = OPTIMIZERS["SGD"](model.parameters())
    train(model, optimizer, x, 2)
    for place in case.wide:
        before, num_before = outputs(model, x), sum(p.numel() for p in model.parameters())
        options: dict[str, Any] = {"optimizer": optimizer, "example": x[:2]}
        if name == "mlp" and place != "0" and new == "zero":
            continue
        step = growth.grow_width(model, place, factor=2, new=new, **options)
        assert max(deviations(before, outputs(model, x))) <= 1e-5
        assert sum(p.numel() for p in model.parameters()) == step.parameters[1] > num_before
        shapes = {key: p.shape for key, p in model.named_parameters()}
        train(model, optimizer, x, 1 if new == "copy" else 2)  # what takes zeros learns first, then what makes them
        for key, parameter in model.named_parameters():
            assert parameter.grad.shape == shapes[key]
        _assert_no_silent_rows(model, place)


def _assert_no_silent_rows(model: nn.Module, place: str) -> None:
    """Each channel that a convolution makes has a gradient in its weights; before a ReLU without a norm, most have."""
    layer = model.get_submodule(place)
    if isinstance(layer, nn.Conv2d | nn.Linear):
        rows = np.abs(layer.weight.grad.numpy()).reshape(len(layer.weight), -1).max(1)
        assert (rows > 0).mean() > (0.6 if isinstance(layer, nn.Linear) else 0.99)


def narrowed(case: Case) -> Case:
    def build() -> nn.Module:
        with narrow(4):
            return case.build()

    return case._replace(build=build)


@pytest.mark.parametrize("name", LARGE)
def test_large_networks(name: str) -> None:
    """Every operation by 1e-5. For the ResNet-50 with random weights in training mode: by less than it was from its own
    outputs in float64 before."""
    is_random = name == "resnet50_random"
    grown, rounding = measure(narrowed(LARGE[name]), num_samples=8, with_rounding=is_random)
    assert grown[0] <= 1e-5
    assert grown[1] <= (rounding[1] if is_random else 1e-5)


def test_large_networks_in_float64() -> None:
    """What is left is rounding: with more digits, it goes."""
    genesis.manual_seed(1)
    case = narrowed(LARGE["resnet50_random"])
    model, x = case.build().double(), genesis.randn(case.shape).double()
    before = outputs(model, x)
    with growth.transaction(model, example=x[:2]):
        for place in case.wide:
            growth.grow_width(model, place, factor=1.25)
    assert max(deviations(before, outputs(model, x))) <= 1e-12


def test_noise_changes_the_function_a_little(x: Tensor) -> None:
    model = small()
    before = outputs(model, x)
    growth.grow_width(model, "0", channels=8, noise=0.01, example=x)
    assert 1e-5 < deviations(before, outputs(model, x))[0] < 0.1


def test_copies_part_as_they_learn(x: Tensor) -> None:
    model = small()
    optimizer = OPTIMIZERS["SGD"](model.parameters())
    growth.grow_width(model, "0", channels=8, optimizer=optimizer, example=x)
    train(model, optimizer, x, 3)
    rows = model[0].weight.detach().numpy().reshape(8, -1)
    assert len({row.tobytes() for row in rows}) == 8


# --- everything moves ---------------------------------------------------------------------------------------------


def test_settings_dtype_flags_and_statistics_move(x: Tensor) -> None:
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=(2, 1), dilation=2, bias=False, padding_mode="reflect"),
        nn.BatchNorm2d(4, momentum=None, affine=False), nn.Conv2d(4, 4, 1, groups=4), nn.Conv2d(4, 2, 1),
    ).double()  # fmt: skip
    model[2].requires_grad_(False)
    x = genesis.randn(4, 2, 8, 8).double()
    model(x)
    parameters, mean = list(model.parameters()), model[1].running_mean.tolist()
    called: list[int] = []
    parameters[0].register_hook(lambda grad: called.append(1))
    growth.grow_width(model, "0", channels=6, example=x)
    assert repr(model[0]) == (
        "Conv2d(2, 6, kernel_size=(3, 3), stride=(2, 2), padding=(2, 1), dilation=(2, 2), bias=False, "
        "padding_mode=reflect)"
    )
    assert repr(model[1]).startswith("BatchNorm2d(6, eps=1e-05, momentum=None, affine=False")
    assert repr(model[2]).startswith("Conv2d(6, 6, kernel_size=(1, 1), stride=(1, 1), groups=6")
    assert repr(model[3]).startswith("Conv2d(6, 2")
    assert model[1].running_mean.tolist()[:4] == mean
    assert all(mine is its for mine, its in zip(model.parameters(), parameters, strict=True))
    assert [p.requires_grad for p in parameters] == [True, False, False, True, True]
    assert {p.dtype for p in parameters} == {genesis.float64}
    assert parameters[0].stride() == genesis.empty(6, 2, 3, 3, memory_format="channels_last").stride()
    model(x).sum().backward()
    assert called == [1]


def test_norms_without_parameters_and_group_norms(x: Tensor) -> None:
    model = nn.Sequential(
        nn.Conv2d(2, 8, 1), nn.GroupNorm(4, 8, affine=False), nn.InstanceNorm2d(8), nn.Flatten(2),
        nn.LayerNorm(16, elementwise_affine=False), nn.Flatten(), nn.Linear(128, 12), nn.RMSNorm(12), nn.Linear(12, 2),
    )  # fmt: skip
    before = outputs(model, x)
    growth.grow_width(model, "0", channels=10, example=x)
    growth.grow_width(model, "6", factor=2, example=x)
    assert (model[1].num_groups, model[1].num_channels, model[2].num_features) == (5, 10, 10)
    assert model[7].normalized_shape == (24,)
    assert max(deviations(before, outputs(model, x))) <= 1e-5


@pytest.mark.parametrize(("dtype", "limit"), [("float16", 1e-3), ("bfloat16", 1e-2), ("float64", 1e-14)])
def test_other_dtypes(dtype: str, limit: float, x: Tensor) -> None:
    """A unit in the last place: sums of more terms are rounded otherwise, the weights themselves add up exactly."""
    kind = getattr(genesis, dtype)
    model, x = small().to(kind), x.to(kind)
    optimizer = OPTIMIZERS["Adam"](model.parameters())
    train(model, optimizer, x)
    for new in ("copy", "zero"):
        step = growth.grow_width(model, "0", factor=1.5, new=new, optimizer=optimizer, example=x)
        assert step.deviation <= limit
    assert {parameter.dtype for parameter in model.parameters()} == {kind}
    train(model, optimizer, x)


@pytest.mark.parametrize("factor", [1.5, 2, 3.5])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_shares_of_a_weight_add_up_to_it_exactly(dtype: str, factor: float, x: Tensor) -> None:
    model = nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 5)).to(getattr(genesis, dtype))
    first, last = (layer.weight.detach().double().numpy() for layer in (model[0], model[2]))
    growth.grow_width(model, "0", factor=factor, example=x[:, :, 0, 0].to(getattr(genesis, dtype)))
    copies, shares = (layer.weight.detach().double().numpy() for layer in (model[0], model[2]))
    for unit, column in zip(first, last.T, strict=True):
        same = (copies == unit).all(1)
        assert same.sum() >= int(factor)
        np.testing.assert_array_equal(shares[:, same].sum(1), column)


def test_all_layers_at_once(x: Tensor) -> None:
    unet = models.create("unet", width=4, depth=2)
    x = genesis.randn(2, 1, 8, 8)
    before = outputs(unet, x)
    step = growth.grow_width(unet, factor=2, example=x)
    assert sum(p.numel() for p in unet.parameters()) == sum(
        p.numel() for p in models.create("unet", width=8, depth=2).parameters()
    )
    assert len(step.operations) == 7
    assert max(deviations(before, outputs(unet, x))) <= 1e-5


def test_averages_grow_along(x: Tensor) -> None:
    model, average = small(), small()
    optimizer = OPTIMIZERS["Adam"](model.parameters())
    train(model, optimizer, x)
    before, average_before = outputs(model, x), outputs(average, x)
    with growth.transaction(model, optimizer, example=x, averages=average):
        growth.grow_width(model, "0", channels=7)
        growth.grow_width(model, "3", channels=5, new="zero")
        growth.grow_branches(model, "3", channels=2)
        growth.grow_depth(model, "2")
    assert {k: v.shape for k, v in model.state_dict().items()} == {k: v.shape for k, v in average.state_dict().items()}
    assert max(deviations(before, outputs(model, x))) <= 1e-5
    assert max(deviations(average_before, outputs(average, x))) <= 1e-5
    assert average[0].out_channels == 7


def test_groups_schedulers_and_scalers_go_on(x: Tensor) -> None:
    model = small()
    optimizer = optim.SGD(
        [{"params": model[:4].parameters()}, {"params": model[5].parameters(), "lr": 0.5, "weight_decay": 0.1}],
        lr=0.1, momentum=0.9,
    )  # fmt: skip
    scheduler, scaler = optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5), amp.GradScaler(init_scale=8.0)

    def step() -> None:
        optimizer.zero_grad()
        scaler.scale((model(x) * model(x)).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()

    step()
    with growth.transaction(model, optimizer, example=x):
        growth.grow_width(model, "3", channels=6)
        growth.grow_branches(model, "5")
        growth.grow_depth(model, "2")
    assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.25]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0, 0.1]
    assert [len(group["params"]) for group in optimizer.param_groups] == [6 + 5, 2 + 3]
    step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.025, 0.125]
    assert all(parameter in optimizer.state for parameter in model.parameters())


def test_gradients_that_wait_move_too(x: Tensor) -> None:
    """Growing between backward and step gives the gradients that backward would give afterwards."""
    model = small()
    model(x).sum().backward()
    growth.grow_width(model, "0", channels=7, example=x)
    moved = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    model(x).sum().backward()
    for mine, parameter in zip(moved, model.parameters(), strict=True):
        np.testing.assert_allclose(mine.numpy(), parameter.grad.numpy(), rtol=1e-4, atol=1e-5)


# --- pruning ------------------------------------------------------------------------------------------------------


def test_pruning_takes_the_least(x: Tensor) -> None:
    model = small()
    optimizer = OPTIMIZERS["SGD"](model.parameters())
    train(model, optimizer, x)
    with genesis.no_grad():
        model[0].weight[1] = 0.0
        model[1].weight[2] = 1e-6
    kept = [0, 2, 3]
    momentum = optimizer.state[model[0].weight]["momentum_buffer"].numpy()
    rest = model[0].weight.detach().numpy()[kept]
    growth.prune_width(model, "0", channels=3, optimizer=optimizer, example=x)
    np.testing.assert_array_equal(model[0].weight.detach().numpy(), rest)
    np.testing.assert_array_equal(optimizer.state[model[0].weight]["momentum_buffer"].numpy(), momentum[kept])
    growth.prune_width(model, "0", channels=2, by="norm", optimizer=optimizer, example=x)
    np.testing.assert_array_equal(model[0].weight.detach().numpy(), rest[[0, 2]])
    assert model[3].in_channels == 2
    train(model, optimizer, x)


def test_pruning_what_does_nothing_keeps_the_function(x: Tensor) -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 1, 2))
    with genesis.no_grad():
        model[0].weight[2] = 0.0
        model[0].bias[2] = 0.0
    before = outputs(model, x)
    growth.prune_width(model, "0", factor=0.75, example=x)
    assert max(deviations(before, outputs(model, x))) <= 1e-6


# --- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"where": "0"}, "grow_width: argument 'channels': expected a number, or factor instead, got neither"),
        ({"where": "0", "channels": 5, "factor": 2}, "expected a number, or factor instead, got both"),
        ({"where": "0", "channels": 4}, "argument 'channels': expected more than the 4 of 0, got 4"),
        ({"where": "0", "factor": 0.5}, "argument 'factor': expected a number above 1, got 0.5"),
        ({"where": "0", "factor": float("nan")}, "argument 'factor': expected a number above 1, got nan"),
        ({"where": "0", "factor": "2"}, "argument 'factor': expected a number above 1, got '2'"),
        ({"where": "0", "channels": 6.0}, "argument 'channels': expected an int, got 6.0"),
        ({"where": 0, "channels": 5}, "expected a module of the network, or its name, got 0"),
        ({"where": [], "channels": 5}, "expected at least one layer, or None for all, got none"),
        ({"where": "9", "channels": 5}, "grow_width: argument 'where': get_submodule: Sequential has no '9'"),
        (
            {"where": nn.ReLU(), "channels": 5},
            "expected a module of the network, or its name, got a ReLU that is not in it",
        ),
        ({"where": "0", "channels": 5, "new": "old"}, "argument 'new': expected \"copy\" or \"zero\", got 'old'"),
        ({"where": "0", "channels": 5, "noise": -1}, "argument 'noise': expected a number >= 0, got -1"),
        ({"where": "5", "channels": 5}, "the channels of 5 cannot grow: it is an output of the network"),
    ],
)
def test_messages(arguments: dict[str, Any], message: str, x: Tensor) -> None:
    model = small()
    before = digest(model)
    with pytest.raises(GrowthError) as error:
        growth.grow_width(model, example=x, **arguments)
    assert message in str(error.value)
    assert digest(model) == before


def test_more_messages(x: Tensor) -> None:
    model = small()
    with pytest.raises(GrowthError, match="argument 'example': expected an input of the network"):
        growth.grow_width(model, "0", channels=5)
    with pytest.raises(
        GrowthError, match=r"argument 'example': expected a Tensor that the network takes, .* got ndarray"
    ):
        growth.grow_width(model, "0", channels=5, example=x.numpy())
    with pytest.raises(GrowthError, match=r"'example': expected at least one sample, .* got shape \(0, 2, 4, 4\)"):
        growth.grow_width(model, "0", channels=5, example=x[:0])
    with pytest.raises(GrowthError, match="argument 'example': the network does not run on it: ShapeError: conv2d: "):
        growth.grow_width(model, "0", channels=5, example=x[:, :1])
    with pytest.raises(
        GrowthError, match="prune_width: argument 'factor': expected a number above 0 and below 1, got 2"
    ):
        growth.prune_width(model, "0", factor=2, example=x)
    with pytest.raises(GrowthError, match="prune_width: argument 'channels': expected from 1 to 3, as 0 has 4, got 4"):
        growth.prune_width(model, "0", channels=4, example=x)
    with pytest.raises(GrowthError, match="argument 'by': expected \"magnitude\" or \"norm\", got 'age'"):
        growth.prune_width(model, "0", channels=3, by="age", example=x)
    with pytest.raises(GrowthError, match="what the channels of 3 have, got 'norm'; they have no such weights"):
        growth.prune_width(model, "3", channels=2, by="norm", example=x)
    with pytest.raises(GrowthError, match="prune_width: channels of 5 cannot go: it is an output"):
        growth.prune_width(model, "5", channels=1, example=x)
    normed = nn.Sequential(nn.Linear(2, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    for options in ({"channels": 6}, {"channels": 8, "new": "zero"}):
        with pytest.raises(GrowthError, match="can only grow to a multiple of 4, as copies: a layer norm goes over it"):
            growth.grow_width(normed, "0", example=x[:, :, 0, 0], **options)
    blocks = nn.Sequential(nn.Conv2d(2, 4, 1), nn.GroupNorm(2, 4), nn.Conv2d(4, 1, 1))
    with pytest.raises(GrowthError, match="a multiple of 2: the channels of 0 come in blocks of that size, got 5"):
        growth.grow_width(blocks, "0", channels=5, example=x)


class Fixed(nn.Module):
    """Its forward counts on 4 channels, in a way that the map cannot see."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Any:
        y = self.first(x)
        return self.last(y) * (1.0 if y.shape[-1] == 4 else 2.0)


def test_outputs_that_moved_undo_the_step() -> None:
    model, x = Fixed(), genesis.ones(2, 2)
    before = digest(model)
    with pytest.raises(GrowthError, match=r"grow_width: the outputs changed by 1.0e\+00 of the largest"):
        growth.grow_width(model, "first", channels=5, example=x)
    assert digest(model) == before
    assert len(growth.history(model)) == 0


class Counting(Fixed):
    """Its forward cannot do with other than 4 channels."""

    def forward(self, x: Tensor) -> Any:
        if self.first.out_features != 4:
            raise ValueError("four, please")
        return self.last(self.first(x))


def test_a_network_that_does_not_run_any_more_undoes_the_step() -> None:
    model, x = Counting(), genesis.ones(2, 2)
    before = digest(model)
    with pytest.raises(
        GrowthError, match="grow_width of first: the network does not run any more: ValueError: four, please"
    ):
        growth.grow_width(model, "first", channels=5, example=x)
    assert digest(model) == before


# --- where it is called -------------------------------------------------------------------------------------------


def test_inside_of_autocast_the_network_is_followed_in_its_own_precision(x: Tensor) -> None:
    model = small()
    before = outputs(model, x)
    with amp.autocast("cpu"):
        model.eval()(x)  # leaves casts of the weights, whose making no later pass would see
        step = growth.grow_width(model, "0", channels=6, example=x)
        growth.grow_depth(model, "2", example=x)
    assert step.deviation is not None
    assert step.deviation < 1e-5  # measured in float32
    assert max(deviations(before, outputs(model, x))) < 1e-5


def test_a_graph_from_before_the_growth_says_that_it_is_out_of_date(x: Tensor) -> None:
    model = small()
    loss = model(x).sum()
    growth.grow_width(model, "0", channels=6, example=x)
    with pytest.raises(GraphError, match=r"Conv2d.backward: expected a gradient of .* another shape after the forward"):
        loss.backward()


def test_pruning_by_a_factor_takes_one_at_least_and_leaves_one(x: Tensor) -> None:
    model = small()
    growth.prune_width(model, factor=0.9, example=x)
    assert (model[0].out_channels, model[3].out_channels) == (3, 2)
    growth.prune_width(model, factor=0.01, example=x)
    assert (model[0].out_channels, model[3].out_channels) == (1, 1)
    step = growth.prune_width(model, factor=0.5, example=x)  # each has one left: there is nothing to do
    assert step.operations == []
    with pytest.raises(GrowthError, match="'where': expected a layer with channels to spare, got 0 with one"):
        growth.prune_width(model, "0", channels=1, example=x)
    growth.grow_width(model, "0", channels=5, example=x)
    assert model(x).shape == (4, 2)


def test_what_the_example_does_not_run_is_named() -> None:
    class Optional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(3, 4), nn.Linear(2, 4), nn.Linear(4, 1)

        def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
            return self.c(self.a(x) if y is None else self.a(x) + self.b(y))

    model, x, y = Optional(), genesis.randn(2, 3), genesis.randn(2, 2)
    with pytest.warns(UserWarning, match=r"grow_width: the example does not run b\.weight, b\.bias: where these share"):
        step = growth.grow_width(model, "a", channels=6, example=x)
    growth.rollback(step)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        growth.grow_width(model, "a", channels=6, example=(x, y))
    assert model.b.out_features == 6
