"""SimCLR's loss, a k-nearest-neighbour evaluation, and momentum encoders."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))
target = copy.deepcopy(encoder)
for parameter in target.parameters():
    parameter.requires_grad_(False)
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
x, losses = torch.randn(16, 10), []
for step in range(6):
    a, b = x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)
    z = F.normalize(torch.cat([encoder(a), encoder(b)], dim=0), dim=1)
    similarity = torch.mm(z, z.t()) / 0.5
    similarity = similarity.masked_fill(torch.eye(32, dtype=torch.bool), -9e15)
    positives = torch.cat([torch.arange(16, 32), torch.arange(0, 16)])
    loss = F.cross_entropy(similarity, positives)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for mine, its in zip(target.parameters(), encoder.parameters()):
            mine.data.lerp_(its.data, 0.1)
    losses.append(loss.item())
distances = torch.cdist(target(x), target(x)).fill_diagonal_(float("inf"))
assert distances.topk(3, largest=False).indices.shape == (16, 3)
