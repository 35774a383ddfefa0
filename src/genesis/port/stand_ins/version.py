"""torch.version, without CUDA or ROCm of PyTorch's own."""

import torch as _torch

__version__ = str(_torch.__version__)
cuda = hip = xpu = None
debug = False
git_version = "unknown"
