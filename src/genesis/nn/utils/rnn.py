"""Batches of sequences of several lengths: padded, or packed without padding."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from genesis import functional as F
from genesis.creation import full, tensor
from genesis.dtypes import DType, Number, int64
from genesis.errors import DTypeError, ShapeError, describe
from genesis.ndarray import Device
from genesis.tensor import Tensor


class PackedSequence(NamedTuple):
    """Sequences without padding, one time step after the other, as recurrent layers take them.

    Attributes:
        data: (Σ lengths, …): of each time step the elements of all sequences that are so long, the longest first.
        batch_sizes: (T,), int64 on the CPU: how many sequences have each time step.
        sorted_indices: (N,): which sequence of the batch stands at each place; None: as they came.
        unsorted_indices: the inverse of sorted_indices.

    Example:
        >>> rnn = genesis.nn.utils.rnn
        >>> packed = rnn.pack_sequence([genesis.tensor([1, 2, 3]), genesis.tensor([4, 5])])
        >>> packed.data.tolist(), packed.batch_sizes.tolist()
        ([1, 4, 2, 5, 3], [2, 2, 1])
    """

    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None = None
    unsorted_indices: Tensor | None = None

    def to(self, *args: DType | Device | str, non_blocking: bool = False) -> PackedSequence:
        """The data cast or moved, and the indices moved. See `genesis.Tensor.to`."""
        data = self.data.to(*args, non_blocking=non_blocking)
        indices = [None if index is None else index.to(data.device) for index in self[2:]]
        return PackedSequence(data, self.batch_sizes, *indices)

    @property
    def is_cuda(self) -> bool:
        """Whether the data lie on a CUDA device.

        Example:
            >>> genesis.nn.utils.rnn.pack_sequence([genesis.ones(2)]).is_cuda
            False
        """
        return self.data.device.type == "cuda"


def pack_padded_sequence(
    input: Tensor, lengths: Tensor | Sequence[int], batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """Take the padding out of a batch of sequences.

    Args:
        input: (T, N, …), or (N, T, …) with batch_first, any dtype.
        lengths: (N,), integers on the CPU: of each sequence, from 1 to T.
        batch_first: see input.
        enforce_sorted: the sequences come by descending length; else they are sorted here.
    Returns: the packed sequences; their data share no memory with input.
    Raises: ShapeError: other numbers of sequences or lengths. ValueError: the lengths are not sorted.

    Example:
        >>> x = genesis.tensor([[1, 2, 0], [3, 4, 5]])
        >>> packed = genesis.nn.utils.rnn.pack_padded_sequence(x, [2, 3], batch_first=True, enforce_sorted=False)
        >>> packed.data.tolist(), packed.sorted_indices.tolist()
        ([3, 1, 4, 2, 5], [1, 0])
    """
    op = "pack_padded_sequence"
    if not isinstance(input, Tensor):
        raise DTypeError(describe(op, "input", "a Tensor", type(input).__name__))
    if input.ndim < 2:
        raise ShapeError(describe(op, "input", "at least 2 dimensions", f"shape {input.shape}"))
    steps_first = F.transpose(input, 0, 1) if batch_first else input
    longest, count = steps_first.shape[:2]
    sizes = [int(size) for size in (lengths.tolist() if isinstance(lengths, Tensor) else lengths)]
    if len(sizes) != count or count == 0:
        raise ShapeError(describe(op, "lengths", f"one for each of {count} sequences", f"{len(sizes)} lengths"))
    if min(sizes) < 1 or max(sizes) > longest:
        raise ShapeError(describe(op, "lengths", f"lengths from 1 to {longest}", sizes))
    order = list(range(count))
    if not enforce_sorted:
        order.sort(key=lambda index: -sizes[index])
    elif any(first < second for first, second in itertools.pairwise(sizes)):
        raise ValueError(describe(op, "lengths", "descending lengths, or enforce_sorted=False", sizes))
    batch_sizes = [sum(size > step for size in sizes) for step in range(max(sizes))]
    rows = [step * count + order[place] for step, size in enumerate(batch_sizes) for place in range(size)]
    flat = F.reshape(steps_first, (longest * count, *steps_first.shape[2:]))
    data = F.index_select(flat, 0, _indices(rows, input.device))
    if enforce_sorted:
        return PackedSequence(data, tensor(batch_sizes, device="cpu"))
    sorted_indices = _indices(order, input.device)
    return PackedSequence(data, tensor(batch_sizes, device="cpu"), sorted_indices, invert_permutation(sorted_indices))


def pad_packed_sequence(
    sequence: PackedSequence, batch_first: bool = False, padding_value: float = 0.0, total_length: int | None = None
) -> tuple[Tensor, Tensor]:
    """Undo pack_padded_sequence.

    Args:
        sequence: packed sequences.
        batch_first: whether the batch comes before the time.
        padding_value: what stands behind shorter sequences.
        total_length: length of the result; that of the longest sequence if None.
    Returns: (T, N, …), or (N, T, …) with batch_first, and the lengths, (N,), int64.
    Raises: ShapeError: total_length is below the longest length.

    Example:
        >>> rnn = genesis.nn.utils.rnn
        >>> packed = rnn.pack_sequence([genesis.ones(2), genesis.ones(1)])
        >>> x, lengths = rnn.pad_packed_sequence(packed, batch_first=True)
        >>> x.tolist(), lengths.tolist()
        ([[1.0, 1.0], [1.0, 0.0]], [2, 1])
    """
    batch_sizes: list[int] = sequence.batch_sizes.tolist()
    longest, count = len(batch_sizes), batch_sizes[0]
    total = longest if total_length is None else total_length
    if total < longest:
        expected = f"at least {longest}, the longest length"
        raise ShapeError(describe("pad_packed_sequence", "total_length", expected, total_length))
    lengths = [sum(size > place for size in batch_sizes) for place in range(count)]
    order = list(range(count)) if sequence.unsorted_indices is None else sequence.unsorted_indices.tolist()
    starts = [sum(batch_sizes[:step]) for step in range(longest)]
    data = sequence.data
    padding = data.shape[0]  # the row behind them all
    rows = [starts[step] + place if step < lengths[place] else padding for step in range(total) for place in order]
    last = full((1, *data.shape[1:]), padding_value, dtype=data.dtype, device=data.device)
    padded = F.index_select(F.cat([data, last]), 0, _indices(rows, data.device))
    padded = F.reshape(padded, (total, count, *data.shape[1:]))
    in_order = tensor([lengths[place] for place in order], device="cpu")
    return F.transpose(padded, 0, 1) if batch_first else padded, in_order


def pad_sequence(
    sequences: Iterable[Tensor], batch_first: bool = False, padding_value: Number = 0.0, padding_side: str = "right"
) -> Tensor:
    """Stack sequences of several lengths, padded to the longest.

    Args:
        sequences: of shapes (L, …) that differ only in L, of one dtype.
        batch_first: whether the batch comes before the time.
        padding_value: what stands behind shorter sequences.
        padding_side: "right", or "left" to put it before them.
    Returns: (T, N, …), or (N, T, …) with batch_first.
    Raises: ShapeError: no sequence; other shapes. ValueError: another side.

    Example:
        >>> genesis.nn.utils.rnn.pad_sequence([genesis.ones(1), genesis.ones(2)], batch_first=True).tolist()
        [[1.0, 0.0], [1.0, 1.0]]
    """
    op = "pad_sequence"
    if padding_side not in ("right", "left"):
        raise ValueError(describe(op, "padding_side", '"right" or "left"', repr(padding_side)))
    listed = list(sequences)
    if not listed:
        raise ShapeError(describe(op, "sequences", "at least one", "none"))
    for index, sequence in enumerate(listed):
        if sequence.ndim < 1 or sequence.shape[1:] != listed[0].shape[1:]:
            expected = f"shape (L, …) as the first, {listed[0].shape}"
            raise ShapeError(describe(op, f"sequences[{index}]", expected, sequence.shape))
    longest = max(sequence.shape[0] for sequence in listed)
    padded = []
    for sequence in listed:
        missing = longest - sequence.shape[0]
        sides = (0, missing) if padding_side == "right" else (missing, 0)
        padded.append(F.pad(sequence, (0, 0) * (sequence.ndim - 1) + sides, value=padding_value))
    return F.stack(padded, 0 if batch_first else 1)


def unpad_sequence(padded_sequences: Tensor, lengths: Tensor, batch_first: bool = False) -> list[Tensor]:
    """Undo pad_sequence.

    Args:
        padded_sequences: (T, N, …), or (N, T, …) with batch_first.
        lengths: (N,), integers: of each sequence.
        batch_first: see padded_sequences.
    Returns: N sequences of shapes (L, …), views.

    Example:
        >>> padded = genesis.tensor([[1, 0], [2, 3]])
        >>> [x.tolist() for x in genesis.nn.utils.rnn.unpad_sequence(padded, genesis.tensor([1, 2]), batch_first=True)]
        [[1], [2, 3]]
    """
    rows = F.unbind(padded_sequences, 0 if batch_first else 1)
    return [F.narrow(row, 0, 0, int(length)) for row, length in zip(rows, lengths.tolist(), strict=True)]


def pack_sequence(sequences: Sequence[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Pack sequences of several lengths.

    Args:
        sequences: of shapes (L, …) that differ only in L, of one dtype.
        enforce_sorted: as in `genesis.nn.utils.rnn.pack_padded_sequence`.
    Returns: the packed sequences.
    Raises: see pack_padded_sequence.

    Example:
        >>> genesis.nn.utils.rnn.pack_sequence([genesis.tensor([1, 2]), genesis.tensor([3])]).data.tolist()
        [1, 3, 2]
    """
    lengths = [sequence.shape[0] for sequence in sequences]
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """Undo pack_sequence.

    Args:
        packed_sequences: packed sequences.
    Returns: sequences of shapes (L, …).

    Example:
        >>> rnn = genesis.nn.utils.rnn
        >>> [x.tolist() for x in rnn.unpack_sequence(rnn.pack_sequence([genesis.tensor([1, 2]), genesis.tensor([3])]))]
        [[1, 2], [3]]
    """
    padded, lengths = pad_packed_sequence(packed_sequences, batch_first=True)
    return unpad_sequence(padded, lengths, batch_first=True)


def invert_permutation(permutation: Tensor | None) -> Tensor | None:
    """The permutation that undoes another one.

    Args:
        permutation: (N,), int64, or None.
    Returns: (N,), int64, or None.

    Example:
        >>> genesis.nn.utils.rnn.invert_permutation(genesis.tensor([2, 0, 1])).tolist()
        [1, 2, 0]
    """
    return None if permutation is None else F.argsort(permutation)


def _indices(values: Sequence[int], device: Device) -> Tensor:
    return tensor(values, dtype=int64, device=device)
