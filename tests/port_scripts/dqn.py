"""Deep Q-learning: a replay memory of tuples, epsilon-greedy actions, a target network, Huber loss."""

import random
from collections import deque, namedtuple

import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim

Transition = namedtuple("Transition", ("state", "action", "next_state", "reward"))


class DQN(nn.Module):
    def __init__(self, n_observations, n_actions):
        super().__init__()
        self.layer1, self.layer2 = nn.Linear(n_observations, 24), nn.Linear(24, n_actions)

    def forward(self, x):
        return self.layer2(torch.relu(self.layer1(x)))


device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
random.seed(0), np.random.seed(0), torch.manual_seed(0)
policy_net, target_net = DQN(4, 2).to(device), DQN(4, 2).to(device)
target_net.load_state_dict(policy_net.state_dict())
optimizer = optim.AdamW(policy_net.parameters(), lr=1e-2, amsgrad=True)
memory, losses = deque([], maxlen=100), []
state = torch.tensor(np.random.randn(4), dtype=torch.float32, device=device).unsqueeze(0)
for t in range(20):
    if random.random() > 0.5:
        with torch.no_grad():
            action = policy_net(state).max(1).indices.view(1, 1)
    else:
        action = torch.tensor([[random.randrange(2)]], device=device, dtype=torch.long)
    observation = np.random.randn(4)
    reward = torch.tensor([observation[action.item()]], dtype=torch.float32, device=device)
    next_state = None if t % 5 == 4 else torch.from_numpy(observation).float().unsqueeze(0).to(device)
    memory.append(Transition(state, action, next_state, reward))
    state = state if next_state is None else next_state
    if len(memory) < 8:
        continue
    batch = Transition(*zip(*random.sample(memory, 8)))
    non_final_mask = torch.tensor(
        tuple(map(lambda s: s is not None, batch.next_state)), device=device, dtype=torch.bool
    )
    non_final_next_states = torch.cat([s for s in batch.next_state if s is not None])
    state_action_values = policy_net(torch.cat(batch.state)).gather(1, torch.cat(batch.action))
    next_state_values = torch.zeros(8, device=device)
    with torch.no_grad():
        next_state_values[non_final_mask] = target_net(non_final_next_states).max(1).values
    expected = (next_state_values * 0.99) + torch.cat(batch.reward)
    loss = nn.SmoothL1Loss()(state_action_values, expected.unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(policy_net.parameters(), 100)
    optimizer.step()
    target_state, policy_state = target_net.state_dict(), policy_net.state_dict()
    for key in policy_state:
        target_state[key] = policy_state[key] * 0.05 + target_state[key] * 0.95
    target_net.load_state_dict(target_state)
    losses.append(loss.item())
