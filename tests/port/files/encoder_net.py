"""A bidirectional text encoder with masked tokens, in the style of BERT's public code."""

# ruff: noqa: UP006, UP035, UP045 (as people write it)

import math
from dataclasses import dataclass
from typing import Optional, Tuple

import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn import CrossEntropyLoss


@dataclass
class Output:
    loss: Optional[torch.FloatTensor] = None
    logits: torch.FloatTensor = None
    hidden_states: Optional[Tuple[torch.FloatTensor, ...]] = None


class Embeddings(nn.Module):
    def __init__(self, vocabulary, width, longest):
        super().__init__()
        self.word_embeddings = nn.Embedding(vocabulary, width, padding_idx=0)
        self.position_embeddings = nn.Embedding(longest, width)
        self.token_type_embeddings = nn.Embedding(2, width)
        self.LayerNorm = nn.LayerNorm(width, eps=1e-12)
        self.register_buffer("position_ids", torch.arange(longest).expand((1, -1)), persistent=False)
        self.register_buffer(
            "token_type_ids", torch.zeros(self.position_ids.size(), dtype=torch.long), persistent=False
        )

    def forward(self, input_ids):
        batch, length = input_ids.size()
        types = self.token_type_ids[:, :length].expand(batch, length)
        embeddings = self.word_embeddings(input_ids) + self.token_type_embeddings(types)
        embeddings += self.position_embeddings(self.position_ids[:, :length])
        return self.LayerNorm(embeddings)


class SelfAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.num_attention_heads, self.attention_head_size = heads, width // heads
        self.query, self.key, self.value, self.dense = (nn.Linear(width, width) for _ in range(4))
        self.distance_embedding = nn.Embedding(2 * 16 - 1, self.attention_head_size)

    def transpose_for_scores(self, x: torch.Tensor) -> torch.Tensor:
        new_x_shape = x.size()[:-1] + (self.num_attention_heads, self.attention_head_size)
        return x.view(new_x_shape).permute(0, 2, 1, 3)

    def forward(self, hidden_states, attention_mask=None, head_mask=None):
        query, key, value = (self.transpose_for_scores(f(hidden_states)) for f in (self.query, self.key, self.value))
        scores = torch.matmul(query, key.transpose(-1, -2))
        length = query.shape[2]
        left = torch.arange(length, dtype=torch.long, device=query.device).view(-1, 1)
        distance = left - torch.arange(length, dtype=torch.long, device=query.device).view(1, -1)
        positional = self.distance_embedding(distance + 15).to(dtype=query.dtype)
        scores = scores + torch.einsum("bhld,lrd->bhlr", query, positional)
        scores = scores / math.sqrt(self.attention_head_size)
        if attention_mask is not None:
            scores = scores + attention_mask
        context = torch.matmul(nn.functional.softmax(scores, dim=-1), value).permute(0, 2, 1, 3).contiguous()
        return self.dense(context.view(context.size()[:-2] + (-1,)))


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention = SelfAttention(width, heads)
        self.norms = nn.ModuleDict({"first": nn.LayerNorm(width), "second": nn.LayerNorm(width)})
        self.intermediate = nn.Linear(width, 4 * width)
        self.output = nn.Linear(4 * width, width)
        self.act = {"gelu": nn.functional.gelu, "relu": nn.functional.relu}["gelu"]

    def forward(self, x, mask=None):
        x = self.norms["first"](x + self.attention(x, mask))
        chunks = [self.output(self.act(self.intermediate(chunk))) for chunk in x.chunk(2, dim=1)]
        return self.norms["second"](x + torch.cat(chunks, dim=1))


class EncoderNet(nn.Module):
    def __init__(self, vocabulary=50, width=32, heads=4, layers=2, longest=16):
        super().__init__()
        self.vocabulary = vocabulary
        self.embeddings = Embeddings(vocabulary, width, longest)
        self.layer = nn.ModuleList([Layer(width, heads) for _ in range(layers)])
        self.pooler = nn.Sequential(nn.Linear(width, width), nn.Tanh())
        self.decoder = nn.Linear(width, vocabulary, bias=False)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.apply(self._init_weights)
        self.decoder.weight = self.embeddings.word_embeddings.weight  # tied

    @torch.no_grad()
    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            module.weight.data.normal_(mean=0.0, std=0.02)
            if module.bias is not None:
                module.bias.data.zero_()
        elif isinstance(module, nn.Embedding):
            module.weight.data.normal_(mean=0.0, std=0.02)
            if module.padding_idx is not None:
                module.weight.data[module.padding_idx].zero_()
        elif isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)

    @property
    def dtype(self):
        return next(p.dtype for p in self.parameters() if p.is_floating_point())

    def forward(self, x):
        ids = (x.abs() * 1000).long() % self.vocabulary
        mask = ids.ne(0).long()
        labels = ids.masked_fill(torch.arange(ids.shape[1], device=ids.device) % 3 == 0, -100)
        extended = (1.0 - mask[:, None, None, :].to(dtype=self.dtype)) * torch.finfo(self.dtype).min
        hidden, every = self.embeddings(ids), ()
        for i, layer in enumerate(self.layer):
            every = every + (hidden,)
            if i == 1 and self.training:
                hidden = torch.utils.checkpoint.checkpoint(layer, hidden, extended, use_reentrant=False)
            else:
                hidden = layer(hidden, extended)
        logits = self.decoder(hidden) + self.bias
        loss = CrossEntropyLoss()(logits.view(-1, self.vocabulary), labels.view(-1))
        mean = (hidden * mask.unsqueeze(-1)).sum(1) / torch.clamp(mask.sum(1, keepdim=True), min=1e-9)
        output = Output(loss=loss, logits=logits, hidden_states=every)
        return output.loss, output.logits, self.pooler(hidden[:, 0]), nn.functional.normalize(mean, p=2, dim=1)
