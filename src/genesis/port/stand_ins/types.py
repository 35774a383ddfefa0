"""torch.types: names for annotations."""

from __future__ import annotations

import builtins
import os
from typing import IO

from genesis.ndarray import Device as _Device

Number = builtins.int | builtins.float | builtins.bool
Device = _Device | builtins.str | builtins.int | None
FileLike = builtins.str | os.PathLike[builtins.str] | IO[builtins.bytes]
