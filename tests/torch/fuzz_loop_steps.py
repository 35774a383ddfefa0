"""Steps of another kind than the usual one, for the fuzzer of training loops.

Each takes a side and a seed, and does on both sides the same. Some are promised to work; the others may be refused, by
an error that says why.
"""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from tests.torch.fuzz_loop_sides import Side

Step = Callable[[Side, int], None]
STEPS: dict[str, Step] = {}
MAY_REFUSE: set[str] = set()


def step(function: Step) -> Step:
    STEPS[function.__name__] = function
    return function


def may_refuse(function: Step) -> Step:
    MAY_REFUSE.add(function.__name__)
    return step(function)


# --- inputs ---
@step
def smaller_batch(side: Side, seed: int) -> None:
    side.train(side.images(seed, 3), seed)


@step
def other_shape_twice(side: Side, seed: int) -> None:
    for index in range(2):
        side.train(side.images(seed + index, shape=(7, 4)), seed)


@step
def expanded_images(side: Side, seed: int) -> None:
    side.train(side.images(seed, 1).expand(side.options.size, -1, -1, -1), seed)


@step
def images_of_another_layout(side: Side, seed: int) -> None:
    side.train(side.images(seed).transpose(2, 3).contiguous().transpose(2, 3), seed)


@step
def misaligned_images(side: Side, seed: int) -> None:
    x = side.images(seed)
    memory = torch.empty(x.numel() + 1, device=side.device, dtype=side.dtype)[1:].view(x.shape)
    side.train(memory.copy_(x), seed)


@step
def images_of_inference_mode(side: Side, seed: int) -> None:
    with torch.inference_mode():
        x = side.images(seed)
        side.call(x)
    side.train(x.clone(), seed)


@step
def input_gradients(side: Side, seed: int) -> None:
    for index in range(2):
        x = side.images(seed + index).requires_grad_()
        side.train(x, seed)
        side.show("input gradient", x.grad, holds=True)


@step
def input_of_other_operations(side: Side, seed: int) -> None:
    x = side.images(seed).requires_grad_()
    side.train((x * 2).relu(), seed)
    side.show("input gradient", x.grad, holds=True)


@step
def the_same_memory_again(side: Side, seed: int) -> None:
    """As a loader with a static buffer has it."""
    x = side.images(seed)
    for index in range(3):
        x.copy_(side.images(seed + index))
        side.train(x, seed)


@may_refuse
def images_that_change_before_the_backward(side: Side, seed: int) -> None:
    x = side.images(seed)
    outputs = side.call(x)
    x.add_(1)
    side.backward(side.loss(outputs, seed))
    side.update()


