"""Sequence classification with an LSTM and packed sequences."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence

torch.manual_seed(0)
sequences = [torch.randn(length, 5) for length in (7, 5, 3)]
labels, lengths = torch.tensor([0, 1, 1]), torch.tensor([7, 5, 3])
rnn, head = nn.LSTM(5, 8, batch_first=True, bidirectional=True), nn.Linear(16, 2)
optimizer = torch.optim.SGD([*rnn.parameters(), *head.parameters()], lr=0.1, momentum=0.9)
losses = []
for step in range(6):
    packed = pack_padded_sequence(pad_sequence(sequences, batch_first=True), lengths, batch_first=True)
    _, (hidden, _) = rnn(packed)
    loss = nn.CrossEntropyLoss()(head(torch.cat((hidden[-2], hidden[-1]), dim=1)), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
