"""The methods of Tensor that make new ones of its dtype, on its device: new_zeros, new_tensor, …"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from genesis import dtypes
from genesis.adapted import sizes_of
from genesis.autograd import Tensor, Variable
from genesis.draws import Draws
from genesis.dtypes import DType, Number
from genesis.errors import describe
from genesis.ndarray import Device, NDArray

if TYPE_CHECKING:
    import numpy.typing as npt

Place = Device | str | None


class NewTensors(Draws):
    """A part of Tensor: see the module's docstring."""

    def new_empty(
        self, *sizes: int | Sequence[int], size: Sequence[int] | None = None, dtype: DType | None = None,
        device: Place = None, requires_grad: bool = False, layout: str | None = None, pin_memory: bool = False,
    ) -> Tensor:  # fmt: skip
        """An uninitialised tensor of this shape, with self's dtype and device by default.

        Args:
            sizes: one by one or as a sequence.
            size: the same as a sequence, by keyword.
            dtype: of the elements.
            device: where it lies.
            requires_grad: whether gradients accumulate in it.
            layout: "strided", the only one that there is.
            pin_memory: in page-locked memory.
        Returns: a tensor of that shape.
        Raises: NotImplementedError: another layout.

        Example:
            >>> genesis.ones(2, dtype=genesis.float64).new_empty(3, 4).dtype
            genesis.float64
        """
        if layout not in (None, "strided"):
            raise NotImplementedError(describe("new_empty", "layout", "strided", layout))
        shape = tuple(sizes_of(sizes if size is None else (*sizes, size)))
        place = self.array.device if device is None else Device(device)
        array = NDArray.empty(shape, dtype or self.array.dtype, place)
        made = self._like(array.pin_memory() if pin_memory else array)
        return made.requires_grad_() if requires_grad else made

    def new_zeros(
        self, *sizes: int | Sequence[int], size: Sequence[int] | None = None, dtype: DType | None = None,
        device: Place = None, requires_grad: bool = False, layout: str | None = None, pin_memory: bool = False,
    ) -> Tensor:  # fmt: skip
        """Zeros of this shape, with self's dtype and device by default. See `genesis.Tensor.new_empty`."""
        made = self.new_empty(*sizes, size=size, dtype=dtype, device=device, layout=layout, pin_memory=pin_memory)
        made.array.copy_into(0)
        return made.requires_grad_() if requires_grad else made

    def new_ones(
        self, *sizes: int | Sequence[int], size: Sequence[int] | None = None, dtype: DType | None = None,
        device: Place = None, requires_grad: bool = False, layout: str | None = None, pin_memory: bool = False,
    ) -> Tensor:  # fmt: skip
        """Ones of this shape, with self's dtype and device by default. See `genesis.Tensor.new_empty`."""
        made = self.new_empty(*sizes, size=size, dtype=dtype, device=device, layout=layout, pin_memory=pin_memory)
        made.array.copy_into(1)
        return made.requires_grad_() if requires_grad else made

    def new_full(
        self, size: Sequence[int], fill_value: Number, dtype: DType | None = None, device: Place = None,
        requires_grad: bool = False, layout: str | None = None, pin_memory: bool = False,
    ) -> Tensor:  # fmt: skip
        """fill_value in this shape, with self's dtype and device by default. See `genesis.Tensor.new_empty`."""
        made = self.new_empty(size, dtype=dtype, device=device, layout=layout, pin_memory=pin_memory)
        made.fill_(fill_value)
        return made.requires_grad_() if requires_grad else made

    def new_tensor(
        self, data: npt.ArrayLike, *, dtype: DType | None = None, device: Place = None, requires_grad: bool = False
    ) -> Tensor:  # fmt: skip
        """A tensor of data, with self's dtype and device by default.

        Args:
            data: as in `genesis.tensor`.
            dtype, device, requires_grad: as in `genesis.Tensor.new_empty`.
        Returns: the shape of data.

        Example:
            >>> genesis.ones(1, dtype=genesis.float64).new_tensor([1, 2])
            tensor([1., 2.], dtype=genesis.float64)
        """
        values = data.array.numpy_values() if isinstance(data, Variable) else np.array(data)
        source = NDArray.from_numpy(np.asarray(values, order="C"), dtypes.of_array("new_tensor", values))
        place = self.array.device if device is None else Device(device)
        array = source.to(dtype or self.array.dtype).to_device(place)
        made = self._like(array.clone() if array is source and isinstance(data, Variable) else array)
        return made.requires_grad_() if requires_grad else made
