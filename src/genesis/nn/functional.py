"""The whole functional layer under PyTorch's name."""

from genesis.functional import *  # noqa: F403
