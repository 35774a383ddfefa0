"""Processes that are forked from one that has imported what they need: there is one such server for a process's tests.

Genesis imports torch and its backend at their first use, so these are named too.
"""

from __future__ import annotations

import multiprocessing

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(
    [
        "torch", "genesis.backends.cpu", "genesis.cli.train", "genesis.data", "genesis.distributed", "genesis.models",
        "genesis.nn.parallel", "PIL.PngImagePlugin", "tests.distributed.programs",
    ]
)  # fmt: skip
