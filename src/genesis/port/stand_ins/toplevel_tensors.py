"""torch: functions that make or change tensors, and that Genesis has as methods, or under other arguments."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import numpy as np
import torch

import genesis
from genesis import Tensor
from genesis.creation import DeviceLike
from genesis.distributions.discrete import draw_poisson
from genesis.dtypes import DType, Number
from genesis.errors import describe
from genesis.functional.keywords import also
from genesis.generator import drawing
from genesis.nn import functional as F
from genesis.pinning import placed

if TYPE_CHECKING:
    from typing_extensions import Buffer

# --- functions that torch.nn.functional has under the same name, with the same arguments ------------------------------

_ALIKE = (
    "adaptive_avg_pool1d", "adaptive_max_pool1d", "avg_pool1d", "bilinear", "celu", "celu_",
    "channel_shuffle", "conv1d", "conv2d", "conv_transpose1d", "conv_transpose2d", "cosine_similarity",
    "group_norm", "hardshrink", "layer_norm", "max_pool1d", "max_pool2d", "pairwise_distance",
    "pixel_shuffle", "pixel_unshuffle", "prelu", "rms_norm", "rrelu", "rrelu_", "selu", "selu_", "threshold",
    "threshold_",
)  # fmt: skip
globals().update({name: getattr(F, name) for name in _ALIKE})
_DROPOUTS = {name: getattr(F, name) for name in ("alpha_dropout", "dropout", "feature_alpha_dropout")}
_DROPOUTS["feature_dropout"] = F.dropout2d
for _name, _dropout in _DROPOUTS.items():
    globals()[_name] = also(train="training")(_dropout)
    globals()[f"{_name}_"] = functools.partial(globals()[_name], inplace=True)


# --- methods as functions ---------------------------------------------------------------------------------------------

_METHODS = (
    "detach", "get_device", "is_conj", "is_inference", "is_neg", "is_same_size", "is_signed",
)  # fmt: skip
_IN_PLACE = [name for name in dir(torch) if name.endswith("_") and name[0] != "_" and hasattr(Tensor, name)]


def _method(name: str) -> object:
    """A method as a function, whose first argument is called input."""
    method = getattr(Tensor, name)

    def call(input: Tensor, *args: object, **kwargs: object) -> object:
        return method(input, *args, **kwargs)

    call.__name__ = call.__qualname__ = method.__name__
    call.__doc__ = method.__doc__
    return call


globals().update({name: _method(name) for name in (*_METHODS, *_IN_PLACE)})


def fill(input: Tensor, value: Tensor | Number) -> Tensor:
    """A tensor of input's shape and dtype, filled with value."""
    return input.clone().fill_(value)


# --- functions whose arguments are in another order -------------------------------------------------------------------


def embedding(
    weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Tensor:  # fmt: skip
    """The rows of weight at indices; a padding_idx below 0 is none. See F.embedding."""
    padding = None if padding_idx < 0 else padding_idx
    return F.embedding(indices, weight, padding, scale_grad_by_freq=scale_grad_by_freq, sparse=sparse)


# --- new tensors ------------------------------------------------------------------------------------------------------


def asarray(
    obj: object, *, dtype: DType | None = None, device: DeviceLike = None, copy: bool | None = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """A tensor of anything: on obj's memory if copy is not True and dtype and device allow it."""
    if isinstance(obj, Tensor):
        source = obj if requires_grad else obj.detach()
    elif hasattr(obj, "__dlpack__") and not isinstance(obj, np.ndarray):
        source = genesis.from_dlpack(obj)
    else:
        source = genesis.as_tensor(obj)  # type: ignore[arg-type]
    is_shared = isinstance(obj, np.ndarray) or hasattr(obj, "__dlpack__")
    made = source.to(device=device or source.device, dtype=dtype or source.dtype)
    if copy is False and (not is_shared or made.data_ptr() != source.data_ptr()):
        raise ValueError(describe("asarray", "copy", "None or True, as a copy is needed", copy))
    if copy and is_shared and made.data_ptr() == source.data_ptr():
        made = made.clone()
    return made.requires_grad_() if requires_grad and made.is_leaf else made


@placed
def range(
    start: Number, end: Number | None = None, step: Number = 1, *, dtype: DType | None = None,
    device: DeviceLike = None, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """start, start + step, … up to end, which is included."""
    start, end = (0, start) if end is None else (start, end)
    count = math.floor((end - start) / step) + 1
    kind = dtype or genesis.get_default_dtype()
    made = genesis.arange(count, dtype=genesis.float64, device=device) * step + start
    return made.to(kind).requires_grad_(requires_grad)


def poisson(input: Tensor, generator: genesis.Generator | None = None) -> Tensor:
    """Draws from Poisson distributions at the rates that input has."""
    with drawing("poisson", generator, input.device):
        return draw_poisson(input.detach().double()).to(input.dtype)


def frombuffer(
    buffer: Buffer, *, dtype: DType, count: int = -1, offset: int = 0, requires_grad: bool = False
) -> Tensor:  # fmt: skip
    """A vector on the memory of a buffer, as numpy.frombuffer makes one."""
    found = np.frombuffer(memoryview(buffer), genesis.empty(0, dtype=dtype).numpy().dtype, count, offset)
    if not found.flags.writeable:
        found = found.copy()  # PyTorch shares what must not be written, and warns
    made: Tensor = genesis.from_numpy(found)
    return made.requires_grad_() if requires_grad else made


def _shape_as_tensor(input: Tensor) -> Tensor:
    """The shape, as a vector."""
    return genesis.tensor(list(input.shape), dtype=genesis.int64)
