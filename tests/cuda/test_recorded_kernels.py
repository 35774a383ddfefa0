"""Kernels of one's own in captured steps, and what is known of where they write."""

from __future__ import annotations

from typing import Any

import pytest
import triton
import triton.language as tl
from triton.language import store as put

import genesis
from genesis import Tensor, nn
from genesis.cuda.triton_writes import written_parameters


@triton.jit
def _copy(out_ptr, x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n).to(tl.float32), mask=i < n)


@triton.jit
def _add_into(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    places = x_ptr + i
    total = tl.load(places, mask=i < n) + tl.load(y_ptr + i, mask=i < n)
    tl.store(places, total, mask=i < n)


@triton.jit
def _by_another_name(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    put(x_ptr, tl.load(y_ptr) + n)


@triton.jit
def _two_at_a_time(a_ptr, b_ptr, c_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    first, second = a_ptr, b_ptr
    for _ in range(2):
        value = tl.sum(tl.load(c_ptr + i, mask=i < n), axis=0)
        tl.atomic_add(first, value)
        first, second = second, first + tl.cdiv(n, 2)


@triton.jit
def _by_a_helper(out_ptr, x_ptr, n, BLOCK: tl.constexpr):
    _copy(out_ptr, x_ptr, n, BLOCK)


@triton.jit
def _by_a_block(out_ptr, x_ptr, n, BLOCK: tl.constexpr):
    target = tl.make_block_ptr(out_ptr, (n,), (1,), (0,), (BLOCK,), (0,))
    tl.store(tl.advance(target, (0,)), tl.load(x_ptr + tl.arange(0, BLOCK)))


@triton.jit
def _through_a_table(table_ptr, n):
    tl.store(tl.load(table_ptr).to(tl.pointer_type(tl.float32)), 1.0)


WRITES = [
    (_copy, {"out_ptr"}), (_add_into, {"x_ptr"}), (_by_another_name, {"x_ptr"}), (_by_a_block, {"out_ptr"}),
    (_by_a_helper, {"out_ptr", "x_ptr"}), (_two_at_a_time, {"a_ptr", "b_ptr"}), (_through_a_table, None),
]  # fmt: skip


@pytest.mark.parametrize(("kernel", "expected"), WRITES)
def test_where_a_kernel_writes(kernel: Any, expected: set[str] | None) -> None:
    found = written_parameters(kernel.fn)
    assert (found if found is None else {name for name in found if name.endswith("_ptr")}) == expected


copy_kernel, add_kernel = map(genesis.cuda.triton_kernel, (_copy, _add_into))


def copied(x: Tensor) -> Tensor:
    out = genesis.empty_like(x)
    copy_kernel[(1,)](out, x, x.numel(), BLOCK=8)
    return out


def added_to(x: Tensor) -> Tensor:
    add_kernel[(1,)](x, x, x.numel(), BLOCK=8)
    return x + 0


def test_a_kernel_may_change_what_the_step_has_made_but_no_argument(cuda: str) -> None:
    inner = genesis.compile(lambda x: added_to(copied(x)))
    for number in range(4):
        assert inner(genesis.full((5,), float(number), device="cuda")).tolist() == [2 * number] * 5
    assert inner.num_replays == 2
    outer, x = genesis.compile(added_to), genesis.ones(5, device="cuda")
    with pytest.warns(RuntimeWarning, match="it changes an argument in place"):
        assert [outer(x).tolist()[0] for _ in range(4)] == [2, 4, 8, 16]
    assert x.tolist() == [16] * 5


SOURCE = """
extern "C" __global__ void add_to(float* x, const float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += y[i];
}
"""


def test_a_loaded_kernel_is_a_constant(cuda: str) -> None:
    module = genesis.cuda.load_inline("constant_kernels", SOURCE)
    kernel = module.add_to
    kernel._loaded[0] = iter(())  # as what the driver gives, it cannot be watched

    def step(x: Tensor) -> Tensor:
        for each in (kernel, module.add_to)[x.ndim :]:
            each(x, x, x.numel())
        return x + 1

    compiled = genesis.compile(step)
    assert [compiled(genesis.ones(2, 3, device="cuda")).tolist()[1] for _ in range(4)] == [[2] * 3] * 4
    assert compiled.num_replays == 2


@pytest.mark.gpu
def test_cuda_cpp_in_a_step() -> None:
    kernel = genesis.cuda.load_inline("recorded_kernels", SOURCE).add_to

    def added(x: Tensor, y: Tensor) -> Tensor:
        kernel(x, y, x.numel())
        return x

    inner, outer = genesis.compile(lambda x, y: added(x + 0, y)), genesis.compile(added)
    x, y = genesis.ones(5, device="cuda"), genesis.full((5,), 2.0, device="cuda")
    for number in range(4):
        y.fill_(number)
        assert inner(x, y).tolist() == [1 + number] * 5
    assert inner.num_replays == 2
    with pytest.warns(RuntimeWarning, match="it changes an argument in place"):
        assert [outer(x, y).tolist()[0] for _ in range(4)] == [4, 7, 10, 13]


class Scaled(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.weight, self.function = nn.Parameter(genesis.ones(5)), function

    def forward(self, x: Tensor) -> Tensor:
        return x * self.function(self.weight)


def test_inference_reads_weights_by_a_kernel_and_changes_none(cuda: str) -> None:
    reading, changing = (Scaled(function).to("cuda").eval() for function in (copied, added_to))
    x = genesis.full((5,), 3.0, device="cuda")
    with genesis.no_grad():
        compiled = genesis.compile(reading)
        for factor in (1, 2, 3, 4):
            assert compiled(x).tolist() == [3 * factor] * 5
            reading.weight.add_(1)
        assert compiled.num_replays == 2
        compiled = genesis.compile(changing)
        with pytest.warns(RuntimeWarning, match="changes an argument, a parameter or a buffer in place"):
            assert [compiled(x).tolist()[0] for _ in range(3)] == [6, 12, 24]
