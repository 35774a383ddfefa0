"""Optimizer steps over all parameters at once: torch's fused and foreach kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from genesis.backends.contract import Operand
from genesis.records import AdamOptions, SGDOptions, StepInputs, rebuilt

_FLOAT32_LIMIT = math.ldexp(1.0, 128)  # a loss is multiplied by a float32 scale

Options = TypeVar("Options", SGDOptions, AdamOptions)


def sgd_step(
    params: Sequence[Tensor], grads: Sequence[Tensor], buffers: Sequence[Tensor] | None, options: SGDOptions,
    first: bool, inputs: StepInputs[Tensor] = StepInputs(),
) -> None:  # fmt: skip
    if inputs.found_inf is not None and inputs.found_inf:
        return
    options = _read(options, inputs)
    if params[0].dtype in (torch.float16, torch.bfloat16):
        # torch 2.13's fused kernel loses the gradients of 64 and more 16-bit elements.
        _sgd_step_in_float32(params, grads, buffers, options, first)
        return
    torch._fused_sgd_(
        _flat(params), _flat(grads), _flat(buffers or ()), **options._asdict(), is_first_step=first
    )  # fmt: skip


def _sgd_step_in_float32(
    params: Sequence[Tensor], grads: Sequence[Tensor], buffers: Sequence[Tensor] | None, options: SGDOptions,
    first: bool,
) -> None:  # fmt: skip
    lists = [list(params), list(grads), list(buffers or ())]
    wide = [[array.float() for array in arrays] for arrays in lists]
    sgd_step(wide[0], wide[1], None if buffers is None else wide[2], options, first)
    for narrow, computed in zip(lists[0] + lists[2], wide[0] + wide[2], strict=True):
        narrow.copy_(computed)


def adam_step(
    params: Sequence[Tensor], grads: Sequence[Tensor], exp_avgs: Sequence[Tensor], exp_avg_sqs: Sequence[Tensor],
    max_exp_avg_sqs: Sequence[Tensor] | None, step: int | Tensor, options: AdamOptions,
    inputs: StepInputs[Tensor] = StepInputs(),
) -> None:  # fmt: skip
    if inputs.found_inf is not None and inputs.found_inf:
        return
    if isinstance(step, Tensor):
        step.add_(1)
    settings = _read(options, inputs)._asdict()
    fused = torch._fused_adamw_ if settings.pop("decoupled_weight_decay") else torch._fused_adam_
    steps = [torch.tensor(float(step)) for _ in params]
    fused(
        _flat(params), _flat(grads), _flat(exp_avgs), _flat(exp_avg_sqs), _flat(max_exp_avg_sqs or ()), steps,
        **settings, amsgrad=max_exp_avg_sqs is not None,
    )  # fmt: skip


def _read(options: Options, inputs: StepInputs[Tensor]) -> Options:
    """The options, with the numbers that the step reads from memory."""
    if inputs.numbers is None:
        return options
    numbers: list[float] = inputs.numbers.tolist()
    return rebuilt(options, [*numbers, *options[len(numbers) :]])


def _flat(arrays: Sequence[Tensor]) -> list[Tensor]:
    """Dense arrays as rows, in the order of their memory: torch's fused kernels copy whatever is not row-major."""
    return [array if array.is_contiguous() else array.as_strided((array.numel(),), (1,)) for array in arrays]


def copy_all_into(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    torch._foreach_copy_(list(targets), list(sources))


def scale_into(arrays: Sequence[Tensor], factor: Operand) -> None:
    torch._foreach_mul_(list(arrays), factor)


def norms(arrays: Sequence[Tensor], ord: float) -> Tensor:
    return torch.stack(torch._foreach_norm(list(arrays), ord))


def update_scale(
    scale: Tensor, growth_tracker: Tensor, found_inf: Tensor, growth_factor: float, backoff_factor: float,
    growth_interval: int,
) -> None:  # fmt: skip
    if found_inf:
        scale.mul_(backoff_factor)
        growth_tracker.zero_()
        return
    growth_tracker.add_(1)
    if growth_tracker == growth_interval:
        if scale * growth_factor < _FLOAT32_LIMIT:
            scale.mul_(growth_factor)
        growth_tracker.zero_()


def unscale_into(arrays: Sequence[Tensor], factor: Operand) -> Tensor:
    torch._foreach_mul_(list(arrays), factor)
    return torch.stack([array.isfinite().all() for array in arrays]).all().logical_not()
