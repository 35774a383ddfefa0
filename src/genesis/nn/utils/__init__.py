"""Helpers of training loops: gradient clipping, sequences of several lengths."""

from genesis.nn.utils import rnn as rnn
from genesis.nn.utils.clip_grad import clip_grad_norm_ as clip_grad_norm_
from genesis.nn.utils.clip_grad import clip_grad_value_ as clip_grad_value_
