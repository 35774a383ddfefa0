"""Both backends keep the contract: its signatures, and the few ops by which a person uses a backend directly."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import genesis
from genesis import backends, dtypes
from genesis.backends import OPS, Backend, contract
from genesis.backends.contract import TRAITS
from genesis.errors import DTypeError
from genesis.ndarray import NDArray, ops
from genesis.settings import override
from tests.conftest import num_gpus

GPU = pytest.param("auto", marks=pytest.mark.gpu, id="gpu")


@pytest.fixture(params=["cpu", "simulated", GPU])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    if request.param == "cpu":
        yield backends.get("cpu")
    else:
        with override(cuda=request.param):
            yield backends.get("cuda")


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_signatures_are_those_of_the_contract(device_type: str) -> None:
    with override(cuda="auto" if num_gpus() else "simulated"):
        found = backends.get(device_type)
    for op in OPS:
        if TRAITS[op].optional and not found.has(op):
            continue
        theirs = inspect.signature(getattr(found, op)).parameters
        ours = inspect.signature(getattr(contract, op)).parameters
        assert [(p.name, p.default) for p in theirs.values()] == [(p.name, p.default) for p in ours.values()], op


# --- what a person says to a backend  -----------------------------------------------------------------------------


def test_randn_of_a_seed(backend: Backend) -> None:
    x = backend.randn((40, 50), 7)
    assert (tuple(x.shape), backend.dtype(x)) == ((40, 50), dtypes.float32)
    values = backend.to_cpu(x)
    assert abs(values.mean()) < 0.1
    assert abs(values.std() - 1) < 0.1
    np.testing.assert_array_equal(backend.to_cpu(backend.randn((40, 50), seed=7)), values)
    assert not np.array_equal(backend.to_cpu(backend.randn((40, 50), seed=8)), values)


@pytest.mark.parametrize("op", ["rand", "randn"])
def test_a_seed_leaves_the_generator_alone(backend: Backend, op: str) -> None:
    draw = getattr(backend, op)
    backend.manual_seed(1)
    expected = [backend.to_cpu(draw((5,))).copy() for _ in range(2)]
    backend.manual_seed(1)
    first = backend.to_cpu(draw((5,)))
    draw((5,), seed=3)
    np.testing.assert_array_equal([first, backend.to_cpu(draw((5,)))], expected)
    assert backend.dtype(draw((5,), 3, dtypes.float64)) is dtypes.float64


def test_the_generator_of_a_seed_begins_with_the_numbers_of_that_seed(backend: Backend) -> None:
    backend.manual_seed(5)
    np.testing.assert_array_equal(backend.to_cpu(backend.randn((9,))), backend.to_cpu(backend.randn((9,), 5)))


def test_empty(backend: Backend) -> None:
    x = backend.empty((2, 3))
    assert (tuple(x.shape), backend.strides(x), backend.dtype(x)) == ((2, 3), (3, 1), dtypes.float32)
    y = backend.empty((2, 3), (1, 2), dtypes.int8)
    assert (backend.strides(y), backend.dtype(y)) == ((1, 2), dtypes.int8)


@pytest.mark.parametrize("name", [dtype.name for dtype in dtypes.ALL if dtype is not dtypes.bfloat16])
def test_there_and_back_in_the_dtype_of_the_array(backend: Backend, name: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(name)
    x = backend.from_cpu(array)
    backend.synchronize()
    assert backend.dtype(x) is dtypes.BY_NAME[name]
    np.testing.assert_array_equal(backend.to_cpu(x), array)


def test_bits_of_bfloat16_are_named(backend: Backend) -> None:
    x = backend.from_cpu(np.array([0x3F80], np.uint16), dtypes.bfloat16)
    assert backend.to_cpu(backend.cast(x, dtypes.float32)).tolist() == [1.0]
    with pytest.raises(DTypeError, match=r"^from_cpu: argument 'array': expected one of float64, .*, got uint16"):
        backend.from_cpu(np.zeros(1, np.uint16))


# --- the order of work ------------------------------------------------------------------------------------------------


def test_time_passes_between_marks(backend: Backend) -> None:
    start = backend.time_mark()
    x = backend.full((1000,), 1.0, dtypes.float32)
    end = backend.time_mark()
    assert 0 < backend.seconds_between(start, end) < 60
    backend.record_stream(x, backend.current_stream())
    assert backend.to_cpu(x).sum() == 1000


def test_pinned_memory_holds_arrays(backend: Backend) -> None:
    for dtype in (dtypes.float32, dtypes.bfloat16):
        array = backend.empty_pinned((2, 3), dtype)
        array[:] = 0
        assert (array.shape, array.itemsize) == ((2, 3), dtype.itemsize)
        assert backend.is_pinned(array) == (backend.name == "cuda")
        x = backend.from_cpu(array, dtype, non_blocking=True)
        backend.synchronize()
        assert not backend.to_cpu(x).any()
    assert not backend.is_pinned(np.zeros(3))
    assert not backend.is_pinned(np.zeros(0))


# --- what is known of ops ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_the_title_of_a_section_names_the_files_that_implement_it(device_type: str) -> None:
    with override(cuda="auto" if num_gpus() else "simulated"):
        backend = backends.get(device_type)
    folder = Path(contract.__file__).parent
    title, wrong = "", set()
    lines = [line for path in folder.glob("contract*.py") for line in path.read_text(encoding="utf-8").splitlines()]
    assert sum(line.startswith("def ") for line in lines) == len(OPS)
    for line in lines:
        if line.startswith("# --- "):
            title = line
        elif found := re.match(r"def (\w+)\(", line):
            module = getattr(backend, found[1]).__module__
            if module == "genesis.backends.backend" and TRAITS[found[1]].optional:
                continue
            if module == "genesis.backends.backend":
                wrong.add(f"{title}\n    {found[1]} is missing: write it in one of these files of {device_type}")
                continue
            path = module.removeprefix("genesis.backends.").replace(".", "/")
            path = path.removesuffix("/launch") if "/ops/" in path else path
            path = path if (folder / path).is_dir() else f"{path}.py"
            if not re.search(rf"\b{path}(,|\))", title):
                wrong.add(f"{title}\n    does not name {path}, which has {found[1]}")
    assert not wrong, "\n" + "\n".join(sorted(wrong))


def test_a_call_on_arrays_ends_at_the_contract() -> None:
    assert inspect.getsourcefile(inspect.unwrap(ops.add)) == contract.__file__
    assert ops.relu.__doc__ == inspect.unwrap(ops.relu).__doc__
    x = genesis.ones(2, 3).array
    assert type(ops.sum(x, dims=(0,), keepdim=True)) is NDArray
    assert ops.sum(x, (1,)).shape == (2,)
    with pytest.raises(DTypeError, match=r"^rand: takes no array that would say where it runs; ask a backend"):
        ops.rand((2,))


def test_operands_are_promoted() -> None:
    whole, real = genesis.tensor([1, 2]).array, genesis.tensor([0.5, 0.5]).array
    assert ops.add(whole, real).dtype is dtypes.float32
    assert ops.add(1, whole).dtype is dtypes.int64
    assert ops.sub(1, real).numpy().tolist() == [0.5, 0.5]
    assert ops.div(whole, 2).dtype is dtypes.float32
    assert ops.exp(whole).dtype is dtypes.float32


def test_changes_in_place_are_counted() -> None:
    x, y = genesis.ones(2).array, genesis.ones(2).array
    ops.add_into(x, 1.0)
    ops.scale_into([x, y], 2.0)
    assert (x.changes.count, y.changes.count) == (2, 1)


def test_traits_name_parameters() -> None:
    for name, traits in TRAITS.items():
        parameters = list(inspect.signature(getattr(contract, name)).parameters)
        assert list(traits.parameters) == parameters, name
        changed = {each.partition(".")[0] for each in (*traits.in_place, *traits.in_training)}
        assert {*changed, *traits.lists, *traits.opaque} <= set(parameters), name
