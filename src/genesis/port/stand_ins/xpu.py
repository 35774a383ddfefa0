"""torch.xpu: Intel's GPUs, which are not here."""

from __future__ import annotations

from genesis.port.stand_ins.mps import device_count as device_count
from genesis.port.stand_ins.mps import is_available as is_available
