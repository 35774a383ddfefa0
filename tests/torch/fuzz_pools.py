"""A block of the fuzzer of fused models that pools a convolution: python -m tests.torch.fuzz --block Pools."""

from __future__ import annotations

import random
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from tests.torch.fuzz_models import CHANNELS, Block
from tests.torch.fuzz_models import _halve as halve
from tests.torch.fuzz_models import _look as look


class Pools(Block):
    """Average pooling after a convolution, mostly of one tap, in all its settings; the result is blown up again."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        if rng.random() < 0.7:
            kernel, groups, step = (1, 1), rng.choice([1, 1, 2]), rng.choice([1, 1, 1, 2])
            self.c = nn.Conv2d(CHANNELS, CHANNELS, kernel, step, groups=groups, bias=rng.random() < 0.5)
        size = rng.choice([2, 2, (1, 2), (2, 1), [2], 3, 1])
        self.settings = {
            "kernel_size": size,
            "stride": rng.choice([None, None, None, 2, (3, 2), 1, []]),
            "padding": rng.choice([0, 0, 0, (0, 0), 1]) if size in (2, 3) else 0,
            "ceil_mode": rng.random() < 0.15,
            "count_include_pad": rng.random() < 0.5,
            "divisor_override": rng.choice([None, None, None, 3]),
        }
        self.layer = nn.AvgPool2d(**self.settings) if rng.random() < 0.5 else None
        self.before, self.after = rng.randrange(9), rng.randrange(6)
        if rng.random() < 0.15:
            rng.choice([self.c, self.layer or self.c]).register_forward_hook(rng.choice([halve, look]))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        y = self.c(x * 1)
        y = self._pool(self._scaled(y))
        if self.after < 3:
            y = self.r(self.b(y))
        elif self.after == 3:
            y = self.r(y)
        elif self.after == 4:
            y = self.b(y).mul_(0.5)
        return F.interpolate(y, x.shape[2:]) + x if y.dim() == 4 else x

    def _scaled(self, y: Tensor) -> Tensor:
        if self.before == 0:
            y.mul_(2)
        elif self.before == 1:
            y[:, 0] = 0
        elif self.before == 2:
            y = y * 0.5
        return y

    def _pool(self, y: Tensor) -> Tensor:
        pooled = F.avg_pool2d(y, **self.settings) if self.layer is None else self.layer(y)
        if self.before == 3:  # another use of what was pooled
            pooled = pooled + y.mean((2, 3), keepdim=True)
        elif self.before == 4:
            pooled = pooled + F.avg_pool2d(y, **self.settings).relu()
        elif self.before == 5:
            pooled.mul_(1.5)
        return pooled
