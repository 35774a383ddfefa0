"""The backward of the 1×1 expansion: kernels/expand_1x1.py has its formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from genesis import dtypes
from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import RawLaunch
from genesis.backends.cuda.launch.triton import prepare_raw
from genesis.backends.cuda.ops.activation import fused as activations
from genesis.backends.cuda.ops.conv_bn_relu import expand_1x1_hopper as wide_hopper
from genesis.backends.cuda.ops.conv_bn_relu import expand_1x1_tiles as cut
from genesis.backends.cuda.ops.conv_bn_relu.expand_1x1 import as_matrix, joining
from genesis.backends.cuda.ops.conv_bn_relu.kernels import expand_1x1 as kernels
from genesis.backends.cuda.ops.storage.rows import (
    address,
    addresses,
    all_new,
    channels_last,
    fresh,
    layout,
    layouts,
    saved_layouts,
)
from genesis.backends.cuda.runtime import streams
from genesis.backends.cuda.runtime.array import DeviceArray, Layout, layout_of
from genesis.records import SavedConvNorm

_Results = tuple[DeviceArray | None, ...]
_Addresses = tuple[int, ...]
_Backward = Callable[[DeviceArray, _Results, DeviceArray | None], _Results]  # grad, what is saved, addend
_backwards: dict[tuple[object, ...], _Backward] = {}
driver.forget_on_switch(_backwards.clear)


def backward(
    grad: DeviceArray, saved: SavedConvNorm[DeviceArray], activation: str | None, needs: tuple[bool, ...],
    addend: DeviceArray | None,
) -> _Results:  # fmt: skip
    input, weight, _, gamma, beta, _, inverse_std, state, passed = saved
    x, matrix = channels_last(input), as_matrix(weight)
    addend = channels_last(addend) if needs[0] else None
    key = (*layouts(grad, x, matrix, *saved[2:], addend), activation, *needs)
    run = _backwards.get(key)
    if run is None:
        of_saved = saved_layouts(saved)._replace(input=x.layout, weight=matrix.layout)
        run = _backwards[key] = _plan_backward(grad.layout, of_saved, activation, layout(addend), needs)
    return run(grad, (x, matrix, gamma, beta, inverse_std, state, passed), addend)


def _plan_backward(
    grad: Layout, saved: SavedConvNorm[Layout], activation: str | None, addend: Layout | None, needs: tuple[bool, ...]
) -> _Backward:
    gradients, scratch, launch = BackwardLaunches.of(grad, saved, activation, addend, needs)
    device = scratch[0].device_index  # type: ignore[union-attr]

    def run(grad: DeviceArray, saved: _Results, addend: DeviceArray | None) -> _Results:
        stream = streams.current_handle(device)
        outputs, room = all_new(gradients, stream), all_new(scratch, stream)
        launch(
            stream, addresses(outputs), addresses(room), grad.data_pointer, addresses(saved), address(addend)
        )  # fmt: skip
        return outputs

    return run


class BackwardLaunches(NamedTuple):
    """The backward, on addresses; None for what nobody wants."""

    gradients: tuple[Layout | None, ...]  # of input, weight, bias, gamma, beta, residual
    scratch: tuple[Layout | None, ...]
    # stream; addresses: gradients, scratch, grad, (x, weight, gamma, beta, inverse deviation, state, passed), addend
    launch: Callable[[int, _Addresses, _Addresses, int, _Addresses, int], None]

    @classmethod
    def of(
        cls, grad: Layout, saved: SavedConvNorm[Layout], activation: str | None, addend: Layout | None,
        needs: tuple[bool, ...],
    ) -> BackwardLaunches:  # fmt: skip
        """saved: with the weight as a matrix."""
        gradients = _gradients(grad, saved, needs)
        grad_input, grad_residual = gradients[0], gradients[-1]
        partial, multiply = _multiplying(grad, saved, activation, grad_residual)
        products, join = joining(partial)
        x, matrix = saved.input, saved.weight
        num_inputs = x.shape[1]
        scaled, projection, constant = fresh(matrix), None, None
        if grad_input is not None:
            projection = layout_of((num_inputs, num_inputs), x.dtype, x.device_index)
            constant = layout_of((num_inputs,), dtypes.float32, x.device_index)
        taps = (scaled, projection, constant)
        find_parameter_grads = _finding_parameter_grads(saved, gradients, taps, products)
        if grad_input is not None:
            # The residual's gradient is the gradient before the activation.
            sources, left = (
                ((grad, saved.passed), activation) if grad_residual is None else ((grad_residual, None), None)
            )
            find_input_grad = _finding_input_grad(grad, sources, saved, left, taps, addend)

        def launch(
            stream: int, out: _Addresses, scratch: _Addresses, grad: int, saved: _Addresses, addend: int
        ) -> None:
            out_input, out_weight, out_bias, out_gamma, out_beta, out_residual = out
            pieces, sums, *taps = scratch
            x, matrix, gamma, beta, inverse_std, state, passed = saved
            norm = (state, inverse_std, gamma, beta)
            multiply(stream, pieces, out_residual, grad, passed, x, matrix, *norm)
            join(stream, sums, pieces)
            find_parameter_grads(
                stream, out_weight, out_gamma, out_beta, out_bias, *taps, sums, state, matrix, inverse_std, gamma
            )  # fmt: skip
            if grad_input is not None:
                find_input_grad(stream, out_input, addend, out_residual or grad, passed, x, matrix, *norm, *taps)

        return cls(gradients, (partial, products, *taps), launch)


def _gradients(grad: Layout, saved: SavedConvNorm[Layout], needs: tuple[bool, ...]) -> tuple[Layout | None, ...]:
    """Layouts of the gradients of input, weight, bias, gamma, beta, residual, where they are needed."""
    matrix, device = saved.weight, saved.weight.device_index
    weight = layout_of((*matrix.shape, 1, 1), matrix.dtype, device)
    vectors = [None if like is None else layout_of(like.shape, like.dtype, device) for like in saved[2:5]]
    whole = (fresh(saved.input), weight, *vectors, fresh(grad))
    return tuple([layout if needed else None for layout, needed in zip(whole, needs, strict=True)])


def _sizes(saved: SavedConvNorm[Layout]) -> tuple[int, int, int]:
    """Numbers of rows, inputs and outputs."""
    num_outputs, num_inputs = saved.weight.shape
    return saved.input.size // num_inputs, num_inputs, num_outputs


def _multiplying(
    grad: Layout, saved: SavedConvNorm[Layout], activation: str | None, grad_residual: Layout | None
) -> tuple[Layout, wide_hopper.Products]:
    """Layout of the products' partial sums, and run(stream, these, residual's gradient, grad, passed, x, weight, norm):
    state, inverse deviation, gamma, beta."""
    x, device = saved.input, saved.input.device_index
    num_rows, num_inputs, num_outputs = _sizes(saved)
    tile = cut.fitted(cut.PRODUCTS, num_rows, num_inputs, num_outputs)
    blocks = -(-num_outputs // tile["BLOCK_K"])
    parts = cut.num_parts(num_rows, cut.PRODUCTS_PROGRAMS, blocks, (num_inputs + 1) * num_outputs, device)
    in_hopper = None
    if activation in (None, "relu"):
        in_hopper = wide_hopper.products(grad, x, saved.weight.shape)
    if in_hopper is not None:
        parts = 2 * wide_hopper.num_programs(num_rows, num_outputs, device)
    partial = layout_of((parts, num_inputs + 1, num_outputs), dtypes.float32, device)
    multiply = in_hopper or prepare_raw(
        kernels._wide_products_kernel, device, (parts, blocks),
        (partial, grad_residual, grad, saved.passed, x, saved.weight, *_norm(saved)), num_rows, num_inputs, num_outputs,
        **activations.backward(activation, x.dtype), **tile,
    )  # fmt: skip
    return partial, multiply


def _finding_parameter_grads(
    saved: SavedConvNorm[Layout], gradients: tuple[Layout | None, ...], taps: tuple[Layout | None, ...],
    products: Layout,
) -> RawLaunch:  # fmt: skip
    """run(stream, gradients of weight, gamma, beta, bias, taps, products, state, weight, inverse deviation, gamma)"""
    grad_input, grad_weight, grad_bias, grad_gamma, grad_beta, _ = gradients
    num_rows, num_inputs, num_outputs = _sizes(saved)
    programs = -(-num_outputs // 16) + (-(-num_inputs // 16) if grad_input is not None else 0)
    return prepare_raw(
        kernels._wide_parameter_grads_kernel, saved.input.device_index, (programs,),
        (grad_weight, grad_gamma, grad_beta, grad_bias, *taps, products, saved.kept, saved.weight, saved.inverse_std,
         saved.gamma), num_rows, num_inputs, num_outputs, BLOCK_K=16, BLOCK_C=cut.block_c(num_inputs), BLOCK_I=16,
        BLOCK_L=64,
    )  # fmt: skip


def _finding_input_grad(
    grad: Layout, sources: tuple[Layout | None, ...], saved: SavedConvNorm[Layout], activation: str | None,
    taps: tuple[Layout | None, ...], addend: Layout | None,
) -> wide_hopper.InputGrad:  # fmt: skip
    """run(stream, input's gradient, addend, sources, x, weight, norm, taps). sources: the gradient, and what passed."""
    x = saved.input
    num_rows, num_inputs, num_outputs = _sizes(saved)
    tile = cut.fitted(cut.INPUT_GRAD, num_rows, num_inputs, num_outputs)
    in_hopper = None
    if activation in (None, "relu"):
        in_hopper = wide_hopper.input_grad(grad, x, saved.weight.shape, addend)
    return in_hopper or prepare_raw(
        kernels._wide_input_grad_kernel, x.device_index, (-(-num_rows // tile["BLOCK_M"]),),
        (fresh(x), addend, *sources, x, saved.weight, *_norm(saved), *taps), num_rows, num_inputs, num_outputs,
        **activations.backward(activation, x.dtype), **tile,
    )  # fmt: skip


def _norm(saved: SavedConvNorm[Layout]) -> tuple[Layout | None, ...]:
    return saved.kept, saved.inverse_std, saved.gamma, saved.beta
