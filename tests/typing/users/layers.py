"""Layers, containers, optimizers, data and models: what each call gives, by the signature of its forward."""

from collections.abc import Callable, Iterator
from typing import assert_type

import genesis
from genesis import Tensor, amp, models, nn, optim
from genesis.data import DataLoader, TensorDataset, prefetch


class Heads(nn.Module):
    """Typed containers; a list without a type holds any modules."""

    mean: Tensor

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(2)])
        self.heads = nn.ModuleDict({"mask": nn.Linear(width, 2)})
        self.others: nn.ModuleList = nn.ModuleList()
        self.scales = nn.ParameterList([genesis.ones(width)])
        self.register_buffer("mean", genesis.zeros(1))

    def forward(self, x: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        for layer in self.layers:
            assert_type(layer, nn.Linear)
            x = layer(x)
        for other in self.others:
            x = other(x)
        for parameter in self.scales:
            assert_type(parameter, nn.Parameter)
            x = x * parameter * scale
        return {"mask": self.heads["mask"](x - self.mean)}


x = genesis.ones(1, 3, 8, 8)
net = Heads()
assert_type(net(x), dict[str, Tensor])
assert_type(net(x, scale=2.0)["mask"], Tensor)
assert_type(net.to("cpu").eval(), Heads)
assert_type(net.get_parameter("layers.0.weight"), nn.Parameter)
assert_type(net.layers[0], nn.Linear)
assert_type(net.layers[:1], nn.ModuleList[nn.Linear])

assert_type(nn.ReLU()(x), Tensor)
assert_type(nn.Sequential(nn.ReLU())(x), Tensor)
assert_type(nn.Sequential({"first": nn.ReLU()})[:1], nn.Sequential)
assert_type(nn.MaxPool2d(2)(x), Tensor)
assert_type(nn.MaxPool2d(2, return_indices=True)(x), tuple[Tensor, Tensor])
assert_type(nn.AdaptiveMaxPool2d(2, True)(x), tuple[Tensor, Tensor])
assert_type(nn.ConvBNReLU(3, 8, 3)(x), Tensor)
assert_type(nn.CrossEntropyLoss()(x, x), Tensor)
attended, weights = nn.MultiheadAttention(8, 2)(x, x, x)
assert_type(attended, Tensor)
assert_type(weights, Tensor | None)
pool: nn.MaxPool2d = nn.MaxPool2d(2)
assert_type(pool(x), Tensor)
function: Callable[[Tensor], Tensor] = nn.ReLU()

nn.ReLU()(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
net(x, factor=2.0)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]

optimizer = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
optim.AdamW([{"params": [net.scales[0]], "lr": 0.01}, {"params": [net.layers[0].weight]}])
assert_type(optimizer.step(lambda: net(x)["mask"].sum()), Tensor)
schedule = optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)
assert_type(schedule.get_last_lr(), list[float])
schedule.step()
optim.lr_scheduler.ReduceLROnPlateau(optimizer).step(net(x)["mask"].sum())
assert_type(amp.GradScaler().scale(x), Tensor)


@amp.autocast("cpu")
def loss_of(input: Tensor, target: Tensor) -> Tensor:
    return nn.MSELoss()(input, target)


assert_type(loss_of(x, x), Tensor)

assert_type(models.resnet18(num_classes=10, weights=None)(x), Tensor)
assert_type(models.fcn_resnet50()(x), dict[str, Tensor])
assert_type(models.create("unet", width=4), nn.Module)
samples = TensorDataset(x, x)
assert_type(samples[0], tuple[Tensor, ...])
pairs: list[tuple[Tensor, Tensor]] = [(x, x)]
batches: Iterator[tuple[Tensor, Tensor]] = prefetch(pairs, "cpu")
for images, labels in DataLoader(samples, batch_size=2, shuffle=True):
    loss_of(images, labels).backward()
