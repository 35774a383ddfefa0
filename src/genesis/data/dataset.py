"""A data set of tensors in memory."""

from __future__ import annotations

from torch.utils.data import Dataset

from genesis.errors import DTypeError, ShapeError, describe
from genesis.tensor import Tensor


class TensorDataset(Dataset):
    """A data set in memory: sample i is the tuple of the tensors' slices at i along dimension 0.

    Args:
        tensors: of any shapes and dtypes, with one first size: the number of samples.
    Raises: ShapeError: the tensors differ in their first size, or have none; DTypeError: an argument is not a tensor.
    Example:
        >>> from genesis.data import TensorDataset
        >>> samples = TensorDataset(genesis.arange(6.0).reshape(3, 2), genesis.arange(3))
        >>> len(samples), samples[1]
        (3, (tensor([2., 3.]), tensor(1)))
    """

    def __init__(self, *tensors: Tensor) -> None:
        if not tensors:
            raise ValueError(describe("TensorDataset", "tensors", "at least one tensor", "none"))
        for index, tensor in enumerate(tensors):
            if not isinstance(tensor, Tensor):
                raise DTypeError(describe("TensorDataset", f"tensors[{index}]", "a Tensor", type(tensor).__name__))
            if tensor.shape[:1] != tensors[0].shape[:1] or not tensor.shape:
                expected = f"the first size of tensors[0], of shape {tensors[0].shape}"
                raise ShapeError(describe("TensorDataset", f"tensors[{index}]", expected, f"shape {tensor.shape}"))
        self.tensors = tensors

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return tuple([tensor[index] for tensor in self.tensors])

    def __len__(self) -> int:
        return len(self.tensors[0])
