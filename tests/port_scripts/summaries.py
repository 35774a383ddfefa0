"""Scalars, histograms, images and hyper-parameters for TensorBoard."""

import tempfile

import torch
from torch import nn
from torch.utils.tensorboard import SummaryWriter

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
x = torch.randn(16, 4)
y, losses = x.sum(dim=1, keepdim=True), []
with tempfile.TemporaryDirectory() as folder:
    writer = SummaryWriter(log_dir=folder, comment="demo")
    for epoch in range(6):
        loss = nn.MSELoss()(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        writer.add_scalar("Loss/train", loss, epoch)
        writer.add_scalars("rates", {"lr": optimizer.param_groups[0]["lr"]}, epoch)
        for name, parameter in model.named_parameters():
            writer.add_histogram(name, parameter, epoch)
            writer.add_histogram(f"{name}.grad", parameter.grad, epoch)
    writer.add_image("inputs", x.view(1, 8, 8).clamp(0, 1), 0)
    writer.add_images("batch", torch.rand(2, 3, 4, 4))
    writer.add_text("note", f"ended at {loss:.3f}")
    writer.add_hparams({"lr": 0.05, "batch": 16}, {"loss": loss.item()})
    writer.flush()
    writer.close()
