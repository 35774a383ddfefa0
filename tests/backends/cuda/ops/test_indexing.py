"""Selection and arrangement beside the CPU backend: dtypes, strides, empty and 0-d arrays, repeats, bad indices."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from genesis import backends
from genesis.backends.backend import Backend
from genesis.backends.cuda.ops.indexing import launch as indexing

DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool]
SUMMED = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int16, torch.uint8]
CPU = backends.get("cpu")


def sample(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    x = torch.randn(shape, generator=torch.manual_seed(sum(shape))) * 10
    return x > 0 if dtype is torch.bool else x.abs().to(dtype) if dtype is torch.uint8 else x.to(dtype)


class Beside:
    """Runs an op of both backends on the same values and compares what comes out."""

    def __init__(self, cuda: Backend, put: Any, get: Any) -> None:
        self.cuda, self.put, self.get = cuda, put, get

    def given(self, value: Any) -> Any:
        return type(value)(map(self.given, value)) if isinstance(value, list | tuple) else self.put(value)

    def __call__(self, op: str, *args: Any, tolerance: float = 0.0) -> None:
        expected = getattr(CPU, op)(*args)
        result = getattr(self.cuda, op)(*map(self.given, args))
        pairs = zip(result, expected, strict=True) if isinstance(expected, tuple) else [(result, expected)]
        for mine, other in pairs:
            assert mine.shape == tuple(other.shape)
            assert mine.dtype.name == str(other.dtype).removeprefix("torch.")
            torch.testing.assert_close(self.get(mine), other, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.fixture
def beside(cuda: Backend, put: Any, get: Any) -> Beside:
    return Beside(cuda, put, get)


# --- joining, turning, triangles ------------------------------------------------------------------------------------
@pytest.mark.parametrize("count", [2, 5, 8, 9])
def test_cat_of_rows(cuda: Backend, put: Any, get: Any, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to eight arrays whose rows come side by side are joined by one launch, more by one launch each."""
    launched: list[Any] = []
    launch = indexing.launch
    monkeypatch.setattr(indexing, "launch", lambda *args, **options: (launched.append(args), launch(*args, **options)))
    arrays = [sample(2, 3 + 20 * i, 4, 5).to(memory_format=torch.channels_last) for i in range(count)]
    for dim, joined in ((1, arrays), (2, [arrays[0]] * count)):
        assert torch.equal(get(cuda.cat([put(x) for x in joined], dim)), torch.cat(joined, dim))
    assert len(launched) == (2 if count <= 8 else 0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cat(beside: Beside, dtype: torch.dtype) -> None:
    x, y = sample(2, 3, 4, dtype=dtype), sample(2, 5, 4, dtype=dtype)
    beside("cat", [x, y, x], 1)
    beside("cat", [x.transpose(0, 1), sample(4, 3, 2, dtype=dtype).permute(1, 2, 0)], 2)


def test_cat_of_empty(beside: Beside) -> None:
    beside("cat", [sample(2, 3), sample(2, 0), sample(0), sample(2, 1)], 1)
    beside("cat", [sample(0, 3), sample(0, 3)], 0)


def test_cat_keeps_channels_last(cuda: Backend, put: Any) -> None:
    x = sample(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert cuda.cat([put(x), put(x)], 1).strides == (120, 1, 30, 6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_flip(beside: Beside, dtype: torch.dtype) -> None:
    x = sample(3, 4, 5, dtype=dtype)
    for dims in ((0,), (1, 2), (0, 1, 2), ()):
        beside("flip", x, dims)
    beside("flip", x.transpose(0, 2)[::2], (1,))
    beside("flip", x[:0], (0, 1))


@pytest.mark.parametrize("op", ["tril", "triu"])
def test_triangles(beside: Beside, op: str) -> None:
    for dtype in DTYPES:
        beside(op, sample(2, 4, 5, dtype=dtype), 0)
    for diagonal in (-6, -2, 1, 3, 9):
        beside(op, sample(5, 4).t(), diagonal)
    beside(op, sample(0, 4), 0)


# --- padding --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "pads", [((0, 0), (1, 2)), ((2, 0), (0, 3)), ((-1, 2), (3, -2)), ((-1, -1), (0, 0)), ((0, -3), (1, 1))]
)
def test_pad_constant(beside: Beside, pads: Any) -> None:
    beside("pad", sample(3, 5), pads, "constant", 1.5)
    beside("pad", sample(5, 3, dtype=torch.bfloat16).t(), pads, "constant", -1.0)
    shape = tuple(a + size + b for size, (a, b) in zip((3, 5), pads, strict=True))
    beside("pad_backward", sample(*shape), (3, 5), pads, "constant")


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_pad_by_repeating(beside: Beside, mode: str) -> None:
    pads = ((0, 0), (2, 1), (0, 3))
    beside("pad", sample(2, 3, 4), pads, mode, 0)
    beside("pad", sample(4, 3, 2, dtype=torch.float16).permute(2, 1, 0), pads, mode, 0)
    beside("pad", sample(3, 5), ((0, 0), (-2, 1)), mode, 0)
    beside("pad_backward", sample(2, 6, 7), (2, 3, 4), pads, mode, tolerance=1e-6)
    beside("pad_backward", sample(2, 6, 7, dtype=torch.bfloat16), (2, 3, 4), pads, mode, tolerance=1e-1)


# --- along one dimension --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_index_select(beside: Beside, dtype: torch.dtype, dim: int) -> None:
    index = torch.tensor([1, 0, 2, 1, 1])
    beside("index_select", sample(3, 4, 5, dtype=dtype), dim, index)
    beside("index_select", sample(5, 3, 4, dtype=dtype).transpose(0, 2), dim, index[::2])
    beside("index_select", sample(3, 4, 5, dtype=dtype), dim, index[:0])


def test_index_select_of_one_and_of_many(beside: Beside) -> None:
    beside("index_select", torch.tensor(3.0), 0, torch.tensor([0]))
    beside("index_select", sample(5), 0, torch.tensor([4, 0]))
    beside("index_select", sample(40, 1500), 0, torch.arange(39, -1, -1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_index_select_each(beside: Beside, dtype: torch.dtype) -> None:
    """Of every order of memory, crooked and empty ones, along each dimension; with factors and without."""
    index = torch.tensor([2, 0, 1, 1, 2, 0, 0])
    x = sample(3, 4, 5, dtype=dtype)
    pixels = sample(2, 3, 4, 5, dtype=dtype).to(memory_format=torch.channels_last)
    arrays = [x, x[:, :3], x.permute(1, 0, 2), pixels, sample(3, dtype=dtype), sample(3, 0, dtype=dtype)]
    arrays += [sample(900, 3, dtype=dtype), x[:, 1:2].permute(1, 2, 0), sample(3, 1, 1, dtype=dtype)]
    dims = [0, 1, 1, 1, 0, 0, 1, 2, 0]
    factors = [None if i % 3 == 0 else sample(7, dtype=dtype) for i in range(len(arrays))]
    beside("index_select_each", arrays, dims, index, factors)
    beside("index_select_each", arrays, dims, torch.stack([index, index], 1)[:, 0], [None] * len(arrays))
    strided = [torch.stack([sample(7, dtype=dtype) + i] * 2, 1)[:, 0] for i in range(len(arrays))]
    beside("index_select_each", arrays, dims, index, strided)
    beside("index_select_each", arrays[:1], dims[:1], index[:0], [None])
    beside("index_select_each", [], [], index, [])


def test_index_select_each_keeps_the_order_of_memory(cuda: Backend, put: Any) -> None:
    x = sample(2, 3, 4, 5).to(memory_format=torch.channels_last)
    (result,) = cuda.index_select_each([put(x)], [0], put(torch.tensor([1, 0, 1])), [None])
    assert result.strides == (60, 1, 15, 3)


@pytest.mark.parametrize("dtype", SUMMED, ids=str)
@pytest.mark.parametrize("dim", [0, 2])
def test_index_add(beside: Beside, dtype: torch.dtype, dim: int) -> None:
    x, index = sample(3, 4, 3, dtype=dtype), torch.tensor([1, 0, 2, 1, 1])
    source = sample(*(5 if i == dim else size for i, size in enumerate(x.shape)), dtype=dtype)
    tolerance = 0.2 if dtype is torch.bfloat16 else 0.02 if dtype is torch.float16 else 1e-5  # theirs rounds each sum
    beside("index_add", x, dim, index, source, tolerance=tolerance)


def test_sums_of_16_bits_are_rounded_once(cuda: Backend, put: Any, get: Any) -> None:
    ones = torch.ones(1000, dtype=torch.bfloat16)
    result = cuda.index_add(put(ones[:1]), 0, put(torch.zeros(1000, dtype=torch.int64)), put(ones))
    assert get(result).item() == 1000.0  # 1001 has no bfloat16; one by one the sum would stop at 256


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gather_and_scatter(beside: Beside, dtype: torch.dtype) -> None:
    x, source = sample(4, 5, dtype=dtype), sample(3, 6, dtype=dtype)
    for dim in (0, 1):
        index = torch.stack([torch.randperm(4, generator=torch.manual_seed(i))[:3] for i in range(2)], 1 - dim)
        beside("gather", x, dim, index)
        beside("gather", x.t(), dim, index)
        beside("scatter", x, dim, index, source)
        beside("scatter", x.t(), dim, index, source.t().contiguous()[:3, :3])
        beside("scatter", x, dim, index, 1)


def test_gather_and_scatter_of_0d_and_empty(beside: Beside) -> None:
    zero = torch.tensor(0)
    beside("gather", torch.tensor(3.0), 0, zero)
    beside("gather", sample(4, 5), 1, zero.expand(4, 0))
    beside("scatter", torch.tensor(3.0), 0, zero, 5.0)
    beside("scatter_add", torch.tensor(3.0), 0, zero, torch.tensor(4.0))
    beside("scatter_add", sample(4), 0, zero.expand(0), sample(4))


@pytest.mark.parametrize("dtype", SUMMED, ids=str)
def test_scatter_add(beside: Beside, dtype: torch.dtype) -> None:
    x, index = sample(4, 5, dtype=dtype), torch.tensor([[0, 0, 3], [0, 1, 3], [0, 0, 3]])
    tolerance = 0.2 if dtype is torch.bfloat16 else 0.02 if dtype is torch.float16 else 1e-5
    for dim in (0, 1):
        beside("scatter_add", x, dim, index, sample(4, 4, dtype=dtype), tolerance=tolerance)
        beside("scatter_add", x.t(), dim, index.t(), sample(3, 3, dtype=dtype).t(), tolerance=tolerance)


# --- x[i, j] ----------------------------------------------------------------------------------------------------------
FIRST, LAST, COLUMN = torch.tensor([1, -1, 0]), torch.tensor([-2, 0, 3]), torch.tensor([[0], [-1]])
INDICES = {
    "first": (FIRST,),
    "middle": (None, FIRST),
    "last": (None, None, FIRST),
    "two together": (None, FIRST, LAST),
    "two apart": (FIRST, None, LAST),
    "all": (FIRST, FIRST, LAST),
    "broadcast": (COLUMN, FIRST),
    "0-d": (torch.tensor(-1), None, LAST),
    "empty": (FIRST[:0], None),
    "strided": (torch.arange(-3, 3)[::2], None, COLUMN.expand(2, 3)[0]),
}


@pytest.mark.parametrize("case", INDICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool], ids=str)
def test_take(beside: Beside, case: str, dtype: torch.dtype) -> None:
    beside("take", sample(3, 3, 4, dtype=dtype), INDICES[case])
    beside("take", sample(4, 3, 3, dtype=dtype).permute(2, 1, 0), INDICES[case])


def putting(beside: Beside, x: torch.Tensor, indices: Any, values: Any, accumulate: bool, tolerance: float = 0) -> None:
    expected, mine = x.clone(), beside.put(x)
    CPU.put(expected, indices, values, accumulate)
    beside.cuda.put(mine, beside.given(indices), beside.put(values), accumulate)
    torch.testing.assert_close(beside.get(mine), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", [case for case in INDICES if case not in ("strided",)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_put(beside: Beside, case: str, dtype: torch.dtype) -> None:
    x = sample(3, 3, 4, dtype=dtype)
    shape = CPU.take(x, INDICES[case]).shape
    putting(beside, x, INDICES[case], sample(*shape, dtype=dtype), False)
    putting(beside, x.permute(1, 0, 2), INDICES[case], 7, False)
    putting(beside, x, INDICES[case], sample(*shape[-1:], dtype=torch.float64).to(dtype), False)


@pytest.mark.parametrize("dtype", [*SUMMED, torch.bool], ids=str)
def test_put_adds_repeats_up(beside: Beside, dtype: torch.dtype) -> None:
    x, rows = sample(3, 4, dtype=dtype), torch.tensor([0, 2, 0, -1, 0])
    putting(beside, x, (rows,), torch.ones(5, 4).to(dtype), True, tolerance=1e-2 if dtype.itemsize == 2 else 1e-6)
    putting(beside, x[:, 1:3].t(), (None, rows), 1, True, tolerance=1e-2 if dtype.itemsize == 2 else 1e-6)


def test_put_into_a_view(cuda: Backend, put: Any, get: Any) -> None:
    whole = put(torch.zeros(4, 6))
    cuda.put(cuda.view(whole, (2, 3), (12, 2), 1), (put(torch.tensor([1, 0])), put(torch.tensor([2, 0]))), 5, False)
    assert get(whole).nonzero().tolist() == [[0, 1], [2, 5]]


BAD = [
    ("index_select", (sample(3, 4), 1, torch.tensor([0, 4])), "index 4 is out of range for a dimension of size 4"),
    ("index_select", (sample(3, 4), 0, torch.tensor([-1])), "index -1 is out of range for a dimension of size 3"),
    ("index_add", (sample(3), 0, torch.tensor([7]), sample(1)), "index 7 is out of range for a dimension of size 3"),
    ("gather", (sample(3, 4), 1, torch.tensor([[9]])), "index 9 is out of range"),
    ("scatter", (sample(3, 4), 0, torch.tensor([[3]]), 1.0), "index 3 is out of range"),
    ("scatter_add", (sample(3), 0, torch.tensor([5]), sample(3)), "index 5 is out of range"),
    ("take", (sample(3, 4), (torch.tensor([-4]),)), "index: index -4 is out of range for a dimension of size 3"),
    ("take", (sample(3, 4), (FIRST, torch.tensor([1, 2, 4]))), "index: index 4 is out of range"),
    ("put", (sample(3, 4), (torch.tensor([3]),), 1, False), "index_put: index 3 is out of range"),
    ("one_hot", (torch.tensor([[0, -1]]), 3), "one_hot: index -1 is out of range for a dimension of size 3"),
]


@pytest.mark.parametrize(("op", "args", "message"), BAD, ids=lambda value: value if isinstance(value, str) else "")
def test_index_out_of_range(beside: Beside, op: str, args: Any, message: str) -> None:
    def run() -> None:
        getattr(beside.cuda, op)(*map(beside.given, args))
        beside.cuda.synchronize()

    with pytest.raises(IndexError, match=message):
        run()
    beside.cuda.synchronize()  # said once


def test_index_out_of_range_in_several_kernels(beside: Beside) -> None:
    """The first is found while others, which find the same, are on their way."""
    x, index, source = map(beside.put, (sample(3), torch.tensor([3]), sample(1)))

    def run() -> None:
        for _ in range(1000):
            beside.cuda.scatter_add(x, 0, index, source)

    for _ in range(3):
        with pytest.raises(IndexError, match="scatter_add: index 3 is out of range"):
            run()
        beside.cuda.synchronize()  # said once


@pytest.mark.parametrize("shape", [(), (3, 4), (0, 3)], ids=str)
def test_refuse(beside: Beside, shape: tuple[int, ...]) -> None:
    wrong = torch.zeros(shape, dtype=torch.bool)
    for backend, given in ((CPU, wrong), (beside.cuda, beside.put(wrong))):
        _ = backend.refuse(given, "one is wrong"), backend.synchronize()
    wrong.view(-1)[-1:] = True
    for backend, given in ((CPU, wrong), (beside.cuda, beside.put(wrong))):
        with pytest.raises(ValueError, match="one is wrong") if wrong.any() else nullcontext():
            _ = backend.refuse(given, "one is wrong"), backend.synchronize()
        backend.synchronize()  # said once


@pytest.mark.parametrize("index", [torch.tensor(1), torch.tensor([[0, 2], [1, 1]]).t(), torch.zeros(0, 2).long()])
def test_one_hot(beside: Beside, index: torch.Tensor) -> None:
    beside("one_hot", index, 3)


# --- masks ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_masked_fill(beside: Beside, dtype: torch.dtype) -> None:
    beside("masked_fill", sample(3, 4, dtype=dtype), sample(3, 4, dtype=torch.bool), 1)
    beside("masked_fill", sample(4, 3, dtype=dtype).t(), sample(4, dtype=torch.bool), 1)
    beside("masked_fill", sample(0, 3, dtype=dtype), sample(0, 3, dtype=torch.bool), 1)


def test_order_of_masked_fill(cuda: Backend, put: Any) -> None:
    """Channels stay last; what `view` could not flatten becomes row-major."""
    last = put(sample(2, 5, 4, 3).permute(0, 3, 1, 2))
    assert cuda.masked_fill(last, put(sample(2, 3, 5, 4) > 0), 2.0).strides == last.strides == (60, 1, 12, 3)
    assert cuda.masked_fill(put(sample(4, 3).t()), put(sample(3, 4) > 0), 2.0).strides == (4, 1)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16, torch.int8], ids=str)
def test_nonzero(beside: Beside, dtype: torch.dtype) -> None:
    x = sample(3, 4, 5)
    beside("nonzero", torch.where(x > 0, x, 0).to(dtype))
    beside("nonzero", torch.where(x > 5, x, 0).to(dtype).transpose(0, 2))


def test_nonzero_of_corner_cases(beside: Beside) -> None:
    for x in (torch.tensor(3.0), torch.tensor(0.0), sample(0, 3), torch.zeros(5), torch.tensor([-0.0, float("nan")])):
        beside("nonzero", x)
    beside("nonzero", sample(5000) > 5)
