"""A causal language model with rotary positions, grouped heads, gated layers and a cache of keys, as LLaMA's code."""

# ruff: noqa: UP006, UP035, UP045 (as people write it)

import inspect
import math
from typing import List, Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        input_dtype = hidden_states.dtype
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states.to(input_dtype)

    def extra_repr(self):
        return f"{tuple(self.weight.shape)}, eps={self.variance_epsilon}"


class RotaryEmbedding(nn.Module):
    inv_freq: torch.Tensor

    def __init__(self, dim, base=10000, device=None):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2, dtype=torch.int64).float().to(device) / dim))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    @torch.no_grad()
    def forward(self, x, position_ids):
        inv_freq_expanded = self.inv_freq[None, :, None].float().expand(position_ids.shape[0], -1, 1)
        position_ids_expanded = position_ids[:, None, :].float()
        device_type = x.device.type if isinstance(x.device.type, str) else "cpu"
        with torch.autocast(device_type=device_type, enabled=False):
            freqs = (inv_freq_expanded.float() @ position_ids_expanded.float()).transpose(1, 2)
            emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos().to(dtype=x.dtype), emb.sin().to(dtype=x.dtype)


def rotate_half(x):
    x1, x2 = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def repeat_kv(hidden_states: torch.Tensor, n_rep: int) -> torch.Tensor:
    batch, heads, length, head_dim = hidden_states.shape
    hidden_states = hidden_states[:, :, None, :, :].expand(batch, heads, n_rep, length, head_dim)
    return hidden_states.reshape(batch, heads * n_rep, length, head_dim)


class Cache:
    def __init__(self) -> None:
        self.layers: List[Tuple[torch.Tensor, torch.Tensor]] = []

    def update(self, keys, values, index):
        if len(self.layers) <= index:
            self.layers.append((keys, values))
        else:
            old = self.layers[index]
            self.layers[index] = (torch.cat([old[0], keys], dim=-2), torch.cat([old[1], values], dim=-2))
        return self.layers[index]

    def length(self) -> int:
        return self.layers[0][0].shape[-2] if self.layers else 0


class Attention(nn.Module):
    def __init__(self, width, heads, groups, index):
        super().__init__()
        self.heads, self.groups, self.head_dim, self.index = heads, groups, width // heads, index
        self.qkv = nn.Linear(width, (heads + 2 * groups) * self.head_dim, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)
        mask = torch.tril(torch.ones(64, 64)).view(1, 1, 64, 64)
        self.register_buffer("bias", mask.to(torch.bool), persistent=False)

    def forward(self, x, rotary, cache: Optional[Cache] = None, eager=False):
        b, s, _ = x.shape
        q, k, v = self.qkv(x).split([n * self.head_dim for n in (self.heads, self.groups, self.groups)], dim=2)
        q, k, v = (y.view(b, s, -1, self.head_dim).transpose(1, 2) for y in (q, k, v))
        cos, sin = (y.unsqueeze(1) for y in rotary)
        q, k = ((y * cos) + (rotate_half(y) * sin) for y in (q, k))
        if cache is not None:
            k, v = cache.update(k, v, self.index)
        k, v = repeat_kv(k, self.heads // self.groups), repeat_kv(v, self.heads // self.groups)
        if eager:
            scores = torch.matmul(q, k.transpose(2, 3)) * (1.0 / math.sqrt(k.size(-1)))
            t = k.size(-2)
            scores = scores.masked_fill(~self.bias[:, :, t - s : t, :t], float("-inf"))
            y = F.softmax(scores, dim=-1, dtype=torch.float64).to(q.dtype) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=s > 1)
        return self.o_proj(y.transpose(1, 2).contiguous().reshape(b, s, -1))


class Block(nn.Module):
    def __init__(self, width, heads, groups, index):
        super().__init__()
        self.self_attn = Attention(width, heads, groups, index)
        self.gate_proj, self.up_proj = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down_proj = nn.Linear(2 * width, width, bias=False)
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(width), RMSNorm(width)
        self.eager = bool(index % 2)

    def forward(self, x, rotary, cache=None):
        x = x + self.self_attn(self.input_layernorm(x), rotary, cache=cache, eager=self.eager)
        y = self.post_attention_layernorm(x)
        return x + self.down_proj(F.silu(self.gate_proj(y)) * self.up_proj(y))


class DecoderNet(nn.Module):
    def __init__(self, vocabulary=40, width=32, heads=4, groups=2, layers=2):
        super().__init__()
        self.vocabulary = vocabulary
        self.embed_tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Block(width, heads, groups, index) for index in range(layers))
        self.norm, self.rotary = RMSNorm(width), RotaryEmbedding(width // heads)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        for name, p in self.named_parameters():
            if name.endswith("o_proj.weight"):
                torch.nn.init.normal_(p, mean=0.0, std=0.02 / math.sqrt(2 * layers))
        decayed = [p for n, p in self.named_parameters() if p.dim() >= 2]
        use_fused = "fused" in inspect.signature(torch.optim.AdamW).parameters
        self.num_decayed = sum(p.numel() for p in decayed) + int(use_fused)

    def hidden(self, ids, cache=None):
        past = cache.length() if cache is not None else 0
        positions = torch.arange(past, past + ids.shape[1], device=ids.device).unsqueeze(0)
        x = self.embed_tokens(ids)
        rotary = self.rotary(x, positions)
        for layer in self.layers:
            x = layer(x, rotary, cache)
        return self.lm_head(self.norm(x))

    @torch.inference_mode()
    def generate(self, ids, count):
        cache, step = Cache(), ids
        for _ in range(count):
            logits = self.hidden(step, cache)[:, -1, :] / 0.8
            kept, _ = torch.topk(logits, min(5, logits.size(-1)))
            logits[logits < kept[:, [-1]]] = -float("Inf")
            step = torch.argmax(F.softmax(logits, dim=-1), dim=-1, keepdim=True)
            ids = torch.cat((ids, step), dim=1)
        return ids

    def forward(self, x):
        ids = (x.abs() * 1000).long() % self.vocabulary
        logits = self.hidden(ids)
        shift_logits, shift_labels = logits[..., :-1, :].contiguous(), ids[..., 1:].contiguous()
        loss = F.cross_entropy(shift_logits.view(-1, self.vocabulary), shift_labels.view(-1), ignore_index=-1)
        if not self.training:
            return loss, logits, self.generate(ids, 4).double()
        return loss, logits
