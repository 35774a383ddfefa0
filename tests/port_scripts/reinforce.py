"""Policy gradients with Categorical and a value baseline."""

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)
policy, value = nn.Linear(4, 3), nn.Linear(4, 1)
optimizer = torch.optim.Adam([*policy.parameters(), *value.parameters()], lr=1e-2)
states, best, losses = torch.randn(64, 4), torch.randint(0, 3, (64,)), []
for step in range(5):
    m = Categorical(logits=policy(states))
    action = best if step % 2 else m.probs.argmax(-1)
    assert m.sample().shape == action.shape
    returns = (action == best).float()
    advantage = returns - value(states).squeeze(-1)
    loss = -(m.log_prob(action) * advantage.detach()).mean() + advantage.pow(2).mean() - 0.01 * m.entropy().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
