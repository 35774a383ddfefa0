"""A training loop, and the packages that are imported on first use."""

from typing import assert_type

import genesis
from genesis import Tensor, nn, optim
from genesis.data import DataLoader, TensorDataset

images, labels = genesis.randn(16, 3, 8, 8), genesis.randint(0, 10, (16,))
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 10))
optimizer = optim.AdamW(model.parameters(), lr=1e-3)
schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
criterion = nn.CrossEntropyLoss()


@genesis.no_grad()
def accuracy(images: Tensor, labels: Tensor) -> float:
    """The share of images whose class is right."""
    return float((model(images).argmax(1) == labels).float().mean())


total = 0.0
for batch, target in DataLoader(TensorDataset(images, labels), batch_size=4, shuffle=True):
    with genesis.autocast("cpu", dtype=genesis.bfloat16):
        loss = criterion(model(batch), target)
    assert_type(loss, Tensor)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total += loss.item()
schedule.step()
assert_type(accuracy(images, labels), float)

(grad,) = genesis.autograd.grad(model(images).sum(), [images.requires_grad_()])
assert_type(grad, Tensor)
unused = genesis.autograd.grad(images.sum(), [images, labels], allow_unused=True)
assert_type(unused, tuple[Tensor | None, ...])
genesis.save(model.state_dict(), "model.safetensors")

assert_type(genesis.models.create("resnet18", num_classes=10), nn.Module)
assert_type(genesis.cuda.is_available(), bool)
