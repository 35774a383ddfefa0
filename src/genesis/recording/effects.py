"""Which operands an op of the contract changes in place."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

from genesis.backends import contract

_RUNNING = ("running_mean", "running_var", "count")
_CHANGED = {
    "copy_into": ("target",),
    "add_into": ("target",),
    "put": ("x",),
    "scale_into": ("arrays",),
    "unscale_into": ("arrays",),
    "batch_norm": _RUNNING,
    "conv_bn_relu": _RUNNING,
    "conv_bn_begin": _RUNNING,
    "sgd_step": ("params", "buffers"),
    "adam_step": ("params", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs"),
}
_SIGNATURES = {op: inspect.signature(getattr(contract, op)) for op in _CHANGED}


def changed_by(op: str, args: Sequence[object], kwargs: Mapping[str, object]) -> list[object]:
    """The arguments whose memory a call changes; running statistics only in training."""
    if op not in _CHANGED:
        return []
    given = _SIGNATURES[op].bind(*args, **kwargs).arguments
    return [given.get(name) for name in _CHANGED[op]] if given.get("training", True) else []
