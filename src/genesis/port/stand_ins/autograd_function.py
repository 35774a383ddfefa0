"""torch.autograd.function: what genesis.autograd.function leaves out."""

from __future__ import annotations

from genesis.autograd.once import once_differentiable as once_differentiable
