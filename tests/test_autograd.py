"""The graph and the walk backwards: routing, accumulation, hooks, misuse, memory, threads."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import genesis
from genesis.autograd import ArrayFunction, Function
from genesis.autograd.modes import observe
from genesis.errors import DTypeError, GraphError, ShapeError


def leaf(*values: float) -> genesis.Tensor:
    return genesis.tensor(values, dtype=genesis.float32, requires_grad=True)


class Scale(Function):
    """x · factor, with a tensor, a number and a tensor that gets no gradient as arguments."""

    @staticmethod
    def forward(ctx: Any, unused: Any, factor: float, x: Any) -> Any:
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return None, None, grad * ctx.factor


# --- routing and accumulation -----------------------------------------------------------------------------------------


def test_gradients_are_routed_by_position() -> None:
    unused, x = leaf(1, 2), leaf(3, 4)
    Scale.apply(unused, 5.0, x).sum().backward()
    assert unused.grad is None
    assert x.grad.tolist() == [5, 5]


def test_gradients_accumulate_over_backwards_and_uses() -> None:
    x = leaf(2, 3)
    (x * x + x).sum().backward()
    assert x.grad.tolist() == [5, 7]
    x.sum().backward()
    assert x.grad.tolist() == [6, 8]


def test_gradients_of_two_leaves_never_share_memory() -> None:
    x, y = leaf(1, 2), leaf(3, 4)
    seed = genesis.ones(2)
    (x + y).backward(seed)
    seed.fill_(9)
    x.grad.fill_(7)
    assert y.grad.tolist() == [1, 1]


def test_an_expanded_gradient_becomes_memory_of_its_own() -> None:
    x = leaf(1, 2, 3)
    x.sum().backward()
    x.grad[0] = 5
    assert x.grad.tolist() == [5, 1, 1]
    x.sum().backward()
    assert x.grad.tolist() == [6, 2, 2]


def test_what_a_function_of_users_returns_stays_as_it_is() -> None:
    kept = genesis.ones(2)

    class Constant(genesis.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: genesis.Tensor) -> genesis.Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, grad: genesis.Tensor) -> genesis.Tensor:
            return kept

    x, y = leaf(1, 2), leaf(1, 2) * 1
    Constant.apply(x).sum().backward()
    x.grad.fill_(7)
    (Constant.apply(y) + y).sum().backward()  # two gradients of y that are added up
    assert kept.tolist() == [1, 1]


def test_backward_owns_its_gradient_only_where_nobody_else_holds_it() -> None:
    owns = []

    class Identity(ArrayFunction):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            owns.append(ctx.owns_grad)
            return grad.clone()

    def owned(use: Callable[[genesis.Tensor], object]) -> bool:
        owns.clear()
        use(Identity.apply(leaf(1, 2)))
        return owns.pop()

    assert owned(lambda y: (y * y).sum().backward())
    assert not owned(lambda y: y.backward(genesis.ones(2)))  # the caller's
    assert not owned(lambda y: y.sum().backward())  # expanded
    assert not owned(lambda y: (y.register_hook(lambda grad: None), (y * y).sum().backward()))  # seen by a hook
    assert not owned(lambda y: (x := leaf(1, 2), (x + y).backward(genesis.ones(2))))  # handed on as it came


def test_a_gradient_has_the_dtype_and_shape_of_its_leaf() -> None:
    x = genesis.ones(3, dtype=genesis.float16, requires_grad=True)
    y = genesis.ones(2, 1, requires_grad=True)
    (x * y).sum().backward()
    assert (x.grad.dtype, x.grad.shape) == (genesis.float16, (3,))
    assert (y.grad.dtype, y.grad.tolist()) == (genesis.float32, [[3], [3]])


def test_backward_to_chosen_inputs_only() -> None:
    x, y = leaf(1), leaf(2)
    (x * y).sum().backward(inputs=[x])
    assert x.grad.tolist() == [2]
    assert y.grad is None


# --- hooks ------------------------------------------------------------------------------------------------------------


def test_a_hook_sees_and_replaces_the_gradient() -> None:
    x = leaf(1, 2)
    y = x * 3
    seen = []
    y.register_hook(lambda grad: seen.append(grad.tolist()))
    handle = y.register_hook(lambda grad: grad * 10)
    (y + y).sum().backward(retain_graph=True)
    assert seen == [[2, 2]]  # once, with the whole gradient
    assert x.grad.tolist() == [60, 60]
    handle.remove()
    handle.remove()
    x.grad = None
    (y * 1).sum().backward()
    assert x.grad.tolist() == [3, 3]


def test_a_hook_on_a_leaf_runs_before_accumulation() -> None:
    x = leaf(1)
    x.register_hook(lambda grad: grad * 2)
    (x + x).sum().backward()
    assert x.grad.tolist() == [4]


def test_post_accumulate_hooks_run_once_per_backward_in_order() -> None:
    x = leaf(1, 2)
    calls: list[Any] = []
    x.register_post_accumulate_grad_hook(lambda tensor: calls.append(("first", tensor.grad.tolist())))
    handle = x.register_post_accumulate_grad_hook(lambda tensor: calls.append(("second", tensor is x)))
    (x * x + x).sum().backward()
    assert calls == [("first", [3, 5]), ("second", True)]
    handle.remove()
    x.sum().backward()
    assert calls[2:] == [("first", [4, 6])]


def test_hooks_are_refused_where_they_would_never_run() -> None:
    with pytest.raises(GraphError, match="register_hook: the tensor does not require grad"):
        genesis.ones(1).register_hook(print)
    with pytest.raises(GraphError, match="expected a leaf that requires grad"):
        (leaf(1) * 2).register_post_accumulate_grad_hook(print)


def test_retain_grad_keeps_the_gradient_of_a_result() -> None:
    x = leaf(1, 2)
    y = x * 2
    y.retain_grad()
    z = y * 3
    z.sum().backward()
    assert y.grad.tolist() == [3, 3]
    assert z.grad is None


# --- the graph's life -------------------------------------------------------------------------------------------------


def test_backward_twice_needs_retain_graph() -> None:
    x = leaf(2)
    y = (x * x).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.tolist() == [8]
    with pytest.raises(GraphError, match=r"the graph was freed .* pass retain_graph=True"):
        y.backward()


def test_backward_frees_what_was_saved() -> None:
    x = leaf(1, 2)
    middle = x * 2
    saved = weakref.ref(middle.array.handle)
    result = (middle * middle).sum()
    del middle
    gc.collect()
    assert saved() is not None
    result.backward()
    gc.collect()
    assert saved() is None


def test_a_graph_dies_with_its_last_tensor() -> None:
    x = leaf(1, 2)
    middle = x * 2
    saved = weakref.ref(middle.array.handle)
    result = middle * middle
    gc.disable()  # reference counts suffice: the graph has no cycles
    try:
        del middle, result
        assert saved() is None
    finally:
        gc.enable()


def test_a_chain_of_ten_thousand_ops() -> None:
    x = leaf(1.0)
    y = x
    for _ in range(10_000):
        y = y + 1
    y.sum().backward()
    assert x.grad.tolist() == [1]
    del y


def test_a_long_graph_is_destroyed_without_backward() -> None:
    y = leaf(1.0)
    for _ in range(10_000):
        y = y * 1.0001
    node = weakref.ref(y.grad_fn)
    del y
    gc.collect()
    assert node() is None


# --- changes in place -------------------------------------------------------------------------------------------------


def test_a_saved_value_that_changed_is_noticed() -> None:
    x = leaf(1, 2)
    y = x.exp()
    y.detach().mul_(2)
    with pytest.raises(GraphError, match=r"a value of shape \(2,\) .* changed in place 1 time\(s\)"):
        y.sum().backward()


def test_a_leaf_changes_in_place_only_under_no_grad() -> None:
    x = leaf(1, 2)
    with pytest.raises(GraphError, match="add: a leaf that requires grad can only be changed in place under no_grad"):
        x.add_(1)
    with genesis.no_grad():
        x.add_(1)
    assert x.tolist() == [2, 3]
    assert x.is_leaf


def test_changes_in_place_are_part_of_the_graph() -> None:
    x = leaf(3)
    y = x * 2
    y.mul_(y)
    y += x
    y.sum().backward()
    assert x.grad.tolist() == [8 * 3 + 1]  # d/dx (4x² + x)


def test_a_change_in_place_keeps_shape_and_dtype() -> None:
    with pytest.raises(ShapeError, match=r"in place, the result's shape \(2, 2\) must be the tensor's \(2,\)"):
        genesis.ones(2).add_(genesis.ones(2, 2))
    with pytest.raises(DTypeError, match=r"a result of genesis.float32 cannot be cast to the tensor's genesis.int64"):
        genesis.tensor([1]).mul_(0.5)


# --- autograd.grad ----------------------------------------------------------------------------------------------------


def test_grad_gives_gradients_and_accumulates_nothing() -> None:
    x, y = leaf(2), leaf(5)
    middle = x * y
    found = genesis.autograd.grad((middle * middle).sum(), [middle, x])
    assert [gradient.tolist() for gradient in found] == [[20], [100]]
    assert x.grad is None
    assert y.grad is None


def test_grad_of_what_was_not_used() -> None:
    x, other = leaf(2), leaf(5)
    y = x * 2
    with pytest.raises(GraphError, match="one of the inputs was not used in the graph"):
        genesis.autograd.grad(y, [other], genesis.ones(1), retain_graph=True)
    assert genesis.autograd.grad(y, [x, other], genesis.ones(1), retain_graph=True, allow_unused=True)[1] is None
    zeros = genesis.autograd.grad(y, [other], genesis.ones(1), materialize_grads=True)
    assert zeros[0].tolist() == [0]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: genesis.ones(1).backward(), GraphError, "does not require grad"),
        (lambda x: (x * 2).backward(), GraphError, "argument 'gradient' can be left out only for one element"),
        (lambda x: (x * 2).backward(genesis.ones(3)), ShapeError, r"expected shape \(2,\), got \(3,\)"),
        (lambda x: (x * 2).backward([1, 1]), DTypeError, "argument 'gradient': expected a Tensor, got list"),
        (lambda x: x.sum().backward(inputs=[x], gradient=1), TypeError, "'gradient': expected a Tensor"),
        (lambda x: genesis.autograd.grad(x.sum(), genesis.ones(1)), GraphError, "inputs does not require grad"),
        (lambda x: genesis.autograd.grad([x.sum()], x, [None, None]), ShapeError, "1 gradients, one for each output"),
        (
            lambda x: genesis.ones(1, dtype=genesis.int64).requires_grad_(),
            DTypeError,
            "expected a floating or complex dtype",
        ),
        (lambda x: (x * 2).requires_grad_(False), GraphError, "only leaves can stop requiring grad"),
    ],
)
def test_misuse_is_named(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(leaf(1, 2))


# --- users' functions -------------------------------------------------------------------------------------------------


def test_a_function_of_tensors_with_two_results() -> None:
    class SumAndSign(Function):
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            sign = x.sign()
            ctx.save_for_backward(x)
            ctx.mark_non_differentiable(sign)
            assert not (x + y).requires_grad  # nothing inside is recorded
            return x + y, sign

        @staticmethod
        def backward(ctx: Any, grad: Any, _: Any) -> Any:
            (x,) = ctx.saved_tensors
            return grad * x, grad

    x, y = leaf(2, -3), leaf(1, 1)
    total, sign = SumAndSign.apply(x, y)
    assert (total.requires_grad, sign.requires_grad) == (True, False)
    total.sum().backward()
    assert x.grad.tolist() == [2, -3]
    assert y.grad.tolist() == [1, 1]


def test_surplus_gradients_that_are_none_are_for_defaults() -> None:
    class Scale(Function):
        @staticmethod
        def forward(ctx: Any, x: Any, factor: float = 2.0) -> Any:
            ctx.factor = factor
            return x * factor

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * ctx.factor, None

    for args in [(), (2.0,)]:
        x = leaf(1)
        Scale.apply(x, *args).backward()
        assert x.grad.tolist() == [2]


def test_gradcheck_finds_a_wrong_gradient() -> None:
    class Wrong(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * 3

    x = genesis.ones(2, dtype=genesis.float64, requires_grad=True)
    with pytest.raises(GraphError, match=r"element 0 / d inputs\[0\] element 0: expected 2 \(numeric\), got 3"):
        genesis.autograd.gradcheck(Wrong.apply, x)
    assert not genesis.autograd.gradcheck(Wrong.apply, x, raise_exception=False)
    with pytest.raises(DTypeError, match=r"expected genesis\.float64"):
        genesis.autograd.gradcheck(Wrong.apply, leaf(1))


# --- modes and threads ------------------------------------------------------------------------------------------------


def test_grad_modes_nest_and_decorate() -> None:
    x = leaf(1)

    @genesis.no_grad()
    def doubled() -> Any:
        assert not genesis.is_grad_enabled()
        with genesis.enable_grad():
            assert (x * 2).requires_grad
        return x * 2

    assert not doubled().requires_grad
    assert genesis.is_grad_enabled()
    with genesis.set_grad_enabled(False):
        assert not (x * 2).requires_grad
    assert (x * 2).requires_grad


def test_no_grad_ends_with_an_exception() -> None:
    with pytest.raises(KeyError, match="stop"), genesis.no_grad():
        raise KeyError("stop")
    assert genesis.is_grad_enabled()


def test_modes_and_graphs_belong_to_their_thread() -> None:
    results: list[Any] = []

    def work(seed: float) -> None:
        enabled = genesis.is_grad_enabled()
        x = leaf(seed)
        for _ in range(50):
            (x * x).sum().backward()
        results.append((enabled, x.grad.item() == 100 * seed))

    with genesis.no_grad():
        threads = [threading.Thread(target=work, args=(float(i),)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == [(True, True)] * 4


def test_gradients_add_up_where_one_is_expanded() -> None:
    """mean() hands back one number, expanded: nothing may be added into its memory."""
    x = genesis.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    y = x * 1
    (y.mean() + (y * y).sum() + y.mean()).backward()
    assert x.grad.tolist() == [[2.5, 4.5], [6.5, 8.5]]
    x.grad.mul_(2)  # a grad of its own, which can be changed in place
    assert x.grad.tolist() == [[5.0, 9.0], [13.0, 17.0]]
    z = genesis.ones(3, requires_grad=True)
    z.mean().backward()
    z.grad.add_(1)
    assert z.grad.shape == (3,)


# --- observers ----------------------------------------------------------------------------------------------------


def test_an_observer_sees_every_call_of_its_thread_until_its_block_ends() -> None:
    seen: list[tuple[str, int, dict, list]] = []

    def watch(function: type[Function], args: tuple, kwargs: dict, outputs: list) -> None:
        seen.append((function.__name__, len(args), kwargs, outputs))

    x = genesis.ones(2, 3, requires_grad=True)
    with observe(watch), genesis.no_grad():
        y = x.relu().sum(dim=1)
        with observe(lambda *call: None):
            x.exp()
        thread = threading.Thread(target=x.exp)
        thread.start()
        thread.join()
    x.exp()
    assert [(name, count) for name, count, _, _ in seen] == [("ReLU", 1), ("Sum", 1)]
    assert seen[1][2]["dims"] == (1,)
    assert seen[1][3][0] is y


def test_an_observer_goes_when_its_block_fails() -> None:
    with pytest.raises(ZeroDivisionError), observe(lambda *call: 1 / 0):
        genesis.ones(1).exp()
    assert genesis.ones(1).exp().item() > 2


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_detect_anomaly_names_the_op_that_makes_nan() -> None:
    x = genesis.tensor([0.0, 1.0], requires_grad=True)
    with genesis.autograd.detect_anomaly():
        y = (x.sqrt() * 0).sum()
        with pytest.raises(RuntimeError, match=r"Sqrt\.backward: gradient 0 is NaN; the op was called at .*test_auto"):
            y.backward(retain_graph=True)
        with pytest.raises(RuntimeError, match=r"gradient 0 is NaN"):
            y.backward(create_graph=True)
        (x.sqrt() * 2).sum().backward()  # infinite, which is no NaN
    y = (x.sqrt() * 0).sum()
    y.backward(retain_graph=True)
    with genesis.autograd.set_detect_anomaly(True), pytest.raises(RuntimeError, match="called outside detect_anomaly"):
        y.backward(retain_graph=True)
    genesis.autograd.set_detect_anomaly(True, check_nan=False)
    y.backward(retain_graph=True)
    genesis.autograd.set_detect_anomaly(False)
    y.backward()
