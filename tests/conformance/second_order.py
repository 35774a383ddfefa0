"""Gradients of gradients over PyTorch's own samples; `python -m tests.conformance.second_order [names]` runs all."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import genesis
from tests.conformance import surface
from tests.conformance.harness import compare_values, find, seed_like, tensors, to_genesis
from tests.conformance.opinfo import NAMES, OPS, draws_of

REFUSED = "create_graph=True is not supported"


def gradients(lib: Any, results: list[Any], operands: list[Any], seeds: list[Any], again: list[Any]) -> list[Any]:
    """The gradients of the operands, and those of the gradients' sum with the weights `again`."""
    first = lib.autograd.grad(results, operands, seeds, create_graph=True, allow_unused=True, materialize_grads=True)
    known = [(grad, weights) for grad, weights in zip(first, again, strict=True) if grad.requires_grad]
    wanted = [*operands, *(seed for seed in seeds if seed.requires_grad)]
    if not known:
        return [*first, *(lib.zeros_like(each) for each in wanted)]
    second = lib.autograd.grad(
        [grad for grad, _ in known], wanted, [weights for _, weights in known], allow_unused=True,
        materialize_grads=True,
    )  # fmt: skip
    return [*first, *second]


TOLERANCE = 1e-9  # in float64: PyTorch's second derivative of binary_cross_entropy adds 1e-12 to its operands


def check(op: Any, sample: Any) -> bool:
    """Compare one sample with PyTorch; False if there is no second gradient to compare."""
    ours = find(op.name)
    assert ours is not None
    arguments = ((sample.input, *sample.args), sample.kwargs)
    mine = to_genesis(arguments)
    results = [each for each in tensors(op.op(*arguments[0], **arguments[1]), torch.Tensor) if each.requires_grad]
    operands = [each for each in tensors(arguments, torch.Tensor) if each.requires_grad]
    if not operands or not results:
        return False
    seeds = [seed_like(result).requires_grad_() for result in results]
    again = [seed_like(operand) for operand in operands]
    my_results = [each for each in tensors(ours(*mine[0], **mine[1]), genesis.Tensor) if each.requires_grad]
    my_operands = [each for each in tensors(mine, genesis.Tensor) if each.requires_grad]
    found = gradients(genesis, my_results, my_operands, to_genesis(seeds), to_genesis(again))
    expected = gradients(torch, results, operands, seeds, again)
    assert len(found) == len(expected), f"{len(found)} gradients, expected {len(expected)}"
    for number, (mine_one, other) in enumerate(zip(found, expected, strict=True)):
        compare_values(f"gradient {number}", mine_one, other, TOLERANCE)
    return any(bool((each != 0).any()) for each in expected[len(operands) :])


def check_op(name: str, most: int | None = None) -> Counter[str]:
    """The samples of an op in float64: how many agree, how many are refused."""
    counts: Counter[str] = Counter()
    for op in OPS[name]:
        if torch.float64 not in op.dtypes or not op.supports_gradgrad:
            continue
        if op.variant_test_name == "subgradients_at_zero":  # where PyTorch's second gradients are NaN, and ours 0
            continue
        refused = surface.DEVIATIONS.get(name, ("", lambda sample: False))[1]
        draws = draws_of(op)
        samples = list(op.sample_inputs("cpu", torch.float64, requires_grad=True))
        for number, sample in enumerate(samples if most is None else samples[:: -(-len(samples) // most)]):
            if refused(sample) or draws(sample):
                continue
            try:
                with sdpa_kernel(SDPBackend.MATH):  # the others have no second gradient
                    counts["equal" if check(op, sample) else "nothing to compare"] += 1
            except NotImplementedError as error:
                if REFUSED not in str(error):
                    raise
                counts[f"refused: {str(error).split(':')[0]}"] += 1
            except Exception as error:
                raise AssertionError(f"{name} sample {number}: {sample}\n{type(error).__name__}: {error}") from error
    return counts


if __name__ == "__main__":
    total: Counter[str] = Counter()
    for name in sys.argv[1:] or [name for name in NAMES if name in OPS]:
        try:
            counts = check_op(name)
        except AssertionError as error:
            counts = Counter({"WRONG": 1})
            print(str(error)[:600])
        print(f"{name:45}", dict(counts), flush=True)
        total += counts
    print(dict(total))
