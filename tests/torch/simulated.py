"""Tensors in host memory go to the CUDA backend, whose device is simulated."""

from __future__ import annotations

from genesis.torch import bridge, conv_act, entries, ops

PATCHES: list[tuple[object, str, object]] = [
    *[(module, "call", bridge.call_cuda) for module in (conv_act, entries, ops)],
    (ops, "call_arrays", bridge.call_cuda_arrays),
    (bridge, "prepare", bridge.prepare_cuda),
    (bridge, "prepare_inference", bridge.prepare_inference_cuda),
    (bridge, "prepare_activation", bridge.prepare_activation_cuda),
    (bridge, "activates", lambda x: True),
    (bridge, "trains", lambda x: True),
    (bridge, "keeps_folds", lambda x: False),
]
"""(where, name, what stands there instead); beside them the setting cuda="simulated"."""
