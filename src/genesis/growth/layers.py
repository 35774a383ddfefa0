"""The layers that growth adds: what begins as the identity, or as one more branch."""

from __future__ import annotations

from typing import TypedDict

import genesis
from genesis import nn
from genesis.autograd import no_grad
from genesis.dtypes import DType
from genesis.errors import GrowthError, describe
from genesis.growth.channel_map import Passage
from genesis.ndarray import Device
from genesis.nn.module import Module
from genesis.nn.modules.conv import AnyConv

ConvType = type[nn.Conv1d] | type[nn.Conv2d]
NormType = type[nn.BatchNorm1d] | type[nn.BatchNorm2d]
_CONVS: dict[int, tuple[ConvType, NormType]] = {3: (nn.Conv1d, nn.BatchNorm1d), 4: (nn.Conv2d, nn.BatchNorm2d)}


class Place(TypedDict):
    """Device and dtype in which a layer's parameters are created."""

    device: Device
    dtype: DType


def channel_dim(passage: Passage) -> int:
    """The dimension of a module's output that holds the channels: the one that the map follows, else the usual one."""
    found = [dim for dim, axis in enumerate(passage.output_layout) if axis is not None]
    ndim = len(passage.output_shape)
    if len(found) == 1:
        return found[0]
    return 1 if ndim == 4 else ndim - 1


def identity_block(op: str, passage: Passage, channels: int | None, kernel_size: int, where: Place) -> Module:
    """x + B·relu(norm(A·x)), where B·relu(norm(A·x)) is 0: the network computes what it did, and every weight learns.

    Half of the inner channels are copies of the other half, taken with the opposite sign. Their sum is 0 whatever
    they are; but each of them, and what takes it, gets a gradient of its own, and they part with the first step.
    """
    shape = passage.output_shape
    outer = shape[channel_dim(passage)]
    half = ((outer if channels is None else channels) + 1) // 2
    if half < 1 or kernel_size < 1 or kernel_size % 2 == 0:
        expected = "at least 1 channel, and an odd kernel size"
        raise GrowthError(describe(op, "channels, kernel_size", expected, (channels, kernel_size)))
    first: nn.Conv1d | nn.Conv2d | nn.Linear
    last: nn.Conv1d | nn.Conv2d | nn.Linear
    parts: list[Module]
    if channel_dim(passage) == 1 and len(shape) in _CONVS:
        conv, norm = _CONVS[len(shape)]
        first = conv(outer, 2 * half, kernel_size, padding=kernel_size // 2, bias=False, **where)
        last = conv(2 * half, outer, 1, **where)
        has_plane = any(size > 1 for size in shape[2:])
        parts = [first, norm(2 * half, **where), nn.ReLU(), last] if has_plane else [first, nn.ReLU(), last]
    elif channel_dim(passage) == len(shape) - 1:
        first, last = nn.Linear(outer, 2 * half, **where), nn.Linear(2 * half, outer, **where)
        parts = [first, nn.ReLU(), last]
    else:
        raise GrowthError(describe(op, "where", "a module that gives (N, C, …) or (…, C)", f"shape {shape}"))
    with no_grad():
        for parameter in first.parameters():
            parameter[half:] = parameter[:half].clone()
        last.weight[:, half:] = -last.weight[:, :half].clone()
        nn.init.zeros_(last.get_parameter("bias"))
    return nn.Residual(nn.Sequential(*parts))


def branch(
    op: str, module: Module, passage: Passage, channels: int | None, kernel_size: int, where: Place
) -> nn.Branch:
    """A convolution with batch norm and ReLU (or a linear layer with ReLU) beside module, its gate at 0.

    It gives `channels` channels, and where these are not the module's, a 1×1 projection, the identity as far as it
    goes, brings them to it.
    """
    given, made = passage.input_shape, passage.output_shape
    projection: nn.Conv1d | nn.Conv2d | nn.Linear | None = None
    parts: list[Module]
    if channel_dim(passage) == 1 and len(made) in _CONVS and len(given) == len(made):
        conv, norm = _CONVS[len(made)]
        inner = made[1] if channels is None else channels
        parts = [_parallel_conv(op, module, passage, inner, kernel_size, where)]
        if any(size > 1 for size in made[2:]):
            parts.append(norm(inner, **where))
        if inner != made[1]:
            projection = conv(inner, made[1], 1, bias=False, **where)
    elif channel_dim(passage) == len(made) - 1 and given[:-1] == made[:-1]:
        inner = made[-1] if channels is None else channels
        parts = [nn.Linear(given[-1], inner, **where)]
        if inner != made[-1]:
            projection = nn.Linear(inner, made[-1], bias=False, **where)
    else:
        raise GrowthError(describe(op, "where", "a module that gives (N, C, …) or (…, C)", f"{given} → {made}"))
    if projection is not None:
        with no_grad():
            eye = genesis.eye(made[channel_dim(passage)], inner, **where)
            projection.weight.copy_(eye.reshape(projection.weight.shape))
    return nn.Branch(nn.Sequential(*parts, nn.ReLU()), projection, **where)


def _parallel_conv(op: str, module: Module, passage: Passage, channels: int, kernel_size: int, where: Place) -> Module:
    """A convolution that gives planes of the module's size: with a convolution's own settings, or strided."""
    given, made = passage.input_shape, passage.output_shape
    if isinstance(module, AnyConv):
        settings = {
            name: getattr(module, name) for name in ("kernel_size", "stride", "padding", "dilation", "padding_mode")
        }
        if module.transposed:
            settings["output_padding"] = module.output_padding
        return type(module)(given[1], channels, bias=False, **settings, **where)
    strides = [-(-before // after) for before, after in zip(given[2:], made[2:], strict=True)]
    sizes = tuple(-(-before // stride) for before, stride in zip(given[2:], strides, strict=True))
    if sizes != made[2:]:
        expected = "a module whose planes are as large as its input's, or smaller by a stride"
        raise GrowthError(describe(op, "where", expected, f"{given} → {made}"))
    conv, _ = _CONVS[len(made)]
    return conv(given[1], channels, kernel_size, tuple(strides), padding=kernel_size // 2, bias=False, **where)
