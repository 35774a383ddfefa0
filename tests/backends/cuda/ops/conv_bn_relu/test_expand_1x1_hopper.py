"""The wide form's kernels in CUDA C++: what of them can be seen without a GPU. On one, test_expand_1x1.py."""

from __future__ import annotations

import pytest

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.ops.conv.candidates.wgmma import common as hopper
from genesis.backends.cuda.ops.conv_bn_relu import expand_1x1_hopper as wide_hopper
from genesis.backends.cuda.ops.conv_bn_relu.expand_1x1_hopper import Kernel
from genesis.backends.cuda.runtime.array import layout_of
from genesis.shapes import channels_last_strides


@pytest.mark.parametrize("kernel", wide_hopper.KERNELS, ids=str)
def test_kernel_compiles(kernel: Kernel) -> None:
    assert kernel.cubin()[:4] == b"\x7fELF"
    assert kernel.shared_memory <= 222 << 10  # of 227 KiB; what is not dynamic comes on top


def test_rows_are_shared_by_all_multiprocessors(simulated: Backend) -> None:
    """The simulated device has four."""
    assert [wide_hopper.num_programs(1000, num_outputs, 0) for num_outputs in (0, 256, 512, 2048)] == [4, 4, 2, 1]
    assert wide_hopper.num_programs(65, 256, 0) == 2  # tiles of 64 rows


def test_operands_that_stay_with_triton(simulated: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    def supported(num_inputs: int, num_outputs: int, aligned: bool = True) -> bool:
        shape = (2, num_inputs, 5, 5)
        x = layout_of(shape, dtypes.bfloat16, 0, channels_last_strides(shape), aligned)
        return wide_hopper._supports(50, num_inputs, num_outputs, x, None)

    assert not supported(64, 256)  # no Hopper
    monkeypatch.setattr(hopper, "is_available", lambda device: True)
    assert all((supported(64, 256), supported(24, 512)))
    assert not any((supported(20, 256), supported(64, 320), supported(72, 256), supported(64, 256, aligned=False)))
