"""F.multi_head_attention_forward beside PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis.nn import functional as F

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "no weights": {"need_weights": False},
    "each head's weights": {"average_attn_weights": False},
    "separate": {"use_separate_proj_weight": True},
    "zero and learned keys": {"add_zero_attn": True, "bias_k": (1, 1, 4), "bias_v": (1, 1, 4)},
    "padding": {"key_padding_mask": [[False, False, True], [False, True, False]]},
    "mask": {"attn_mask": [[False, False, True]] * 3},
}


@pytest.mark.parametrize("case", CASES)
def test_as_pytorch(case: str) -> None:
    rng, options = np.random.default_rng(0), dict(CASES[case])
    arrays = {name: rng.standard_normal((3, 2, 4)) for name in ("query", "key", "value")}
    shapes = {"in_proj_weight": (12, 4), "in_proj_bias": (12,), "out_proj_weight": (4, 4), "out_proj_bias": (4,)}
    shapes |= {name: options.pop(name) for name in ("bias_k", "bias_v") if name in options}
    if options.get("use_separate_proj_weight"):
        del shapes["in_proj_weight"]
        shapes |= {f"{name}_proj_weight": (4, 4) for name in "qkv"}
    arrays |= {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    results = []
    for library, function in ((genesis, F), (torch, torch.nn.functional)):
        given = dict.fromkeys(("in_proj_weight", "bias_k", "bias_v")) | {"add_zero_attn": False}
        tensors = {name: library.tensor(array, requires_grad=True) for name, array in arrays.items()}
        given |= tensors | {k: library.tensor(v) if isinstance(v, list) else v for k, v in options.items()}
        y, weights = function.multi_head_attention_forward(
            embed_dim_to_check=4, num_heads=2, dropout_p=0.0, training=False, **given
        )
        (y * y).sum().backward()
        found = [y, *([] if weights is None else [weights]), *[x.grad for x in tensors.values()]]
        results.append([x.detach().numpy() for x in found])
    for mine, other in zip(*results, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"embed_dim_to_check": 5}, "multi_head_attention_forward: argument 'query': expected 5 features, got 4"),
        ({"num_heads": 3}, "multi_head_attention_forward: argument 'query': expected a multiple of 3 heads, got 4"),
        ({"static_k": genesis.ones(1)}, "multi_head_attention_forward: static_k and static_v are not supported"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    x = genesis.zeros(3, 2, 4)
    given = {"embed_dim_to_check": 4, "num_heads": 2, "in_proj_weight": genesis.ones(12, 4), "in_proj_bias": None}
    given |= {"bias_k": None, "bias_v": None, "add_zero_attn": False, "dropout_p": 0.0}
    given |= {"out_proj_weight": genesis.ones(4, 4), "out_proj_bias": None}
    with pytest.raises((ValueError, NotImplementedError)) as raised:
        F.multi_head_attention_forward(x, x, x, **{**given, **options})
    assert message in str(raised.value)
