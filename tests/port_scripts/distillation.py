"""A student learns a teacher's softened outputs; weights are averaged."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel

torch.manual_seed(0)
teacher = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 4)).eval()
student = nn.Linear(6, 4)
average = AveragedModel(student, avg_fn=lambda old, new, n: 0.9 * old + 0.1 * new)
optimizer = torch.optim.RMSprop(student.parameters(), lr=1e-2)
x, y, losses = torch.randn(24, 6), torch.randint(4, (24,)), []
for step in range(8):
    with torch.no_grad():
        soft = F.softmax(teacher(x) / 3.0, dim=-1)
    logits = student(x)
    distilled = F.kl_div(F.log_softmax(logits / 3.0, dim=-1), soft, reduction="batchmean") * 9.0
    loss = 0.7 * distilled + 0.3 * F.cross_entropy(logits, y, label_smoothing=0.1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average.update_parameters(student)
    losses.append(loss.item())
losses.append(average(x).pow(2).mean().item())
