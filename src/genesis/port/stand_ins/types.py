"""torch.types: names for annotations."""

from __future__ import annotations

import builtins
from typing import Any

Number = builtins.int | builtins.float | builtins.bool
Device = Any
FileLike = Any
