"""A windowed transformer as PyTorch's users write one: relative positions, masks, a tuple of outputs."""

from __future__ import annotations

import math

import torch
import torch.nn as nn
from torch.nn import functional as F


def window_partition(x: torch.Tensor, size: int) -> torch.Tensor:
    b, h, w, c = x.shape
    x = x.view(b, h // size, size, w // size, size, c)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, size * size, c)


def window_reverse(windows: torch.Tensor, size: int, h: int, w: int) -> torch.Tensor:
    b = windows.shape[0] // (h * w // size // size)
    x = windows.view(b, h // size, w // size, size, size, -1)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, -1)


class WindowAttention(nn.Module):
    def __init__(self, dim: int, size: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads, self.scale = num_heads, (dim // num_heads) ** -0.5
        self.qkv, self.proj = nn.Linear(dim, dim * 3), nn.Linear(dim, dim)
        self.table = nn.Parameter(torch.zeros((2 * size - 1) ** 2, num_heads))
        nn.init.trunc_normal_(self.table, std=0.02)
        rows = torch.arange(size).view(-1, 1).expand(size, size)
        coords = torch.stack([rows, rows.t()]).flatten(1)
        relative = (coords[:, :, None] - coords[:, None, :]).permute(1, 2, 0).contiguous()
        relative[:, :, 0] += size - 1
        relative[:, :, 1] += size - 1
        relative[:, :, 0] *= 2 * size - 1
        self.register_buffer("index", relative.sum(-1))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.num_heads, c // self.num_heads).permute(2, 0, 3, 1, 4).unbind(0)
        attention = (q * self.scale) @ k.transpose(-2, -1)
        bias = self.table[self.index.view(-1)].view(n, n, -1).permute(2, 0, 1)
        attention = attention + bias.unsqueeze(0)
        if mask is not None:
            attention = attention.view(-1, mask.shape[0], self.num_heads, n, n) + mask[:, None]
            attention = attention.view(-1, self.num_heads, n, n)
        x = (attention.softmax(dim=-1) @ v).transpose(1, 2).reshape(b, n, c)
        return self.proj(x)


class AttentionNet(nn.Module):
    def __init__(self, dim: int = 16, size: int = 4, shift: int = 2, num_heads: int = 4) -> None:
        super().__init__()
        self.size, self.shift = size, shift
        self.embed = nn.Conv2d(3, dim, kernel_size=4, stride=4)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = WindowAttention(dim, size, num_heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * dim, dim))
        self.token = nn.Parameter(torch.empty(1, 1, dim))
        nn.init.normal_(self.token, std=1 / math.sqrt(dim))

    def mask(self, h: int, w: int, device: torch.device) -> torch.Tensor:
        regions = torch.zeros((1, h, w, 1), device=device)
        count = 0
        for rows in (slice(0, -self.size), slice(-self.size, -self.shift), slice(-self.shift, None)):
            for columns in (slice(0, -self.size), slice(-self.size, -self.shift), slice(-self.shift, None)):
                regions[:, rows, columns, :] = count
                count += 1
        windows = window_partition(regions, self.size).squeeze(-1)
        apart = windows.unsqueeze(1) - windows.unsqueeze(2)
        return apart.masked_fill(apart != 0, -100.0).masked_fill(apart == 0, 0.0)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.embed(x).permute(0, 2, 3, 1)
        _, h, w, _ = x.shape
        shortcut = x
        x = torch.roll(self.norm1(x), shifts=(-self.shift, -self.shift), dims=(1, 2))
        windows = self.attention(window_partition(x, self.size), self.mask(h, w, x.device).to(x.dtype))
        x = torch.roll(window_reverse(windows, self.size, h, w), shifts=(self.shift, self.shift), dims=(1, 2))
        x = shortcut + x
        x = x + self.mlp(self.norm2(x))
        tokens = torch.cat((self.token.expand(x.shape[0], -1, -1), x.flatten(1, 2)), dim=1)
        return F.normalize(tokens.mean(1), dim=-1), tokens
