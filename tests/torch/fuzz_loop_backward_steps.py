"""Steps whose backward pass, errors or saved tensors are out of the ordinary, for the fuzzer of training loops."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from tests.torch.fuzz_loop_sides import Side, StopError
from tests.torch.fuzz_loop_steps import STEPS as STEPS  # registers its own there
from tests.torch.fuzz_loop_steps import may_refuse, step


# --- backward ---
@step
def a_loss_of_one_output(side: Side, seed: int) -> None:
    for index in range(2):
        side.train(side.images(seed + index), seed, first=True)


@step
def sums(side: Side, seed: int) -> None:
    """Gradients of outputs that are expanded from one element."""
    for index in range(2):
        outputs = side.call(side.images(seed + index))
        leaves = [x for x in tree_leaves(outputs) if isinstance(x, Tensor) and x.requires_grad]
        if leaves:
            side.backward(sum((x.sum() for x in leaves), torch.zeros((), device=side.device)) / 16)
            side.update()


@step
def sums_while_another_forward_waits(side: Side, seed: int) -> None:
    """The backward of expanded gradients goes PyTorch's way in the middle of a step."""
    outputs = side.call(side.images(seed))
    other = side.other(side.images(seed + 1, shape=(6, 5)))
    leaves = [x for x in tree_leaves(outputs) if isinstance(x, Tensor) and x.requires_grad]
    for x in leaves:
        # Of an image beside logits, which were computed from it, a hook sees the whole gradient in eager code, and in
        # compiled code what comes from outside.
        if len(leaves) == 1 or x.dim() < 4:
            x.register_hook(lambda grad: grad.new_full((), 0.1).expand(grad.shape))
    side.backward(side.loss(outputs, seed))
    other.sum().backward()
    side.other.zero_grad()
    side.update()


@step
def turned_gradients(side: Side, seed: int) -> None:
    """Gradients of outputs with other strides than the outputs."""

    def turn(grad: Tensor) -> Tensor:
        order = list(reversed(range(grad.dim())))
        return grad.permute(order).contiguous().permute(order)

    def forward(x: Tensor) -> Any:
        outputs = side.call(x)
        for y in tree_leaves(outputs):
            if isinstance(y, Tensor) and y.requires_grad and not y.is_leaf:
                y.register_hook(turn)
        return outputs

    side.train(side.images(seed), seed, forward)


@may_refuse
def a_forward_in_a_hook(side: Side, seed: int) -> None:
    """Of an output: another graph runs in the middle of the backward. Of a parameter: after ours.

    Where outputs are views of others the backward has several beginnings; a graph between two of them is refused.
    """

    def run(_: Tensor) -> None:
        with torch.no_grad():
            side.other(side.images(seed, shape=(6, 5)))

    def forward(x: Tensor) -> Any:
        outputs = side.call(x)
        leaves = [y for y in tree_leaves(outputs) if isinstance(y, Tensor) and y.requires_grad]
        handles.extend(y.register_hook(run) for y in leaves)
        return outputs

    handles = [x.register_hook(run) for x in side.model.parameters() if x.requires_grad and seed % 3]
    try:
        for index in range(2):
            side.train(side.images(seed + index), seed, forward)
    finally:
        for handle in handles:
            handle.remove()


@step
def on_another_stream(side: Side, seed: int) -> None:
    if side.device != "cuda":
        return side.train(side.images(seed), seed)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        side.train(side.images(seed), seed)
    torch.cuda.current_stream().wait_stream(stream)


@step
def anomalies_are_looked_for(side: Side, seed: int) -> None:
    with torch.autograd.detect_anomaly():
        side.train(side.images(seed), seed)


@step
def gradients_of_some(side: Side, seed: int) -> None:
    loss = side.loss(side.call(side.images(seed)), seed)
    some = [x for x in side.model.parameters() if x.requires_grad][:: 1 + seed % 3]
    if loss.requires_grad:
        side.show("gradient of some", torch.autograd.grad(loss, some, allow_unused=True), holds=True)


@step
def backward_into_some(side: Side, seed: int) -> None:
    loss = side.loss(side.call(side.images(seed)), seed)
    some = [x for x in side.model.parameters() if x.requires_grad][:: 1 + seed % 3]
    if loss.requires_grad:
        side.backward(loss, inputs=some)
        side.update()


@may_refuse
def backward_again(side: Side, seed: int) -> None:
    loss = side.loss(side.call(side.images(seed)), seed)
    side.backward(loss, retain_graph=True)
    side.backward(loss)
    side.update()


@may_refuse
def backward_too_often(side: Side, seed: int) -> None:
    loss = side.loss(side.call(side.images(seed)), seed)
    side.backward(loss)
    side.backward(loss)


