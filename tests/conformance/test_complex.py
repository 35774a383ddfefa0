"""Complex tensors over PyTorch's samples: each op is PyTorch's, or refused by name; never something else."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

import genesis
from tests.conformance import surface
from tests.conformance.harness import check_refused, check_sample, find, to_genesis
from tests.conformance.opinfo import ITS_WARNINGS

# Ops whose complex form PyTorch has and Genesis refuses. `linalg` and the older names of its decompositions follow.
REFUSED = {
    *surface.words("""
        corrcoef cov logaddexp var_mean std_mean softmax log_softmax as_strided sinc sgn logsumexp logcumsumexp std var
        matrix_exp lu_unpack lu_solve qr triangular_solve svd pinverse logdet cholesky cholesky_inverse cholesky_solve
        nn.functional.softmin nn.functional.conv1d nn.functional.conv2d nn.functional.conv_transpose1d
        nn.functional.conv_transpose2d nn.functional.rms_norm nn.functional.unfold nn.functional.pixel_shuffle
        nn.functional.pixel_unshuffle nn.functional.feature_alpha_dropout
    """),
    *(
        f"linalg.{name}"
        for name in surface.words("""
            det cholesky cholesky_ex cond eigh eigvalsh householder_product lstsq matrix_power norm matrix_norm qr
            slogdet lu_factor lu_factor_ex lu lu_solve inv inv_ex solve solve_ex solve_triangular matrix_rank pinv svd
            svdvals tensorinv tensorsolve
        """)
    ),
}
# Ops that PyTorch refuses for complex numbers, but that need no order of them and are right.
TAKEN = surface.words("""
    sign isin aminmax unique_consecutive nansum nn.functional.local_response_norm nn.functional.max_unpool1d
    nn.functional.max_unpool2d nn.functional.embedding_bag index_reduce
""")
FLOATS = {torch.float32}
MOST = 25  # samples of an op


def ops(wanted: bool) -> Iterator[Any]:
    """The ops that both sides have, and that PyTorch computes for complex numbers, or does not."""
    for info in op_db:
        variant = (info.name, info.variant_test_name)
        compared = variant not in surface.OTHER_FUNCTIONS and info.name not in surface.NOT_COMPARED
        known = torch.complex64 in info.dtypes if wanted else {torch.float32, torch.complex64} & info.dtypes == FLOATS
        if compared and known and find(info.name) is not None:
            yield pytest.param(info, id="-".join(filter(None, variant)))


def thinned(samples: list[Any]) -> list[Any]:
    return samples[:: len(samples) // MOST + 1]


@pytest.mark.filterwarnings(*ITS_WARNINGS, "ignore:Casting complex values", "ignore:A window was not provided")
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize("op", list(ops(True)))
def test_samples(op: Any, dtype: torch.dtype) -> None:
    ours = find(op.name)
    assert ours is not None
    gradients = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    refused = surface.DEVIATIONS.get(op.name, ("", lambda sample: False))[1]
    for sample in thinned(list(op.sample_inputs("cpu", dtype, requires_grad=gradients))):
        if refused(sample) or (op.name == "renorm" and math.inf in sample.args):  # PyTorch's gradient is NaN there
            continue
        if op.name == "istft":  # whose windows are views that PyTorch gives no gradient
            sample.kwargs = tree_map(_as_leaf, sample.kwargs)
        try:
            check_sample(ours, op.op, sample, "cpu", gradients)
        except (NotImplementedError, genesis.errors.DTypeError) as error:
            if op.name not in REFUSED or "complex" not in str(error):
                raise


def _as_leaf(value: Any) -> Any:
    is_tensor = isinstance(value, torch.Tensor)
    return value.detach().clone().requires_grad_(value.requires_grad) if is_tensor else value


def _as_complex(value: Any) -> Any:
    """The same arguments with complex numbers in the place of floats."""

    def convert(leaf: Any) -> Any:
        is_float = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        return leaf.detach().to(torch.complex64) if is_float else leaf

    return tree_map(convert, value)


@pytest.mark.filterwarnings("ignore")  # of calls that PyTorch refuses
@pytest.mark.parametrize("op", list(ops(False)))
def test_what_pytorch_refuses_is_refused(op: Any) -> None:
    """Or PyTorch takes the sample nevertheless, and both agree."""
    ours = find(op.name)
    assert ours is not None
    if op.name in TAKEN:
        return
    for sample in thinned(list(op.sample_inputs("cpu", torch.float32)))[:8]:
        sample.input, sample.args, sample.kwargs = _as_complex((sample.input, sample.args, sample.kwargs))
        leaves = tree_leaves((sample.input, sample.args, sample.kwargs))
        if not any(isinstance(leaf, torch.Tensor) and leaf.is_complex() for leaf in leaves):
            continue
        try:
            op.op(sample.input, *sample.args, **sample.kwargs)
        except (RuntimeError, TypeError, ValueError, IndexError, AssertionError):
            check_refused(ours, sample, "a refusal of complex numbers")
            continue
        arguments, options = to_genesis(((sample.input, *sample.args), sample.kwargs))
        try:
            ours(*arguments, **options)
        except (genesis.errors.DTypeError, NotImplementedError, ValueError):
            continue
        check_sample(ours, op.op, sample, "cpu", gradients=False)
