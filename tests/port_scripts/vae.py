"""A variational autoencoder with torch.distributions."""

import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 8))
decoder = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 12))
optimizer = torch.optim.AdamW([*encoder.parameters(), *decoder.parameters()], lr=1e-2)
data = torch.rand(32, 12)
losses = []
for step in range(8):
    mu, logvar = encoder(data).chunk(2, dim=-1)
    q = Normal(mu, torch.exp(0.5 * logvar))
    z = q.rsample()
    recon = nn.functional.binary_cross_entropy_with_logits(decoder(z), data, reduction="sum")
    loss = (recon + kl_divergence(q, Normal(torch.zeros_like(mu), torch.ones_like(mu))).sum()) / data.size(0)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