@may_refuse
def second_derivatives(side: Side, seed: int) -> None:
    x = side.images(seed).requires_grad_()
    loss = side.loss(side.call(x), seed)
    (grad,) = torch.autograd.grad(loss, x, create_graph=True)
    side.backward(grad.square().sum())
    side.update()


@may_refuse
def parameters_that_change_before_the_backward(side: Side, seed: int) -> None:
    loss = side.loss(side.call(side.images(seed)), seed)
    with torch.no_grad():
        for parameter in list(side.model.parameters())[:: 1 + seed % 3]:
            parameter.mul_(1.1)
    side.backward(loss)
    side.update()


@step
def outputs_that_change(side: Side, seed: int) -> None:
    """In place, after what needs them was computed, and as part of it."""

    def forward(x: Tensor) -> Any:
        first = next(y for y in tree_leaves(side.call(x)) if isinstance(y, Tensor) and y.is_floating_point())
        may_change = not (first.is_leaf or first._is_view())  # a compiled model's is no view where a plain one's is
        if may_change:
            side.changed.append(first)
        return (first if may_change else first.clone()).mul_(2)

    side.train(side.images(seed), seed, forward)


@step
def outputs_that_are_overwritten(side: Side, seed: int) -> None:
    outputs = side.call(side.images(seed))
    loss = side.loss(outputs, seed).clone()
    side.backward(loss)
    for y in tree_leaves(outputs):
        if isinstance(y, Tensor) and not y.is_leaf:
            y.detach().zero_()
    side.update()
    side.train(side.images(seed + 1), seed)


@step
def outputs_that_keep_gradients(side: Side, seed: int) -> None:
    """Of one output: if another depends on it inside of the model, a compiled one's gradient is without that."""

    def forward(x: Tensor) -> Any:
        outputs = side.call(x)
        if isinstance(outputs, Tensor):
            outputs.retain_grad()
            kept.append(outputs)
        return outputs

    kept: list[Tensor] = []
    side.train(side.images(seed), seed, forward)
    side.show("output's gradient", [y.grad for y in kept], holds=True)


# --- errors ---
@step
def an_error_after_the_forward(side: Side, seed: int) -> None:
    side.loss(side.call(side.images(seed)), seed)
    raise StopError


@step
def an_error_in_the_backward(side: Side, seed: int) -> None:
    def stop(grad: Tensor) -> None:
        raise StopError

    outputs = side.call(side.images(seed))
    loss = side.loss(outputs, seed)
    if loss.requires_grad:
        (
            loss if seed % 2 else next(x for x in tree_leaves(outputs) if isinstance(x, Tensor) and x.requires_grad)
        ).register_hook(stop)
    side.backward(loss)


@step
def an_error_behind_the_backward(side: Side, seed: int) -> None:
    """In a hook of a parameter: how far the backward came is not promised."""

    def stop(grad: Tensor) -> None:
        raise StopError

    parameter = random.Random(seed).choice([x for x in side.model.parameters() if x.requires_grad])
    handle = parameter.register_hook(stop)
    with contextlib.closing(contextlib.ExitStack()) as stack:
        stack.callback(handle.remove)
        side.backward(side.loss(side.call(side.images(seed)), seed))


@step
def an_error_in_the_forward(side: Side, seed: int) -> None:
    side.call(side.images(seed)[:, :2])


# --- hooks of what autograd saves ---
@step
def checkpointed(side: Side, seed: int) -> None:
    reentrant = seed % 2 == 0

    def forward(x: Tensor) -> Any:
        return checkpoint(side.call, x.requires_grad_(), use_reentrant=reentrant)

    with set_checkpoint_early_stop(False):  # which would leave out what changes buffers after the last saved tensor
        for index in range(2):
            side.train(side.images(seed + index), seed, forward)


@step
def saved_by_hooks(side: Side, seed: int) -> None:
    def copied(x: Tensor) -> Tensor:
        """With its strides, which Inductor's code takes for granted."""
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(x)

    def forward(x: Tensor) -> Any:
        with torch.autograd.graph.saved_tensors_hooks(copied, lambda y: y):
            return side.call(x)

    side.train(side.images(seed), seed, forward)


@step
def saved_on_the_host(side: Side, seed: int) -> None:
    x = side.images(seed).clone(memory_format=torch.contiguous_format)  # other strides are lost on the way
    with torch.autograd.graph.save_on_cpu():
        side.train(x, seed)


# --- autocast ---
@step
def other_autocast(side: Side, seed: int) -> None:
    side.options.autocast = not side.options.autocast
    for index in range(2):
        side.train(side.images(seed + index), seed)
    side.options.autocast = not side.options.autocast
