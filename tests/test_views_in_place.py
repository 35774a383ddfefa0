"""Changes in place through views and aliases, against PyTorch: values, gradients, refusals; and tools that follow them.

Random programs are in fuzz_in_place.py; a few of them run here.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis import functional as F
from genesis import growth, nn
from genesis.errors import GraphError, GrowthError
from tests import fuzz_in_place

# Each program has x, a tensor with history of the leaf w (2 × 6), and a leaf y (6).
PROGRAMS = {
    "a column": "x[:, 0] += y[0]",
    "flat": "x.view(-1).add_(1).mul_(3)",
    "slices of slices": "a = x[:, 1:5][:, ::2]; a *= y[:2]; x = x * a.sum()",
    "a mask": "x[x > 0] = 0",
    "a mask of a view": "x[1][x[1] > 0] = 2.0",
    "a view that came before": "a = x[0]; x.mul_(2); x = a * a",
    "a view beside the change": "a, b = x[0], x[0]; a.mul_(y); x = x + b * b",
    "views that overlap": "a, b = x[:, :4], x[:, 2:]; a.mul_(2); b.add_(a.clone()); a.sin_()",
    "transposed": "x.t()[2].mul_(y[:2])",
    "the diagonal": "x.diagonal().add_(y[:2]); x = x * 2",
    "relu, which keeps its result": "F.relu(x[:, :3], inplace=True)",
    "attention windows": "a = x.view(2, 2, 3); a[:, 0, 1:] = -1.0; x = a.softmax(-1)",
    "drop path": "x.mul_(lib.ones_like(x[:, :1]).bernoulli_(1.0).div_(0.5))",
    "dropout of a view": "F.dropout(x[0], 1.0, True, True)",
    "no history but the operand's": "a = lib.zeros_like(w.detach()); a[0] += y; x = a * x",
    "overwritten": "x[0].fill_(3); x[1].copy_(y)",
    "overwritten with no gradient": "x[0].zero_()",
    "squeezed in place": "a = x[:1]; a.squeeze_(0); a.mul_(y)",
    "transposed in place": "a = x[0]; x.t_(); a.mul_(y); x = x * 2",
    "without record": "a = x[0]\nwith lib.no_grad(): x.mul_(2)\nx = a * a",
    "detached, on the same memory": "x.detach()[0] += 1",
    "of a broadcast": "a = y.expand(2, 6); y2 = y * 1; b = y2.expand(2, 6); y2.mul_(3); x = x * b + a",
    "an operand given by name": "x[0].mul_(other=y)",
    "a hook of before": "x.register_hook(lambda g: g * 2); x[0].mul_(y); x.register_hook(lambda g: g * 3)",
    "retained": "x.retain_grad(); x[0].mul_(2); kept = x; x = x * x",
    "retained by a view": "a = x[0]; a.retain_grad(); x.mul_(2); kept = a; x = x * x + a",
    "an alias": "a = x; a **= 2; a %= 3",
}  # fmt: skip
W = [[0.5, -1.0, 2.0, 0.25, -0.5, 1.5], [1.0, 3.0, -2.0, 0.75, 0.1, -0.3]]
Y = [1.0, -2.0, 0.5, 3.0, 1.5, -1.0]


def run(lib: Any, source: str, device: str = "cpu") -> dict[str, Any]:
    functional = F if lib is genesis else torch.nn.functional
    w, y = (lib.tensor(values, device=device, requires_grad=True) for values in (W, Y))
    names: dict[str, Any] = {"lib": lib, "F": functional, "w": w, "y": y, "x": w * 2}
    exec(source, names)
    x = names["x"]
    (x * lib.arange(float(x.numel()), device=device).reshape(*x.shape)).sum().backward()
    return {"x": x, "w": w.grad, "y": y.grad, "kept": names["kept"].grad if "kept" in names else None}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, device: str) -> None:
    mine, theirs = run(genesis, PROGRAMS[name], device), run(torch, PROGRAMS[name])
    for each, expected in theirs.items():
        assert (mine[each] is None) == (expected is None), each
        if expected is not None:
            np.testing.assert_allclose(mine[each].tolist(), expected.tolist(), rtol=1e-5, atol=1e-6, err_msg=each)


REFUSED = {
    "w.mul_(2)": "mul: a leaf that requires grad can only be changed in place",
    "w[0] = 1": "a leaf that requires grad",
    "w[0].mul_(2)": "mul: a view of a leaf that requires grad can only be changed in place",
    "w.view(-1).t_()": "t_: a view of a leaf",
    "x.chunk(2)[0].mul_(2)": "it is one of several views that one op returned",
    "x.split(1)[0][0].zero_()": "it is one of several views that one op returned",
    "a = x.unbind()[0]; x.mul_(2); a * 2": "memory has been changed in place cannot be used here: it is one of several",
    "a = w.detach() * 1\nwith lib.no_grad(): b = a[0]\nb.mul_(y)": "it was made under no_grad",
    "with lib.no_grad(): a = x[0]\nx.mul_(2); a * 2": "it was made under no_grad",
    "a = x.sigmoid_(); x.view(-1)[0] = 1; x.sum().backward()": "saved for the gradient has been changed",
    "a = x * x; x[0].add_(1); a.sum().backward()": "saved for the gradient has been changed",
    "a = x[0].exp(); b = a[:1]; b.zero_(); a.sum().backward()": "saved for the gradient has been changed",
    "x[0].detach_()": "detach_: a view cannot leave the graph",
    "x.requires_grad = False": "only leaves can stop requiring grad",
    "x.data = w.int(); x.data.requires_grad = True": "a floating or complex dtype",
    "x[0].mul_(2); x.sum().backward(); x.sum().backward()": "the graph was freed",
}  # fmt: skip


@pytest.mark.parametrize("source", REFUSED)
def test_refusals(source: str) -> None:
    with pytest.raises((RuntimeError, NotImplementedError)):  # so does PyTorch
        run(torch, source)
    with pytest.raises((GraphError, TypeError), match=REFUSED[source]):
        run(genesis, source)


WITHOUT_GRADIENT = (
    "a.nonzero()", "a > 0", "a == a", "a.isnan()", "a.argmax()", "a.signbit()", "a.logical_not()",
    "a.bool()", "a.long()", "a.to(lib.int32)", "lib.isin(a, a)", "lib.zeros_like(a)", "a.count_nonzero()", "a.detach()",
    "lib.tensor([repr(a.detach()) == repr(a).replace(', grad_fn=<Invalid>', '')])", "lib.bucketize(a, a.detach())",
)  # fmt: skip


@pytest.mark.parametrize("expression", WITHOUT_GRADIENT)
def test_what_has_no_gradient_takes_one_of_several_views_after_their_base_has_changed(expression: str) -> None:
    found = []
    for lib in (genesis, torch):
        x = lib.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True) * 1
        a = x.split(2)[0]
        x *= x
        found.append(eval(expression, {"lib": lib, "a": a}))
    assert found[0].tolist() == found[1].tolist()


def test_a_refused_change_leaves_everything_as_it_was() -> None:
    x = genesis.ones(2, 3, requires_grad=True) * 2
    part, node, version = x.chunk(2)[0], x.grad_fn, x._version
    with pytest.raises(GraphError):
        part.mul_(2)
    with pytest.raises(ValueError, match="in place, the result's shape"):
        x[0].add_(genesis.ones(2, 3))
    assert (x.tolist(), x.grad_fn, x._version) == ([[2] * 3] * 2, node, version)


def test_dropout_that_drops_nothing_changes_nothing() -> None:
    leaf = genesis.ones(2, requires_grad=True)
    assert F.dropout(leaf, 0.5, training=False, inplace=True) is leaf
    assert F.dropout2d(leaf.reshape(1, 2, 1), 0.0, inplace=True)._version == 0


def test_views_know_their_base() -> None:
    x = genesis.ones(2, 3)
    row = x[0][1:]
    assert (row._base, x._base, x._is_view(), row._is_view(), row.detach()._is_view()) == (x, None, False, True, False)
    row.add_(1)
    assert x._version == row._version == row.detach()._version == 1
    x.mul_(genesis.ones(2, 3, requires_grad=True))
    assert row.requires_grad
    assert not row.is_leaf
    assert repr(row.grad_fn) == "<AsStridedBackward>"
    row[0] = 1.0
    assert repr(x.grad_fn) == "<CopySlicesBackward>"


def test_leaves_that_no_longer_require_grad_get_none() -> None:
    x = genesis.ones(2, requires_grad=True)
    y = (x * 2).sum()
    x.requires_grad_(False)
    y.backward()
    assert x.grad is None


def test_what_a_hook_keeps_stays_as_it_was() -> None:
    x, seen = genesis.ones(1, requires_grad=True), []
    x.register_hook(seen.append)
    for _ in range(2):
        (x * 2).backward()
    assert [grad.item() for grad in seen] == [2, 2]


@pytest.mark.parametrize(
    "read",
    ["x[i]", "x.index_select(0, i)", "x.scatter(0, i, x[:2] * 1)", "x.scatter_add(0, i, x[:2] * 1)",
     "x.index_add(0, i, x[:2] * 1)", "x.index_put((i,), x[:2] * 1)"],
)  # fmt: skip
def test_an_index_that_changes_before_backward_is_noticed(read: str) -> None:
    x, i = genesis.ones(3, requires_grad=True) * 1, genesis.tensor([0, 1])
    y = eval(read, {"x": x, "i": i})
    i.add_(1)
    with pytest.raises(GraphError, match="saved for the gradient has been changed in place"):
        y.sum().backward()


def test_a_leaf_that_became_a_result_is_refused() -> None:
    x = genesis.ones(2, requires_grad=True)
    y = x * 2
    x.detach_().mul_(y.detach().requires_grad_())
    with pytest.raises(GraphError, match="has since become the result of an op in place"):
        y.sum().backward()


def test_shifts(device: str) -> None:
    values = [1, 5, -3, 100, -128, 127]
    for dtype in ("int8", "uint8", "int32", "int64"):
        theirs = torch.tensor(values).to(getattr(torch, dtype))
        for count in (0, 1, 7, 8, 31, 63, 64, 300, -1):
            mine = genesis.from_torch(theirs.clone()).to(device)
            alias = mine
            assert (mine >> count).tolist() == (theirs >> count).tolist(), (dtype, count)
            mine <<= count
            assert alias.tolist() == (theirs << count).tolist(), (dtype, count)
    assert (1 << genesis.tensor([1, 2])).tolist() == [2, 4]
    with pytest.raises(TypeError, match="bitwise_left_shift: argument 'input': expected integers"):
        genesis.ones(2) << 1


# --- tools that follow a run ------------------------------------------------------------------------------------------


class Changing(nn.Module):
    """A layer whose output changes through views before the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 6), nn.Linear(6, 2)

    def forward(self, input: Any) -> Any:
        y = self.first(input)
        y[:, 0] += input[:, 1]
        y.view(-1)[::2].mul_(1.5)
        y.reshape(-1, 2, 3)[:, 1].sin_()
        return self.second(y)


