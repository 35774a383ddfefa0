"""PyTorch's database of modules: `python -m tests.nn.module_db` compares every sample of every module it has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch.testing._internal.common_modules import module_db
from torch.utils._pytree import tree_flatten, tree_map

import genesis
from genesis.dtypes import DType

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
NOT_HERE: set[str] = set()  # what Genesis does not have yet
LEFT_OUT = ("3d", "Lazy", "quantized")  # the issue leaves them out
INFOS = {
    info.name: info
    for info in module_db
    if not any(word in f"{info.module_cls.__module__}.{info.name}" for word in LEFT_OUT)
}
NAMES = [name for name, info in INFOS.items() if info.module_cls.__name__ not in NOT_HERE]


def ours_of(value: Any) -> Any:
    """The same arguments for Genesis: tensors are copied, dtypes, modules and functions found by their names."""

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return genesis.from_torch(leaf.detach().clone()).requires_grad_(leaf.requires_grad)
        if isinstance(leaf, torch.dtype):
            return getattr(genesis, str(leaf).removeprefix("torch."))
        if isinstance(leaf, torch.nn.TransformerEncoderLayer):
            return _encoder_layer(leaf)
        name = getattr(leaf, "__name__", "")
        if callable(leaf) and getattr(torch.nn.functional, name, None) is leaf:
            return getattr(genesis.nn.functional, name)
        return leaf

    return tree_map(convert, value)


def _encoder_layer(theirs: torch.nn.TransformerEncoderLayer) -> genesis.nn.TransformerEncoderLayer:
    attention = theirs.self_attn
    return genesis.nn.TransformerEncoderLayer(
        attention.embed_dim,
        attention.num_heads,
        theirs.linear1.out_features,
        theirs.dropout.p,
        getattr(genesis.nn.functional, theirs.activation.__name__),
        norm_first=theirs.norm_first,
        batch_first=attention.batch_first,
        bias=theirs.linear1.bias is not None,
    )


def samples(name: str, dtype: torch.dtype, training: bool) -> Iterator[Any]:
    """The samples of a module that have an input."""
    info = INFOS[name]
    for sample in info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training):
        if sample.forward_input is not None:
            yield info.module_cls, sample


def check(kind: type[torch.nn.Module], sample: Any, dtype: torch.dtype, training: bool) -> bool:
    """Compare output and gradients; False if PyTorch refuses the sample."""
    made, given = sample.constructor_input, sample.forward_input
    torch.manual_seed(0)
    theirs = kind(*made.args, **made.kwargs).to(dtype).train(training)
    mine = ours_of((made.args, made.kwargs, given.args, given.kwargs))
    ours = getattr(genesis.nn, kind.__name__)(*mine[0], **mine[1])
    ours = ours.to(DTYPES[dtype]).train(training)
    ours.load_state_dict(theirs.state_dict())
    torch.manual_seed(1)
    try:
        expected = theirs(*given.args, **given.kwargs)
    except (RuntimeError, ValueError):
        return False
    genesis.manual_seed(1)
    pairs = list(zip(tensors(ours(*mine[2], **mine[3])), tensors(expected), strict=True))
    for result, other in pairs:
        compare(result, other, dtype)
    kept = [(result, other) for result, other in pairs if other.requires_grad]
    torch.autograd.backward([other.sum() for _, other in kept])
    if kept:
        sum(result.sum() for result, _ in kept).backward()
    their_leaves = [*tensors((given.args, given.kwargs)), *theirs.parameters()]
    my_leaves = [*tensors((mine[2], mine[3])), *ours.parameters()]
    for leaf, other in zip(my_leaves, their_leaves, strict=True):
        if not other.is_leaf:  # which keeps no gradient
            continue
        assert (leaf.grad is None) == (other.grad is None)
        if other.grad is not None:
            compare(leaf.grad, other.grad, dtype)
            other.grad = None  # samples share tensors
    return True


DTYPES: dict[torch.dtype, DType] = {torch.float32: genesis.float32, torch.float64: genesis.float64}


def tensors(value: Any) -> list[Any]:
    """The tensors anywhere in a result."""
    return [leaf for leaf in tree_flatten(value)[0] if isinstance(leaf, torch.Tensor | genesis.Tensor)]


def compare(mine: genesis.Tensor, other: torch.Tensor, dtype: torch.dtype) -> None:
    limit = TOLERANCE[dtype]
    torch.testing.assert_close(mine.detach().to_torch(), other.detach(), rtol=limit, atol=limit, equal_nan=True)


def check_all(name: str, most: int | None = None) -> Counter[str]:
    """All samples of a module, or about so many per dtype and mode."""
    counts: Counter[str] = Counter()
    for dtype in TOLERANCE:
        for training in (True, False):
            listed = list(samples(name, dtype, training))
            for number, (kind, sample) in enumerate(listed if most is None else listed[:: -(-len(listed) // most)]):
                try:
                    counts["equal" if check(kind, sample, dtype, training) else "refused by PyTorch"] += 1
                except Exception as error:
                    what = f"{name} sample {number} ({sample.desc}), {dtype}, training={training}: "
                    raise AssertionError(f"{what}{type(error).__name__}: {error}") from error
    return counts


if __name__ == "__main__":
    total: Counter[str] = Counter()
    for each in NAMES:
        try:
            total += check_all(each)
        except AssertionError as error:
            total["modules with a difference"] += 1
            print(str(error)[:400])
    print(dict(total), "not here:", sorted(NOT_HERE))
