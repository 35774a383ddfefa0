"""PyTorch's torch.utils: data, checkpoint, and tensorboard, which is imported by its name."""

from genesis.utils import checkpoint as checkpoint
from genesis.utils import data as data
