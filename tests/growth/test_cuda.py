"""Growth on a CUDA device, simulated, and with -m gpu a real one: everything stays there, and training goes on."""

from __future__ import annotations

import pytest

import genesis
from genesis import growth, models, nn, optim
from tests.growth.measure import deviations, outputs, train
from tests.growth.networks import CASES, LARGE


def test_everything_grows_where_it_is(cuda: str) -> None:
    genesis.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1, bias=False), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3)
    ).to("cuda")
    x = genesis.randn(3, 1, 4, 4, device="cuda")
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    train(model, optimizer, x)
    before = outputs(model, x)
    with growth.transaction(model, optimizer, example=x[:2], seed=1):
        growth.grow_width(model, "0", channels=3)
        growth.grow_width(model, "0", channels=4, new="zero")
        growth.grow_depth(model, "2", channels=2)
        growth.grow_branches(model, "4", channels=2)
    assert max(deviations(before, outputs(model, x))) <= 1e-5
    state = [entry for entries in optimizer.state.values() for entry in entries.values()]
    tensors = [*model.parameters(), *model.buffers(), *(entry for entry in state if isinstance(entry, genesis.Tensor))]
    assert {str(tensor.device) for tensor in tensors} == {"cuda:0"}
    train(model, optimizer, x, 2)
    growth.prune_branches(model, "4", optimizer=optimizer, example=x[:2])
    growth.rollback(growth.history(model)[0])
    assert train(model, optimizer, x) >= 0


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_the_function_is_kept_on_a_gpu(name: str) -> None:
    genesis.manual_seed(1)
    case = CASES[name]
    model, x = case.build().to("cuda"), genesis.randn(case.shape, device="cuda")
    optimizer = optim.SGD(model.parameters(), lr=0.002, momentum=0.9)
    train(model, optimizer, x, 2)
    for operation, places in ((growth.grow_width, case.wide), (growth.grow_depth, case.deep)):
        for place in places:
            before = outputs(model, x)
            options = {"factor": 2} if operation is growth.grow_width else {}
            operation(model, place, optimizer=optimizer, example=x[:2], **options)
            assert max(deviations(before, outputs(model, x))) <= 1e-5
            train(model, optimizer, x)
    for place in case.branched:
        growth.grow_branches(model, place, channels=3, optimizer=optimizer, example=x[:2])
        train(model, optimizer, x, 2)


@pytest.mark.gpu
def test_a_residual_network_grows_and_trains_on_a_gpu() -> None:
    genesis.manual_seed(1)
    case = LARGE["resnet18"]
    model, x = models.create("resnet18", num_classes=5).to("cuda"), genesis.randn(case.shape, device="cuda")
    optimizer = optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    train(model, optimizer, x)
    before = outputs(model, x)
    with growth.transaction(model, optimizer, example=x[:2]):
        for place in case.wide:
            growth.grow_width(model, place, factor=1.25)
    in_eval, _ = deviations(before, outputs(model, x))
    assert in_eval <= 1e-5
    train(model, optimizer, x, 2)
