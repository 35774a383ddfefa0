"""A U-Net that predicts noise, with time embeddings and cross attention, and a noise schedule, as diffusers' code."""

# ruff: noqa: UP007, UP045 (as people write it)

import math
from typing import Optional, Union

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def get_timestep_embedding(timesteps: torch.Tensor, embedding_dim: int, flip: bool = True, max_period: int = 10000):
    assert len(timesteps.shape) == 1, "Timesteps should be a 1d-array"
    half_dim = embedding_dim // 2
    exponent = -math.log(max_period) * torch.arange(start=0, end=half_dim, dtype=torch.float32, device=timesteps.device)
    emb = timesteps[:, None].float() * torch.exp(exponent / half_dim)[None, :]
    emb = torch.cat([torch.sin(emb), torch.cos(emb)], dim=-1)
    if flip:
        emb = torch.cat([emb[:, half_dim:], emb[:, :half_dim]], dim=-1)
    return F.pad(emb, (0, 1, 0, 0)) if embedding_dim % 2 == 1 else emb


class Scheduler:
    def __init__(self, steps=1000):
        betas = torch.linspace(0.00085**0.5, 0.012**0.5, steps, dtype=torch.float32) ** 2
        self.alphas_cumprod = torch.cumprod(1.0 - betas, dim=0)
        self.timesteps = torch.from_numpy(np.arange(0, steps)[::-1].copy().astype(np.int64))

    def add_noise(self, original: torch.Tensor, noise: torch.Tensor, timesteps: torch.IntTensor) -> torch.Tensor:
        alphas = self.alphas_cumprod.to(device=original.device, dtype=original.dtype)
        timesteps = timesteps.to(original.device)
        left, right = (part[timesteps].flatten() for part in (alphas**0.5, (1 - alphas) ** 0.5))
        while len(left.shape) < len(original.shape):
            left, right = left.unsqueeze(-1), right.unsqueeze(-1)
        return left * original + right * noise


class ResnetBlock(nn.Module):
    def __init__(self, channels, out_channels, temb):
        super().__init__()
        self.norm1 = nn.GroupNorm(num_groups=4, num_channels=channels, eps=1e-5, affine=True)
        self.conv1 = nn.Conv2d(channels, out_channels, kernel_size=3, stride=1, padding=1)
        self.time_emb_proj = nn.Linear(temb, 2 * out_channels)
        self.norm2 = nn.GroupNorm(4, out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, 1, 1)
        self.nonlinearity = nn.SiLU()
        self.shortcut = nn.Conv2d(channels, out_channels, 1) if channels != out_channels else nn.Identity()
        nn.init.zeros_(self.conv2.bias)

    def forward(self, x, temb):
        h = self.conv1(self.nonlinearity(self.norm1(x)))
        scale, shift = torch.chunk(self.time_emb_proj(self.nonlinearity(temb))[:, :, None, None], 2, dim=1)
        h = torch.addcmul(shift, self.norm2(h), 1 + scale)
        return (self.shortcut(x) + self.conv2(self.nonlinearity(h))) / 2**0.5


class CrossAttention(nn.Module):
    def __init__(self, channels, context, heads=2):
        super().__init__()
        self.heads, self.scale = heads, (channels // heads) ** -0.5
        self.norm = nn.GroupNorm(4, channels)
        self.to_q = nn.Linear(channels, channels, bias=False)
        self.to_k, self.to_v = (nn.Linear(context, channels, bias=False) for _ in range(2))
        self.to_out = nn.ModuleList([nn.Linear(channels, channels), nn.Dropout(0.0)])
        self.ff = nn.Linear(channels, 8 * channels)
        self.ff_out = nn.Linear(4 * channels, channels)

    def head_to_batch(self, tensor):
        b, s, d = tensor.shape
        tensor = tensor.reshape(b, s, self.heads, d // self.heads).permute(0, 2, 1, 3)
        return tensor.reshape(b * self.heads, s, d // self.heads)

    def forward(self, x, context):
        b, c, h, w = x.shape
        hidden = self.norm(x).view(b, c, h * w).transpose(1, 2)
        q, k, v = map(self.head_to_batch, (self.to_q(hidden), self.to_k(context), self.to_v(context)))
        empty = torch.empty(q.shape[0], q.shape[1], k.shape[1], dtype=q.dtype, device=q.device)
        scores = torch.baddbmm(empty, q, k.transpose(-1, -2), beta=0, alpha=self.scale)
        out = torch.bmm(scores.softmax(dim=-1), v)
        out = out.reshape(b, self.heads, h * w, -1).permute(0, 2, 1, 3).reshape(b, h * w, c)
        for module in self.to_out:
            out = module(out)
        hidden, gate = self.ff(hidden + out).chunk(2, dim=-1)
        hidden = self.ff_out(hidden * F.gelu(gate))
        return hidden.transpose(1, 2).reshape(b, c, h, w).contiguous() + x


class Upsample(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x, output_size: Optional[Union[int, tuple]] = None):
        if output_size is None:
            return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.conv(F.interpolate(x, size=output_size, mode="nearest"))


class DiffusionNet(nn.Module):
    def __init__(self, channels=(8, 16), context=12):
        super().__init__()
        first, last = channels
        temb = 4 * first
        self.time_embedding = nn.Sequential(nn.Linear(first, temb), nn.SiLU(), nn.Linear(temb, temb))
        self.conv_in = nn.Conv2d(3, first, kernel_size=3, padding=(1, 1))
        self.down = nn.ModuleList([ResnetBlock(first, first, temb), ResnetBlock(first, last, temb)])
        self.downsample = nn.Conv2d(first, first, 3, stride=2, padding=0)
        self.mid = CrossAttention(last, context)
        self.up = nn.ModuleList([ResnetBlock(2 * last, last, temb), ResnetBlock(last + first, first, temb)])
        self.upsample = Upsample(last)
        self.conv_norm_out, self.conv_act = nn.GroupNorm(4, first, eps=1e-5), nn.SiLU()
        self.conv_out = nn.Conv2d(first, 3, 3, padding=1)
        self.register_buffer("context", torch.linspace(-1, 1, 2 * 5 * context).reshape(2, 5, context))
        self.scheduler = Scheduler()

    def forward(self, x):
        timesteps = torch.tensor([10, 900], device=x.device)
        noise = torch.roll(x.flip(-1), shifts=(1, 2), dims=(2, 3))
        noisy = self.scheduler.add_noise(x, noise, timesteps)
        t = torch.as_tensor(timesteps).expand(noisy.shape[0])
        temb = self.time_embedding(get_timestep_embedding(t, self.conv_in.out_channels).to(dtype=x.dtype))
        h = self.conv_in(noisy)
        skip = self.down[0](h, temb)
        h = self.downsample(F.pad(skip, (0, 1, 0, 1), mode="constant", value=0))
        below = self.down[1](h, temb)
        h = self.mid(below, self.context.to(x.dtype))
        h = self.up[0](torch.cat([h, below], dim=1), temb)
        h = self.upsample(h, skip.shape[2:])
        h = self.up[1](torch.cat([h, skip], dim=1), temb)
        predicted = self.conv_out(self.conv_act(self.conv_norm_out(h)))
        loss = F.mse_loss(predicted.float().to(x.dtype), noise, reduction="none")
        return loss.mean(dim=list(range(1, len(loss.shape)))).mean(), predicted
