"""Habits of many scripts: a sampler of classes, an iterable data set, dtype limits, state dicts, copies, formats."""

import copy
import pickle
import tempfile

import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, WeightedRandomSampler


class Squares(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, i):
        return {"x": torch.tensor([float(i)]), "y": i * i, "name": str(i)}


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(5).float())


torch.manual_seed(0)
sampler = WeightedRandomSampler(torch.ones(12), num_samples=6, generator=torch.Generator().manual_seed(3))
losses = [float(batch["y"].sum()) for batch in DataLoader(Squares(), batch_size=3, sampler=sampler)]
both = ConcatDataset([Subset(Squares(), [1, 3]), Squares()])
losses += [float(both[1]["y"])]
losses += [batch.sum().item() for batch in DataLoader(Stream(), batch_size=2)]
losses += [torch.finfo(torch.float32).eps, float(torch.iinfo(torch.int16).max)]
model = nn.Linear(3, 2)
again = pickle.loads(pickle.dumps(copy.deepcopy(model)))
with tempfile.TemporaryDirectory() as folder:
    torch.save({"model": model.state_dict(), "step": 3}, folder + "/state.pt")
    again.load_state_dict(torch.load(folder + "/state.pt")["model"])
x = torch.arange(6, dtype=torch.float32).view(2, 3)
losses.append((again(x) - model(x)).abs().max().item())
losses += [x.mean(dim=1, keepdim=True).sum().item(), x.var(unbiased=False).item(), x.std().item()]
losses += [torch.where(x > 2, x, torch.zeros_like(x)).sum().item(), x.median().item(), x.quantile(0.3).item()]
assert f"{x.sum():.2f}" == "15.00" and f"{x[0, 0].item():5.1f}" == "  0.0"
assert isinstance(x.shape, torch.Size) and torch.is_tensor(x) and x.type(torch.int64).dtype == torch.long
