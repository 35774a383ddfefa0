"""Classification of images with a convolutional network, a loader, a scheduler and an evaluation."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.fc = nn.Linear(16 * 2 * 2, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return F.log_softmax(self.fc(torch.flatten(x, 1)), dim=1)


torch.manual_seed(0)
data = TensorDataset(torch.randn(48, 1, 8, 8), torch.randint(0, 10, (48,)))
train, test = random_split(data, [32, 16], generator=torch.Generator().manual_seed(1))
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
losses = []
for epoch in range(2):
    model.train()
    for x, y in DataLoader(train, batch_size=8, shuffle=False):
        optimizer.zero_grad()
        loss = F.nll_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    scheduler.step()
model.eval()
with torch.inference_mode():
    correct = sum((model(x).argmax(dim=1, keepdim=True) == y.view(-1, 1)).sum().item() for x, y in DataLoader(test, 8))
print(f"accuracy {correct / len(test):.2f}, loss {losses[-1]:.4f}")
