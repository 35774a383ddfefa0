"""Functions take what PyTorch's take: every keyword of its stubs, and with the same result."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import genesis
import genesis.port.torch as redirected
from genesis.settings import override
from tests.port import signatures


def test_every_keyword_of_pytorch_is_taken() -> None:
    found = list(signatures.refused())
    unexplained = [f"{each.function}({each.argument}=)" for each in found if each.reason is None]
    assert not unexplained, "python -m tests.port.signatures lists them"
    used = {each.argument for each in found} | {f"{each.function} {each.argument}" for each in found}
    assert signatures.EXCEPTIONS.keys() <= used, "exceptions that are none"
    assert len(found) > 100, "the stubs were read"


def _x(lib: Any, device: str) -> Any:
    return lib.tensor([[3.0, 1.0, 2.0, 0.5], [2.0, 2.5, 1.0, 4.0]], device=device)


CALLS: dict[str, Callable[[Any, Any], Any]] = {  # of the library, and of a (2, 4) tensor
    "cumsum": lambda lib, x: x.cumsum(axis=1),
    "cumsum_": lambda lib, x: x.clone().cumsum_(axis=1),
    "squeeze": lambda lib, x: lib.squeeze(x[:, :1], axis=1),
    "unsqueeze": lambda lib, x: x.unsqueeze(axis=-1),
    "chunk": lambda lib, x: lib.chunk(x, 2, axis=1),
    "unbind": lambda lib, x: x.unbind(axis=1),
    "unsafe_split": lambda lib, x: lib.unsafe_split(input=x, split_size=2, axis=1),
    "log_softmax": lambda lib, x: lib.log_softmax(x, axis=0),
    "median": lambda lib, x: x.median(axis=1, keepdims=True).values,
    "logsumexp": lambda lib, x: lib.logsumexp(x, axis=(0, 1), keepdims=True),
    "topk": lambda lib, x: x.topk(1, axis=0).values,
    "gather": lambda lib, x: x.gather(axis=1, index=lib.zeros_like(x, dtype=lib.int64)),
    "tensor_split of indices": lambda lib, x: lib.tensor_split(x, indices=(1, 3), dim=1),
    "tensor_split of sections": lambda lib, x: x.tensor_split(sections=3, axis=1),
    "hsplit": lambda lib, x: lib.hsplit(x, sections=2),
    "det": lambda lib, x: lib.det(input=x[:, :2]),
    "cholesky": lambda lib, x: lib.cholesky(lib.tensor([[4.0, 2.0], [2.0, 2.0]], device=x.device), True),
    "linalg.norm": lambda lib, x: lib.linalg.norm(x, axis=1, keepdims=True, dtype=lib.float64),
    "linalg.matrix_norm": lambda lib, x: lib.linalg.matrix_norm(x, dtype=lib.float64),
    "isin": lambda lib, x: lib.isin(x, test_element=2),
    "result_type": lambda lib, x: x.to(lib.result_type(tensor=x, other=x.double())),
    "dropout": lambda lib, x: lib.dropout(x, 0.5, train=False),
    "new_zeros": lambda lib, x: x.new_zeros(size=(2, 3), dtype=lib.int32, layout=lib.strided, pin_memory=False),
    "new_ones": lambda lib, x: x.new_ones(size=(2,), requires_grad=True),
    "new_full": lambda lib, x: x.new_full((2,), 3.5, requires_grad=True),
    "new_tensor": lambda lib, x: x.new_tensor([1, 2], dtype=lib.int64, requires_grad=False),
    "full": lambda lib, x: lib.full((2,), 1.5, layout=lib.strided, pin_memory=False),
    "zeros_like of a transpose": lambda lib, x: lib.zeros_like(x.T),
    "full_like, row-major": lambda lib, x: lib.full_like(x.T, 2.0, memory_format=lib.contiguous_format),
    "ones_like, NHWC": lambda lib, x: lib.ones_like(x.reshape(1, 2, 2, 2), memory_format=lib.channels_last),
    "to": lambda lib, x: x.to(lib.float64, memory_format=lib.preserve_format),
    "cpu": lambda lib, x: x.cpu(memory_format=lib.preserve_format),
    "copy_": lambda lib, x: lib.zeros_like(x).copy_(other=x),
    "uniform_": lambda lib, x: x.clone().uniform_(**{"from": 2.0, "to": 2.0}),
    "random_": lambda lib, x: x.clone().random_(**{"from": 2, "to": 3}),
    "view as int32": lambda lib, x: x.view(lib.int32),
    "view of a transpose": lambda lib, x: x.T.view(dtype=lib.int32),
    "view as float16": lambda lib, x: x[1:].view(lib.float16).abs().isnan(),
    "view as float64": lambda lib, x: x[1:, :2].view(lib.float64),
    "view that is changed": lambda lib, x: (x.view(lib.int32)[0].fill_(0), x)[1],
}


ON_BOTH = [name for name in CALLS if name.startswith(("view", "new_", "zeros_like", "ones_like"))]  # what makes memory


@pytest.mark.filterwarnings("ignore:torch.cholesky is deprecated")
@pytest.mark.parametrize(
    ("name", "device"), [*((each, "cpu") for each in CALLS), *((each, "cuda") for each in ON_BOTH)]
)
def test_arguments_mean_what_they_mean_in_pytorch(name: str, device: str) -> None:
    with override(cuda="simulated"):
        found, expected = CALLS[name](redirected, _x(redirected, device)), CALLS[name](torch, _x(torch, "cpu"))
        pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
        for ours, theirs in pairs:
            assert str(ours.dtype) == str(theirs.dtype).replace("torch", "genesis")
            assert (ours.shape, ours.requires_grad) == (theirs.shape, theirs.requires_grad)
            assert name not in ON_BOTH or ours.stride() == theirs.stride()
            torch.testing.assert_close(ours.detach().cpu().to_torch(), theirs.detach())


@pytest.mark.parametrize("op", ["rand_like", "randint_like"])
def test_draws_follow_the_memory(op: str) -> None:
    args = (5,) if op == "randint_like" else ()
    genesis.manual_seed(3)
    ours = getattr(genesis, op)(genesis.zeros(2, 3, 4, 5).permute(0, 3, 1, 2), *args)
    theirs = getattr(torch, op)(torch.zeros(2, 3, 4, 5).permute(0, 3, 1, 2), *args, generator=torch.manual_seed(3))
    assert ours.stride() == theirs.stride()
    assert ours.tolist() == theirs.tolist()


REFUSED = {
    "cumsum: argument 'dim': expected one value, got several": lambda x: x.cumsum(dim=0, axis=0),
    "zeros: argument 'layout': expected strided, got sparse": lambda x: genesis.zeros(2, layout="sparse"),
    "new_empty: argument 'layout': expected strided, got sparse": lambda x: x.new_zeros(2, layout="sparse"),
    "zeros_like: argument 'input': expected 4 dimensions for channels_last, got shape (2, 3)": lambda x: (
        genesis.zeros_like(x, memory_format="channels_last")
    ),
    "ones_like: argument 'memory_format': expected preserve, contiguous or channels_last, got 'rows'": lambda x: (
        genesis.ones_like(x, memory_format="rows")
    ),
    "full_like: argument 'fill_value': expected a number or a 0-d tensor, got (2, 3)": lambda x: genesis.full_like(
        x, x
    ),
    "view: argument 'input': expected a dense last dimension, to see genesis.float32 as genesis.float64, got shape "
    "(3, 2) with strides (1, 3)": lambda x: x.T.view(genesis.float64),
    "view: argument 'input': expected whole elements of genesis.float64 in the last dimension, got shape (2, 3) with "
    "strides (3, 1) at 0": lambda x: x.view(genesis.float64),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_refused(message: str) -> None:
    with pytest.raises((TypeError, ValueError, NotImplementedError), match=re.escape(message)):
        REFUSED[message](genesis.ones(2, 3))


def test_pinned_memory_is_made_where_there_is_a_gpu() -> None:
    with override(cuda="simulated"):
        made = genesis.zeros(2, pin_memory=True, requires_grad=True)
        assert (made.is_pinned(), made.is_leaf, made.requires_grad) == (True, True, True)
        assert made.new_ones(3, pin_memory=True).is_pinned()
