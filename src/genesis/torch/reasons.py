"""Why a convolution runs by itself, by what takes its result, and what would change that."""

from __future__ import annotations

LEFT_IN_INFERENCE = (
    "under inference_mode, on the CPU, only layers of a Sequential are fused: torch.no_grad() would fuse what follows"
)
NOTHING_FOLLOWS = "no batch norm or activation follows"
UNPLANNED = "its result is empty, or its picture padded on one side more"
SUMMED = "its sum with another convolution's result runs with that one: there is nothing left to fuse"
_RESHAPED = "its values are read in another shape: there is nothing to fuse"
_MIXED = "it reads other pixels or channels than its own: it is a pass by itself"
_WHY = {
    "conv2d": "the next convolution reads it as it is: there is nothing to fuse",
    "cat": "it copies it; a norm or activation of each part, before they are joined, would be fused",
    "mean": "it is read twice, as by squeeze-and-excite: for its mean, and scaled by what comes of that",
    "add": "the summand has another shape, dtype or order of memory",
    "mul": "the factor is no number nor one for each channel, or the weight has more numbers than the result",
    "dropout": "numbers are drawn for it; a dropout of 0 would let the convolution run with what follows",
    "group_norm": "its statistics need the whole result: see genesis.torch.group_norm",
    "layer_norm": "its statistics need all channels of a pixel: it is a pass by itself",
    **dict.fromkeys(
        ("flatten", "reshape", "view", "permute", "transpose", "split", "chunk", "unbind", "__getitem__", "unflatten",
         "squeeze", "unsqueeze", "expand"),
        _RESHAPED,
    ),
    **dict.fromkeys(
        ("max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "adaptive_max_pool2d", "interpolate", "pad",
         "pixel_shuffle", "softmax", "matmul", "stack"),
        _MIXED,
    ),
}  # fmt: skip


def nothing_follows(taker: str, waits_for_order: bool) -> str:
    """The reason of a convolution whose result goes to this function, "" for other code.

    waits_for_order: in channels-last its bias would run with it.
    """
    why = f"{NOTHING_FOLLOWS}, but {taker}" if taker else NOTHING_FOLLOWS
    if taker in _WHY:
        why += f": {_WHY[taker]}"
    return f"{why}; in torch.channels_last its bias would run with it" if waits_for_order else why
