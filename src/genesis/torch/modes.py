"""Modes and transforms of PyTorch: which are on, and whether one must see the layers' own functions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from genesis.records import NormState

saved_tensors_hooks = torch._C._autograd._top_saved_tensors_default_hooks
_dispatch_modes = torch._C._len_torch_dispatch_stack
function_modes = torch._C._len_torch_function_stack
_transforms = torch._C._are_functorch_transforms_active
_tracing = torch._C._get_tracing_state
_any_autocast = torch._C._is_any_autocast_enabled
_is_grad_enabled, _is_inference = torch.is_grad_enabled, torch.is_inference_mode_enabled


def nothing_intercepts() -> bool:
    """Return whether no dispatch or function mode, transform (vmap, grad, jvp), forward AD or TorchScript tracer is on.

    Dynamo is not among them: code that it may trace asks torch.compiler.is_compiling() first.
    """
    return not (
        _dispatch_modes()
        or (function_modes() and not _only_devices())
        or _transforms()
        or forward_ad._current_level >= 0
        or _tracing() is not None
    )


def no_python_mode_intercepts() -> bool:
    """nothing_intercepts() for tensors that have passed their guard, which covers all that works by dispatch keys."""
    return not (function_modes() and not _only_devices()) and forward_ad._current_level < 0


def dispatch_interceptors() -> tuple[int, bool, bool]:
    """The modes that work by dispatch keys: number of dispatch modes, whether a transform or a tracer is active."""
    return _dispatch_modes(), _transforms(), _tracing() is not None


def _only_devices() -> bool:
    """torch.set_default_device is a function mode too, but only decides where tensors are created."""
    return all(type(mode) is DeviceContext for mode in _get_current_function_mode_stack())


class Modes(NamedTuple):
    """The modes by which operations are recorded and tensors saved."""

    grad: bool
    inference: bool
    saving: object  # the innermost hooks of saved tensors, such as a checkpoint's; None: none


# Without hooks, by grad and inference: the same object each time, which takes neither making nor comparing.
_PLAIN_MODES = tuple(tuple(Modes(grad, inference, None) for inference in (False, True)) for grad in (False, True))


def current_modes() -> Modes:
    hooks = saved_tensors_hooks(True)
    if hooks is None:
        return _PLAIN_MODES[_is_grad_enabled()][_is_inference()]
    return Modes(_is_grad_enabled(), _is_inference(), hooks[0])


def are_current(then: Modes) -> bool:
    """Return whether these are the current modes, and nothing intercepts."""
    if (
        then is not current_modes() or function_modes() or _dispatch_modes() or _transforms()
        or forward_ad._current_level >= 0 or _tracing() is not None
    ):  # fmt: skip
        return _are_same(then) and nothing_intercepts()
    return True


def are_current_for_guarded(then: Modes) -> bool:
    """are_current() for tensors that have passed their guard."""
    return (current_modes() is then or _are_same(then)) and no_python_mode_intercepts()


def _are_same(then: Modes) -> bool:
    now = current_modes()
    return now[0] is then[0] and now[1] is then[1] and now[2] is then[2]


@contextmanager
def without_newer_hooks(saving: object) -> Iterator[None]:
    """Save tensors by these hooks and none that came later: a checkpoint inside must not see what began outside.

    saving: the function that packs; None: save them without any hooks.
    """
    newer = []
    while (hooks := saved_tensors_hooks(True)) is not None and hooks[0] is not saving:
        newer.append(hooks)
        torch._C._autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(newer):
            torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)


def restored(then: Modes) -> ExitStack:
    """Restore modes of an earlier time, and disable modes that were entered since."""
    stack = ExitStack()
    grad, inference, saving = then
    if torch.is_inference_mode_enabled() is not inference:
        stack.enter_context(torch.inference_mode(inference))
    if torch.is_grad_enabled() is not grad:
        stack.enter_context(torch.set_grad_enabled(grad))
    if _any_autocast():
        for device in ("cpu", "cuda"):
            stack.enter_context(torch.autocast(device, enabled=False))
    if not nothing_intercepts():
        stack.enter_context(torch.utils._python_dispatch._disable_current_modes())
    if current_modes().saving is not saving:
        stack.enter_context(without_newer_hooks(saving))
    return stack


def is_plain(tensor: object) -> bool:
    """Return whether this is a Tensor or Parameter, and of no other class, whose functions may be overridden."""
    return type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter


def version_of(tensor: Tensor | None) -> int:
    if tensor is None:
        return 0
    return -1 if tensor.is_inference() else tensor._version  # inference tensors have none, and an error takes long


def versions_of(*tensors: Tensor | None) -> tuple[int, ...]:
    if tensors[0] is None or not tensors[0].is_inference():
        try:
            return tuple([0 if each is None else each._version for each in tensors])
        except RuntimeError:  # another one is an inference tensor
            pass
    return tuple([version_of(each) for each in tensors])


def versions_of_norm(norm: NormState[Tensor], training: bool) -> tuple[int, ...]:
    """Versions of the tensors that a norm reads after its call, faster than by versions_of()."""
    gamma, beta, mean, var, _ = norm
    try:
        if training:
            return gamma._version, beta._version  # type: ignore[union-attr]
        return gamma._version, beta._version, mean._version, var._version  # type: ignore[union-attr]
    except (AttributeError, RuntimeError):  # some are None, or inference tensors
        return versions_of(gamma, beta) if training else versions_of(gamma, beta, mean, var)


def versions_of_three(input: Tensor, weight: Tensor | None, bias: Tensor | None) -> tuple[int, ...]:
    """versions_of(), faster."""
    if input.is_inference():
        return versions_of(input, weight, bias)
    try:
        return input._version, weight._version, 0 if bias is None else bias._version  # type: ignore[union-attr]
    except (AttributeError, RuntimeError):  # there is no weight; or it is an inference tensor
        return versions_of(input, weight, bias)
