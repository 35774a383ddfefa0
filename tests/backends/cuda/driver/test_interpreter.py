"""What kernels of every family rely on in the simulated device, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.driver import KernelError
from genesis.backends.cuda.driver.interpreter import Regions, bfloat16_to_float, float_to_bfloat16
from genesis.backends.cuda.launch.triton import launch, load, prepare_raw
from genesis.backends.cuda.runtime import array


@triton.jit
def _loop_kernel(out_ptr, x_ptr, n, BLOCK: tl.constexpr):
    """A loop with bounds of run time, with a condition inside."""
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        value = tl.load(x_ptr + offsets, mask=offsets < n, other=0.0)
        if start > BLOCK:
            value = value * 2.0
        total += value
    tl.store(out_ptr, tl.sum(total, axis=0))


@triton.jit
def _dot_kernel(out_ptr, x_ptr, y_ptr, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    at = i[:, None] * SIZE + i[None, :]
    tl.store(out_ptr + at, tl.dot(tl.load(x_ptr + at), tl.load(y_ptr + at)))


@triton.jit
def _reduce_kernel(out_ptr, x_ptr, SIZE: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, SIZE))
    tl.store(out_ptr, tl.max(x, axis=0))
    tl.store(out_ptr + 1, tl.min(x, axis=0))
    tl.store(out_ptr + 2, tl.argmax(x, axis=0).to(tl.float32))
    tl.store(out_ptr + 3, tl.sum(tl.cumsum(x, axis=0), axis=0))
    tl.store(out_ptr + 4, tl.sum(tl.sigmoid(x), axis=0))


@triton.jit
def _count_kernel(out_ptr, index_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    index = tl.load(index_ptr + offsets, mask=offsets < n, other=0)
    tl.atomic_add(out_ptr + index, 1.0, mask=offsets < n)


@triton.jit
def _maximum_of_nan_kernel(out_ptr, x_ptr):
    i = tl.arange(0, 2)
    x = tl.load(x_ptr + i)
    tl.store(out_ptr + i, tl.maximum(x, 0.0))
    tl.store(out_ptr + 2 + i, tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL))


@triton.jit
def _libdevice_kernel(out_ptr, x_ptr, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    x = tl.load(x_ptr + i)
    tl.store(
        out_ptr + i, libdevice.log1p(x) + libdevice.atan2(x, x + 1.0) + libdevice.erf(x) * libdevice.lgamma(x + 1.0)
    )


@triton.jit
def _numbers_kernel(out_ptr, x_ptr, SIZE: tl.constexpr):
    """The same numbers beside operands of several types, one after the other."""
    i = tl.arange(0, SIZE)
    x = tl.load(x_ptr + i)
    tl.store(out_ptr + i, x + 1)
    tl.store(out_ptr + SIZE + i, i + 1)
    tl.store(out_ptr + 2 * SIZE + i, i + 1.0)
    tl.store(out_ptr + 3 * SIZE + i, (i.to(tl.int8) + 1) // 2)
    tl.store(out_ptr + 4 * SIZE + i, (i + 1) / 2)
    tl.store(out_ptr + 5 * SIZE + i, (i >> 1) + (i > 1).to(tl.int32) + 1)
    tl.store(out_ptr + 6 * SIZE + i, tl.where(x == 1, 0.5, x + 0.5))


def upload(cuda: Backend, values: np.ndarray) -> array.DeviceArray:
    return cuda.from_cpu(values, dtypes.BY_NAME[values.dtype.name])


def test_loops_with_bounds_of_run_time(cuda: Backend) -> None:
    x = np.arange(50, dtype=np.float32)
    out = array.empty((1,), dtypes.float32)
    launch(_loop_kernel, (1,), out, upload(cuda, x), 50, BLOCK=16)
    assert cuda.to_cpu(out)[0] == x[:32].sum() + 2 * x[32:].sum()


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=lambda dtype: dtype.name)
def test_dot_of_16_bit_floats(cuda: Backend, dtype: dtypes.DType) -> None:
    x, y = (np.random.default_rng(seed).integers(-4, 5, (16, 16)).astype(np.float32) for seed in (0, 1))
    out = array.empty((16, 16), dtypes.float32)
    launch(_dot_kernel, (1,), out, cuda.cast(upload(cuda, x), dtype), cuda.cast(upload(cuda, y), dtype), SIZE=16)
    np.testing.assert_array_equal(cuda.to_cpu(out), x @ y)


def test_reductions(cuda: Backend) -> None:
    x = np.array([3.0, -1.0, 7.0, 7.0, 0.5, 2.0, -8.0, 1.0], np.float32)
    out = array.empty((5,), dtypes.float32)
    launch(_reduce_kernel, (1,), out, upload(cuda, x), SIZE=8)
    expected = [7, -8, 2, np.cumsum(x).sum(), (1 / (1 + np.exp(-x))).sum()]
    np.testing.assert_allclose(cuda.to_cpu(out), expected, rtol=1e-6)


def test_numbers_take_the_type_of_the_other_operand(cuda: Backend) -> None:
    """Each time: what a number was converted to is kept for the next operation."""
    i, x = np.arange(4), np.array([0.25, 1, -3, np.inf], np.float32)
    wanted = [x + 1, i + 1, i + 1, (i + 1) // 2, (i + 1) / 2, (i >> 1) + (i > 1) + 1, np.where(x == 1, 0.5, x + 0.5)]
    for _ in range(2):
        out = array.empty((28,), dtypes.float32)
        launch(_numbers_kernel, (1,), out, upload(cuda, x), SIZE=4)
        np.testing.assert_array_equal(cuda.to_cpu(out), np.concatenate(wanted))


def test_atomics_add_up(cuda: Backend) -> None:
    index = np.array([0, 1, 1, 3, 3, 3, 0, 1, 3, 3], np.int64)
    out = cuda.full((4,), 0.0, dtypes.float32)
    launch(_count_kernel, (3,), out, upload(cuda, index), 10, BLOCK=4)
    assert cuda.to_cpu(out).tolist() == [2, 3, 0, 5]


def test_maximum_drops_nan_unless_told(cuda: Backend) -> None:
    out = array.empty((4,), dtypes.float32)
    launch(_maximum_of_nan_kernel, (1,), out, upload(cuda, np.array([np.nan, -1.0], np.float32)))
    np.testing.assert_array_equal(cuda.to_cpu(out), [0.0, 0.0, np.nan, 0.0])


def test_libdevice(cuda: Backend) -> None:
    x = np.linspace(0.1, 3.0, 8).astype(np.float32)
    out = array.empty((8,), dtypes.float32)
    launch(_libdevice_kernel, (1,), out, upload(cuda, x), SIZE=8)
    t = torch.from_numpy(x).double()
    expected = torch.log1p(t) + torch.atan2(t, t + 1) + torch.erf(t) * torch.lgamma(t + 1)
    np.testing.assert_allclose(cuda.to_cpu(out), expected.numpy(), rtol=1e-5)


def test_bfloat16_conversion_is_torchs() -> None:
    x = torch.randn(10_000, generator=torch.manual_seed(0)) * torch.logspace(-38, 38, 10_000)
    x = torch.cat([x, torch.tensor([0.0, -0.0, float("inf"), -float("inf"), 3.4e38, 1e-45, 1.00390625, 1.01171875])])
    bits = float_to_bfloat16(x.numpy())
    np.testing.assert_array_equal(bits, x.bfloat16().view(torch.uint16).numpy())
    np.testing.assert_array_equal(bfloat16_to_float(bits), x.bfloat16().float().numpy())
    assert np.isnan(bfloat16_to_float(float_to_bfloat16(np.array([np.nan], np.float32))))


def test_what_the_interpreter_replaces_is_put_back(simulated: Backend) -> None:
    """Kernels are compiled in the same process."""
    before = tl.tensor.__init__, tl.block_type.__init__, tl.load
    launch(_loop_kernel, (1,), array.empty((1,), dtypes.float32), upload(simulated, np.ones(8, np.float32)), 8, BLOCK=8)
    assert (tl.tensor.__init__, tl.block_type.__init__, tl.load) == before
    assert before[0].__module__ == before[1].__module__ == "triton.language.core"


def test_arguments_are_what_the_kernel_is_compiled_for(simulated: Backend) -> None:
    """A launch that was prepared for other arguments would load across their ends on a GPU."""
    x, out = upload(simulated, np.ones(32, np.float32)), array.empty((1,), dtypes.float32)
    run = prepare_raw(_loop_kernel, 0, (1,), (out.layout, x.layout), 16, BLOCK=8)
    run(0, out.data_pointer, x.data_pointer)
    with pytest.raises(KernelError, match="_loop_kernel: x_ptr is compiled as divisible by 16, and given as"):
        run(0, out.data_pointer, x.data_pointer + 4)
    prepared = load(_loop_kernel, 0, ("*fp32/16", "*fp32/16", "1"), {"BLOCK": 8}).prepare((1, 1, 1), 3, ())
    prepared(0, out.data_pointer, x.data_pointer, 1)
    with pytest.raises(KernelError, match="is compiled as 1, and given as 2"):
        prepared(0, out.data_pointer, x.data_pointer, 2)


def test_regions() -> None:
    regions = Regions({1000: 16, 2000: 8})
    assert regions.contain(np.array([1000, 1012, 2004], np.uint64), 4)
    for outside in (996, 1014, 1016, 1998, 2006, 3000):
        assert not regions.contain(np.array([1000, outside], np.uint64), 4)
    assert regions.contain(np.array([], np.uint64), 4)
    nested = Regions({1000: 100, 1040: 8})
    assert nested.contain(np.array([1000, 1040, 1060, 1096], np.uint64), 4)
    assert not nested.contain(np.array([1100], np.uint64), 4)
    assert not Regions({}).contain(np.array([1000], np.uint64), 4)
