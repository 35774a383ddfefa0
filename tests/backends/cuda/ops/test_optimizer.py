"""Steps over lists of arrays against the CPU backend in float64: dtypes, orders of memory, many chunks, some steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from genesis import backends
from genesis.backends.backend import Backend
from genesis.backends.cuda.ops.optimizer import launch as optimizer_module
from genesis.records import AdamOptions, SGDOptions, StepInputs

Put = Callable[[Any], Any]
Get = Callable[[Any], torch.Tensor]
Tensors = list[torch.Tensor]

CPU = backends.get("cpu")
DTYPES = {torch.float64: 1e-12, torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}
SHAPES = [(5,), (), (0,), (3, 4), (70, 80)]  # the last one takes several chunks


def arrays(dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensors:
    generator = torch.manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]


def check(results: list[Any], expected: Tensors, get: Get) -> None:
    for result, known in zip(results, expected, strict=True):
        tolerance = DTYPES[known.dtype]
        torch.testing.assert_close(get(result), known, rtol=tolerance, atol=tolerance)


def reference(op: str, roles: list[Tensors | None], *call: Any) -> None:
    """The step in float64 and row-major memory, rounded back into roles."""
    wide = [None if role is None else [x.double().contiguous() for x in role] for role in roles]
    getattr(CPU, op)(*wide, *call)
    for role, values in zip(roles, wide, strict=True):
        for x, value in zip(role or (), values or (), strict=True):
            x.copy_(value)


def check_step(
    cuda: Backend, put: Put, get: Get, op: str, roles: list[Tensors | None], calls: list[tuple[Any, ...]]
) -> None:
    """All arrays after each of the calls, which differ in the gradients (role 1) and in the arguments."""
    held = [None if role is None else [put(x.clone()) for x in role] for role in roles]
    for seed, call in enumerate(calls, 10):
        roles[1] = arrays(roles[0][0].dtype, seed)
        held[1] = [put(g.clone()) for g in roles[1]]
        reference(op, roles, *call)
        getattr(cuda, op)(*held, *call)
        for results, known in zip(held, roles, strict=True):
            if known is not None:
                check(results, known, get)


SGD = {
    "plain": (0.0, 0.0, 0.0, False, False),
    "momentum": (0.9, 0.1, 0.01, False, False),
    "nesterov": (0.9, 0.0, 0.0, True, True),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", SGD)
def test_sgd_step(cuda: Backend, put: Put, get: Get, case: str, dtype: torch.dtype) -> None:
    calls = [(SGDOptions(0.1, *SGD[case]), first) for first in (True, False)]
    buffers = None if case == "plain" else [torch.zeros_like(p) for p in arrays(dtype)]
    check_step(cuda, put, get, "sgd_step", [arrays(dtype), None, buffers], calls)


ADAM = {"adam": (False, False, False), "adamw": (False, True, False), "amsgrad": (True, True, True)}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", ADAM)
def test_adam_step(cuda: Backend, put: Put, get: Get, case: str, dtype: torch.dtype) -> None:
    amsgrad, decoupled, maximize = ADAM[case]
    states = [[torch.zeros_like(p) for p in arrays(dtype)] for _ in range(3)]
    roles = [arrays(dtype), None, *states[:2], states[2] if amsgrad else None]
    eps = 1e-3 if dtype in (torch.float16, torch.bfloat16) else 1e-8
    calls = [(step, AdamOptions(0.01, 0.9, 0.99, eps, 0.1, decoupled, maximize)) for step in (1, 2)]
    check_step(cuda, put, get, "adam_step", roles, calls)


# --- numbers in device memory, as CUDA graphs read them ---------------------------------------------------------------
def bits(held: list[Any], get: Get) -> list[Any]:
    return [None if role is None else [get(x).tolist() for x in role] for role in held]


def put_all(put: Put, roles: list[Tensors | None]) -> list[Any]:
    return [None if role is None else [put(x.clone()) for x in role] for role in roles]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_sgd_step_reads_its_numbers_from_an_array(
    cuda: Backend, put: Put, get: Get, device: str, dtype: torch.dtype
) -> None:
    backend, put, get = (cuda, put, get) if device == "cuda" else (CPU, lambda x: x, lambda x: x)
    roles = [arrays(dtype), arrays(dtype, 1), arrays(dtype, 2)]
    results, options = [], SGDOptions(0.1, 0.9, 0.0, 0.01, nesterov=True, maximize=False)
    others = SGDOptions(7.0, 7.0, 7.0, 7.0, nesterov=True, maximize=False)
    inputs = StepInputs(put(torch.tensor(options[:4], dtype=torch.float64)), put(torch.tensor(False)))
    for args in ((options, False), (others, False, inputs)):
        held = put_all(put, roles)
        backend.sgd_step(*held, *args)
        results.append(bits(held, get))
    assert results[0] == results[1] != bits(roles, lambda x: x)
    held = put_all(put, roles)
    backend.sgd_step(*held, options, False, StepInputs(None, put(torch.tensor(True))))
    assert bits(held, get) == bits(roles, lambda x: x), "skipped"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_adam_step_reads_and_counts_in_arrays(
    cuda: Backend, put: Put, get: Get, device: str, dtype: torch.dtype
) -> None:
    backend, put, get = (cuda, put, get) if device == "cuda" else (CPU, lambda x: x, lambda x: x)
    moments = [arrays(dtype, 2), [x.abs() for x in arrays(dtype, 3)], [x.abs() for x in arrays(dtype, 4)]]
    roles = [arrays(dtype), arrays(dtype, 1), *moments]
    flags = {"decoupled_weight_decay": True, "maximize": False}
    options, others = AdamOptions(0.1, 0.9, 0.99, 1e-3, 0.01, **flags), AdamOptions(7.0, 0.7, 0.7, 7.0, 7.0, **flags)
    expected, held = put_all(put, roles), put_all(put, roles)
    numbers = put(torch.tensor(options[:5], dtype=torch.float64))
    for count in (1, 5, 6, 333, 100_003):
        step = put(torch.tensor(count - 1))
        backend.adam_step(*expected, count, options)
        backend.adam_step(*held, step, others, StepInputs(numbers, put(torch.tensor(False))))
        backend.adam_step(*held, step, options, StepInputs(None, put(torch.tensor(True))))  # skipped
        assert get(step).item() == count
        assert bits(held, get) == bits(expected, get), count


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_update_scale(cuda: Backend, put: Put, get: Get, device: str) -> None:
    backend, put, get = (cuda, put, get) if device == "cuda" else (CPU, lambda x: x, lambda x: x)
    scale, tracker = put(torch.tensor(2.0**125, dtype=torch.float64)), put(torch.tensor(0))
    seen = []
    for found in (False, True, False, False, False, False, False, False, False, False):
        backend.update_scale(scale, tracker, put(torch.tensor(found)), 4.0, 0.5, 2)
        seen.append((math.log2(get(scale).item()), get(tracker).item()))
    grown = [(124, 1), (126, 0), (126, 1), (126, 0), (126, 1), (126, 0), (126, 1), (126, 0)]  # below 2¹²⁸
    assert seen == [(125, 1), (124, 0), *grown]


def test_unscale_into_by_an_array(cuda: Backend, put: Put, get: Get) -> None:
    held = [put(x) for x in arrays()]
    assert not get(cuda.unscale_into(held, put(torch.tensor(0.5, dtype=torch.float64)))).item()
    check(held, [x * 0.5 for x in arrays()], get)


def test_step_of_arrays_in_any_order_of_memory(cuda: Backend, put: Put, get: Get) -> None:
    param = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    cut = torch.randn(4, 6)[:, ::2]
    params, grads = [param.clone(), cut.clone()], [torch.randn(2, 3, 4, 5), torch.randn(3, 4).T]
    buffers = [torch.randn(2, 3, 4, 5), torch.randn(4, 3)]
    base = torch.randn(4, 6)
    held = [[put(param.clone()), put(base)], [put(g) for g in grads], [put(b.clone()) for b in buffers]]
    held[0][1] = cuda.view(held[0][1], (4, 3), (6, 2), 0)
    params[1] = base.clone()[:, ::2]
    call = (SGDOptions(0.1, 0.9, 0.0, 0.1, False, False), False)
    reference("sgd_step", [params, grads, buffers], *call)
    cuda.sgd_step(*held, *call)
    check(held[0], params, get)
    check(held[2], buffers, get)
    assert held[0][0].strides == param.stride()


def test_arrays_of_several_dtypes(cuda: Backend, put: Put, get: Get) -> None:
    mixed = [torch.randn(5), torch.randn(5).double(), torch.randn(7)]
    held = [put(x.clone()) for x in mixed]
    cuda.scale_into(held, 0.5)
    check(held, [x * 0.5 for x in mixed], get)
    result = cuda.norms(held, 2.0)
    torch.testing.assert_close(get(result), torch.stack([(x * 0.5).double().norm() for x in mixed]), rtol=1e-6, atol=0)


def test_a_table_is_kept_and_follows_the_addresses(cuda: Backend, put: Put, get: Get) -> None:
    held, others = [put(x) for x in arrays()], [put(x) for x in arrays()]
    cuda.scale_into(held, 0.5)
    before = optimizer_module._table.cache_info()
    cuda.scale_into(others, 0.25)
    cuda.scale_into(held, 0.5)
    after = optimizer_module._table.cache_info()
    assert (after.misses, after.hits) == (before.misses, before.hits + 2)
    check(held, [x * 0.25 for x in arrays()], get)
    check(others, [x * 0.25 for x in arrays()], get)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.int64, torch.bool], ids=str)
def test_copy_all_into(cuda: Backend, put: Put, get: Get, dtype: torch.dtype) -> None:
    """Arrays of equal layouts go together, others by themselves: of another dtype or order, expanded, or with gaps."""
    sources = [x.to(dtype) for x in arrays(seed=3)]
    others = [
        torch.randn(3, 4).double(),
        torch.randn(4, 3).T,
        torch.randn(3, 1).expand(3, 4),
        torch.randn(3, 8)[:, ::2],
    ]
    sources += [others[0], *(x.to(dtype) for x in others[1:])]
    targets = [torch.zeros(x.shape, dtype=dtype) for x in sources]
    base = put(torch.zeros(40, dtype=dtype))
    held = [*map(put, targets), cuda.view(base, (3, 4), (4, 1), 1), cuda.view(base, (3, 4), (8, 2), 16)]
    given = [*map(put, sources), put(sources[3]), put(sources[3])]
    cuda.copy_all_into(held, given)
    for target, source in zip(held, [*sources, sources[3], sources[3]], strict=True):
        assert torch.equal(get(target), source.to(dtype))
    assert get(base).double().sum() == 2 * sources[3].double().sum()  # nothing between them was written


@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("target", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_copy_all_into_another_dtype(
    cuda: Backend, put: Put, get: Get, source: torch.dtype, target: torch.dtype
) -> None:
    """Rounded, to infinity too, as by cast: of several chunks, not row-major, at addresses that 16 does not divide."""
    given = [x.to(source) for x in arrays(seed=4)]
    given[4][0, :4] = torch.tensor([math.inf, -math.inf, math.nan, torch.finfo(source).max])
    targets = [put(torch.zeros_like(x, dtype=target)) for x in given]
    cuda.copy_all_into(targets, [*map(put, given)])
    for made, known in zip(targets, given, strict=True):
        torch.testing.assert_close(get(made), known.to(target), rtol=0, atol=0, equal_nan=True)
    wide, narrow = torch.randn(41).to(source), put(torch.zeros(41, dtype=target))
    across = [cuda.view(x, (8, 5), (1, 8), 1) for x in (narrow, put(wide))]
    cuda.copy_all_into([across[0], targets[0]], [across[1], put(given[0])])
    assert torch.equal(get(narrow)[1:], wide[1:].to(target))
    assert get(narrow)[0] == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scale_into(cuda: Backend, put: Put, get: Get, dtype: torch.dtype) -> None:
    for factor in (0.375, torch.tensor(0.375)):
        held = [put(x) for x in arrays(dtype)]
        cuda.scale_into(held, put(factor))
        check(held, [x * 0.375 for x in arrays(dtype)], get)


@pytest.mark.parametrize("bad", [None, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_unscale_into(cuda: Backend, put: Put, get: Get, dtype: torch.dtype, bad: float | None) -> None:
    grads = arrays(dtype)
    if bad is not None:
        grads[4][69, 79] = bad
    held = [put(x.clone()) for x in grads]
    found = cuda.unscale_into(held, 0.5)
    assert found.shape == ()
    assert get(found).item() is (bad is not None)
    check(held[:4], [x * 0.5 for x in grads[:4]], get)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("ord", [0.0, 1.0, 2.0, 3.0, math.inf, -math.inf])
def test_norms(cuda: Backend, put: Put, get: Get, ord: float, dtype: torch.dtype) -> None:
    given = [x for x in arrays(dtype) if x.numel()]
    expected = torch.stack([torch.linalg.vector_norm(x.double(), ord) for x in given]).to(dtype)
    check([cuda.norms([put(x) for x in given], ord)], [expected], get)
    given[3][0, 0] = math.nan
    assert ord == 0 or get(cuda.norms([put(given[3])], ord)).isnan().all()


def test_norm_of_nothing_is_zero(cuda: Backend, put: Put, get: Get) -> None:
    assert get(cuda.norms([put(torch.empty(0)), put(torch.ones(4))], 2.0)).tolist() == [0, 2]


def test_integers_have_none(cuda: Backend, put: Put) -> None:
    with pytest.raises(NotImplementedError, match="optimizer steps have no cuda implementation for int64"):
        cuda.scale_into([put(torch.ones(3, dtype=torch.int64))], 2.0)