@step
def two_sizes_in_turn(side: Side, seed: int) -> None:
    """Both are recorded, as they come often."""
    for index in range(8):
        side.train(side.images(seed + index, 2 + index // 2 % 2), seed)


# --- modes ---
@step
def evaluation(side: Side, seed: int) -> None:
    side.model.eval()
    with torch.no_grad():
        for index in range(2):
            side.call(side.images(seed + index))
    side.model.train()


@step
def inference(side: Side, seed: int) -> None:
    side.model.eval()
    with torch.inference_mode():
        side.call(side.images(seed))
    side.model.train()


@step
def evaluation_before_the_backward(side: Side, seed: int) -> None:
    def forward(x: Tensor) -> Any:
        outputs = side.call(x)
        side.model.eval()
        with torch.no_grad():
            side.call(side.images(seed + 1))
        side.model.train()
        return outputs

    side.train(side.images(seed), seed, forward)


@step
def evaluation_with_gradients(side: Side, seed: int) -> None:
    side.model.eval()
    for index in range(2):
        side.train(side.images(seed + index), seed)
    side.model.train()


@step
def no_grad_in_training(side: Side, seed: int) -> None:
    """As a recomputation of running statistics has it."""
    with torch.no_grad():
        side.call(side.images(seed))


# --- passes ---
@step
def two_forwards(side: Side, seed: int) -> None:
    first = side.call(side.images(seed))
    side.backward(side.loss(first, seed) + side.loss(side.call(side.images(seed + 1)), seed))
    side.update()


@step
def lost_forward(side: Side, seed: int) -> None:
    side.loss(side.call(side.images(seed)), seed)


@step
def held_forward(side: Side, seed: int) -> None:
    """It waits for a backward that never comes, as long as the loop holds it."""
    outputs = side.call(side.images(seed))
    side.held += [("held output", x, x.detach().clone()) for x in tree_leaves(outputs) if isinstance(x, Tensor)]


@step
def backward_in_a_later_step(side: Side, seed: int) -> None:
    """Of the forward of this step; nothing may change what it reads until then."""
    if side.late is None:
        side.late = side.loss(side.call(side.images(seed)), seed)
        side.call(side.images(seed + 1))
        side.backward(side.late)
        side.late = None
        side.update()


@step
def out_of_order(side: Side, seed: int) -> None:
    losses = [side.loss(side.call(side.images(seed + index)), seed) for index in range(3)]
    for index in random.Random(seed).sample(range(3), 3):
        side.backward(losses[index])
    side.update()


@step
def some_losses_of_many(side: Side, seed: int) -> None:
    losses = [side.loss(side.call(side.images(seed + index)), seed) for index in range(3)]
    side.backward(losses[1])
    side.update()


@step
def another_model_between(side: Side, seed: int) -> None:
    """Its forward between ours and our backward; its backward before ours or after."""
    outputs = side.call(side.images(seed))
    theirs = side.other(side.images(seed + 1, shape=(6, 5))).square().mean()
    losses = [side.loss(outputs, seed), theirs]
    for loss in losses if seed % 2 else reversed(losses):
        side.backward(loss)
    side.update()
    side.show("another model's gradient", [x.grad for x in side.other.parameters()], holds=True)
    side.other.zero_grad()


@step
def another_model_in_turn(side: Side, seed: int) -> None:
    for index in range(3):
        side.other(side.images(seed + index, shape=(6, 5))).square().mean().backward()
        side.train(side.images(seed + index), seed + index)
    side.show("another model's gradient", [x.grad for x in side.other.parameters()])
    side.other.zero_grad()


@step
def another_model_behind(side: Side, seed: int) -> None:
    """The input comes out of another compiled model, which trains with ours."""
    weight = next(iter(side.other.parameters()))
    x = side.images(seed, shape=(6, 5))
    side.train(x * side.other(x).mean(), seed)
    side.show("another model's gradient", weight.grad)
    side.other.zero_grad()


@step
def called_twice(side: Side, seed: int) -> None:
    """A step's second call gets what depends on the first."""

    def forward(x: Tensor) -> Any:
        first = next(y for y in tree_leaves(side.call(x)) if isinstance(y, Tensor))
        return side.call(x + first.mean())

    side.train(side.images(seed), seed, forward)


@step
def in_a_thread(side: Side, seed: int) -> None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            side.train(side.images(seed), seed)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


@step
def evaluation_in_a_thread(side: Side, seed: int) -> None:
    def forward(x: Tensor) -> Any:
        outputs = side.call(x)

        def run() -> None:
            with torch.no_grad():
                side.other(side.images(seed, shape=(6, 5)))

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return outputs

    side.train(side.images(seed), seed, forward)


@step
def a_copy_of_the_model(side: Side, seed: int) -> None:
    """It takes a step of its own, between forward and backward."""
    twin: Any = None

    def forward(x: Tensor) -> Any:
        nonlocal twin
        outputs = side.call(x)
        twin = copy.deepcopy(side.model)
        twin.zero_grad()
        side.loss(side.call(x, twin), seed).backward()
        side.show("copy's gradient", [y.grad for y in twin.parameters()])
        return outputs

    side.train(side.images(seed), seed, forward)
