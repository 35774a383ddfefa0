"""The whole functional layer under PyTorch's name, and what is made of modules."""

from genesis.functional import *  # noqa: F403
from genesis.nn.attention_function import multi_head_attention_forward as multi_head_attention_forward
