"""torch.multiprocessing: Python's, with spawn(). Tensors in shared memory travel as its handles, others as copies."""

from __future__ import annotations

import torch.multiprocessing

_PYTORCHS = (
    "ProcessContext", "ProcessExitedException", "ProcessRaisedException", "SpawnContext", "spawn", "start_processes",
)  # fmt: skip

globals().update({name: getattr(torch.multiprocessing, name) for name in (*torch.multiprocessing.__all__, *_PYTORCHS)})