def losses(compiled: bool) -> list[float]:
    genesis.manual_seed(0)
    net = Changing()
    optimizer = genesis.optim.SGD(net.parameters(), lr=0.1)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    function = genesis.compile(step) if compiled else step
    result = [function(genesis.randn(4, 3)).item() for _ in range(5)]
    assert not compiled or function.num_recordings == 1  # type: ignore[attr-defined]
    return result


def test_a_training_step_is_recorded_and_replayed() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert losses(compiled=True) == losses(compiled=False)


def test_replayed_results_that_share_memory_refuse_recorded_changes() -> None:
    function = genesis.compile(lambda x: ((y := x * 2), y[0]))
    for _ in range(3):
        whole, row = function(genesis.ones(2, 2))
    with pytest.raises(GraphError, match="returned by a custom Function or a compiled one"):
        row.mul_(genesis.ones(2, requires_grad=True))
    whole.mul_(genesis.ones(2, requires_grad=True))
    with pytest.raises(GraphError, match="returned by a custom Function or a compiled one"):
        row * 2


def test_growing_refuses_by_name() -> None:
    net = Changing()
    with pytest.raises(GrowthError, match="the channel map has no rule for the op CopySlices"):
        growth.grow_width(net, "first", channels=9, example=genesis.ones(1, 3))


# --- random programs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(0, 200, 20))
def test_random_programs(seed: int, device: str) -> None:
    count = 20 if device == "cpu" else 2
    raised = sum(fuzz_in_place.check(each, device).num_raised for each in range(seed, seed + count))
    assert device != "cpu" or raised > 3
