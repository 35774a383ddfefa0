"""Functions of the torch namespace that Genesis has as methods or under other arguments, beside PyTorch's own."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis.port import facade
from genesis.settings import override

OURS: Any = facade.facade("torch")
X = torch.tensor([[0.25, 0.5], [0.75, 1.0]])
IN_PLACE = [name for name in dir(torch) if name.endswith("_") and name[0] != "_" and hasattr(genesis.Tensor, name)]
ARGUMENTS: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "addmv_": lambda t: (t.ones(2, 2), t.ones(2)),
    "as_strided_": lambda t: ((2,), (1,)),
    "clamp_": lambda t: (0.3, 0.8),
    "clamp_max_": lambda t: (0.8,),
    "clamp_min_": lambda t: (0.3,),
    "clip_": lambda t: (0.3, 0.8),
    "fill_": lambda t: (3.0,),
    "gcd_": lambda t: (t.tensor(4),),
    "index_put_": lambda t: ((t.tensor([0]),), t.tensor(7.0)),
    "lcm_": lambda t: (t.tensor(4),),
    "ldexp_": lambda t: (t.tensor(2),),
    "xlogy_": lambda t: (t.tensor(2.0),),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_functions_in_place(name: str) -> None:
    theirs = (X * 8).long() if name in ("gcd_", "lcm_") else X[0].clone() if name == "addmv_" else X.clone()
    mine = genesis.from_torch(theirs.clone())
    arguments = ARGUMENTS.get(name, lambda t: ())
    returned = getattr(OURS, name)(mine, *arguments(OURS))
    getattr(torch, name)(theirs, *arguments(torch))
    assert returned is mine
    torch.testing.assert_close(mine.to_torch(), theirs, equal_nan=True)


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "fill": lambda t, x: t.fill(x, 3.0),
    "embedding": lambda t, x: t.embedding(x, t.tensor([[1, 0]])),
    "hardshrink": lambda t, x: x.hardshrink(0.6),
    "prelu": lambda t, x: (x - 0.5).prelu(t.tensor([0.1])),
    "detach": lambda t, x: t.detach(x),
    "asarray": lambda t, x: t.asarray(x, dtype=t.float64),
    "asarray of numbers": lambda t, x: t.asarray([1, 2]),
    "asarray of NumPy's": lambda t, x: t.asarray(np.arange(3.0), copy=True),
    "dropout_": lambda t, x: t.dropout_(x.clone(), 0.5, False),
    "feature_dropout": lambda t, x: t.feature_dropout(x[None], 0.5, train=False),
    "bernoulli": lambda t, x: t.manual_seed(5) and x.bernoulli(),
    "bernoulli of one": lambda t, x: t.manual_seed(5) and x.bernoulli(0.3),
    "default_generator": lambda t, x: t.rand(3, generator=t.default_generator.manual_seed(4)),
    "manual_seed": lambda t, x: t.rand(3, generator=t.manual_seed(4)),
    "default_generator.get_state": lambda t, x: (t.manual_seed(4), t.default_generator.get_state())[1],
    "default_generator.set_state": lambda t, x: (
        t.manual_seed(4), t.default_generator.set_state(t.default_generator.get_state()), t.rand(2),
    )[2],
    "range": lambda t, x: t.range(1, 2, 0.25),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore:torch.range", "ignore:dropout2d")
def test_calls_as_in_pytorch(name: str) -> None:
    expected, actual = CALLS[name](torch, X), CALLS[name](OURS, genesis.from_torch(X.clone()))
    torch.testing.assert_close(actual.to_torch(), expected)


def test_values_as_in_pytorch() -> None:
    for lib in (torch, OURS):
        x = lib.ones(2, 3)
        assert not lib.is_conj(x)
        assert lib.is_same_size(x, lib.zeros(2, 3))
        assert not x.is_same_size(lib.zeros(3))
        assert lib.tensor([2.0]).is_nonzero()
        assert issubclass(lib.OutOfMemoryError, RuntimeError)
        assert lib.GradScaler(enabled=False).get_scale() == 1.0
        assert lib.manual_seed(9).initial_seed() == lib.random.manual_seed(9).initial_seed() == 9
        assert lib.random.default_generator.initial_seed() == lib.default_generator.initial_seed() == 9
    assert str(OURS.ones(1).layout) == str(OURS.strided)


def test_arrays_share_their_memory() -> None:
    values, x = np.zeros(2), genesis.zeros(2)
    OURS.asarray(values)[0] = 1.0
    assert values.tolist() == [1.0, 0.0]
    assert OURS.asarray(x).data_ptr() == x.data_ptr() != OURS.asarray(x, copy=True).data_ptr()
    assert OURS.asarray(torch.ones(2)).tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="asarray: argument 'copy': expected None or True, as a copy is needed"):
        OURS.asarray(x, dtype=genesis.float64, copy=False)
    with pytest.raises(ValueError, match="asarray: argument 'copy'"):
        OURS.asarray([1.0], copy=False)


def test_draws_follow_their_probabilities() -> None:
    genesis.manual_seed(0)
    rates = genesis.tensor([0.5, 4.0]).expand(4000, 2)
    assert np.allclose(OURS.poisson(rates).mean(0).numpy(), [0.5, 4.0], atol=0.15)
    weights = genesis.tensor([[0.0, 1.0, 3.0]])
    drawn = weights.multinomial(4000, replacement=True, generator=genesis.Generator().manual_seed(2))
    assert np.allclose(drawn[0].bincount(minlength=3).numpy() / 4000, [0, 0.25, 0.75], atol=0.03)
    assert sorted(weights.multinomial(2)[0].tolist()) == [1, 2]
    for refused in (lambda: weights.bernoulli(), lambda: weights.bernoulli(1.5), lambda: weights.multinomial(3)):
        with pytest.raises(ValueError, match=r"bernoulli: argument|multinomial: argument 'num_samples'"):
            refused()


@pytest.fixture
def on_the_gpu() -> Iterator[None]:
    with override(cuda="simulated"):
        yield
        genesis.set_default_device(None)


@pytest.mark.usefixtures("on_the_gpu")
def test_tensors_are_made_on_the_default_device() -> None:
    OURS.set_default_device("cuda")
    assert OURS.get_default_device() == genesis.device("cuda")
    made = [genesis.zeros(2), genesis.tensor([1.0]), genesis.arange(3), genesis.rand(2), genesis.nn.Linear(2, 2).weight]
    assert all(each.is_cuda for each in made)
    assert genesis.zeros(1, device="cpu").is_cpu
    assert genesis.from_numpy(np.ones(1)).is_cpu
    assert genesis.get_rng_state().is_cpu
    with OURS.device("cpu"):
        assert genesis.ones(1).is_cpu
        with OURS.device("cuda"):
            assert genesis.ones(1).is_cuda
    assert genesis.ones(1).is_cuda
    weight = genesis.nn.init.orthogonal_(genesis.empty(3, 2))
    assert weight.is_cuda
    packed = genesis.nn.utils.rnn.pack_sequence([genesis.ones(3, 1), genesis.ones(2, 1)])
    assert packed.batch_sizes.is_cpu
    OURS.set_default_device(None)
    assert genesis.ones(1).is_cpu


@pytest.mark.usefixtures("on_the_gpu")
def test_a_compiled_step_is_recorded_again_on_another_default_device() -> None:
    compiled = genesis.compile(lambda x: x.sum() * genesis.ones(()).to(x.device))
    for place in ("cpu", "cuda"):
        with genesis.device(place), genesis.no_grad():
            for _ in range(3):
                assert compiled(genesis.ones(2)).device.type == place


@pytest.mark.usefixtures("on_the_gpu")
def test_states_of_all_generators() -> None:
    states = OURS.cuda.get_rng_state_all()
    first = genesis.rand(2, device="cuda").tolist()
    OURS.cuda.set_rng_state_all(states)
    assert len(states) == OURS.cuda.device_count()
    assert genesis.rand(2, device="cuda").tolist() == first
    gc.collect()  # of earlier tests' tensors, those in cycles go now
    before = OURS.cuda.memory_allocated()
    held = genesis.ones(1 << 20, device="cuda")
    allocated = before + held.nbytes
    assert f"allocated      | {allocated / 2**20:>8.1f} MiB" in OURS.cuda.memory_summary()
    assert importlib.import_module("genesis.port.stand_ins.cuda").memory_cached is genesis.cuda.memory_reserved
