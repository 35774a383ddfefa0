"""Mixed precision with an exponential moving average of the weights, warm-up, gradient accumulation and checkpoints."""

import io
from copy import deepcopy

import torch
from torch import nn


class ModelEMA:
    def __init__(self, model, decay=0.99):
        self.module = deepcopy(model).eval()
        self.decay = decay
        for p in self.module.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        msd = model.state_dict()
        for k, v in self.module.state_dict().items():
            if v.dtype.is_floating_point:
                v *= self.decay
                v += (1.0 - self.decay) * msd[k].detach()


torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.SiLU(), nn.Dropout(0.0), nn.Linear(32, 3)).to(device)
ema = ModelEMA(model)
decay = [p for n, p in model.named_parameters() if p.ndim > 1]
no_decay = [p for n, p in model.named_parameters() if p.ndim <= 1]
groups = [{"params": decay, "weight_decay": 0.1}, {"params": no_decay, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=1e-2)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
scaler = torch.amp.GradScaler(device.type, enabled=device.type == "cuda")
x, y, losses = torch.randn(32, 8, device=device), torch.randint(3, (32,), device=device), []
for step in range(8):
    with torch.autocast(device_type=device.type, dtype=torch.bfloat16, enabled=False):
        loss = nn.functional.cross_entropy(model(x), y) / 2
    scaler.scale(loss).backward()
    if (step + 1) % 2 == 0:
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scheduler.step()
        ema.update(model)
        losses += [loss.item() * 2, float(norm), optimizer.param_groups[0]["lr"]]
buffer = io.BytesIO()
torch.save({"model": model.state_dict(), "ema": ema.module.state_dict(), "optimizer": optimizer.state_dict()}, buffer)
buffer.seek(0)
checkpoint = torch.load(buffer, map_location="cpu", weights_only=True)
ema.module.load_state_dict(checkpoint["ema"], strict=True)
optimizer.load_state_dict(checkpoint["optimizer"])
losses.append(ema.module(x).square().mean().item())
