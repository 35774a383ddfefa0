"""Stateful: what gives a module's state as names and tensors, and loads it back.

Each module gives and takes its own part, so that a subclass may override either: `_save_to_state_dict` and
`_load_from_state_dict` have PyTorch's signatures. What is loaded is written once all parts have been found to fit.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

from genesis.autograd import HookHandle
from genesis.errors import CheckpointError
from genesis.nn import state
from genesis.nn.parameter import Parameter
from genesis.tensor import Tensor

if TYPE_CHECKING:
    from genesis.nn.module import Module

Hook = Callable[..., Any]
EXTRA = "_extra_state"  # its key in a state_dict


class StateDict(dict[str, Tensor]):
    """A state_dict with the versions of modules that have one, by their names: `_metadata`, as in PyTorch."""

    _metadata: dict[str, dict[str, object]]


class Stateful:
    """Base of Module, which knows its parts."""

    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _non_persistent_buffers: set[str]
    _version: ClassVar[int | None] = None  # of the layout of a subclass's state, for its _load_from_state_dict
    # By kind: lists of a module's own, made when the first hook is registered.
    _state_hooks: Mapping[str, list[Hook]] = {}

    def named_modules(
        self, memo: set[Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        raise NotImplementedError

    def _named_parts(self) -> Mapping[str, object]:
        raise NotImplementedError

    def _own_state(self) -> Iterator[tuple[str, Tensor]]:
        """Its own parameters and persistent buffers, by name."""
        for name, tensor in (*self._parameters.items(), *self._buffers.items()):
            if tensor is not None and name not in self._non_persistent_buffers:
                yield name, tensor

    # --- giving -------------------------------------------------------------------------------------------------------

    def state_dict(
        self, *, destination: dict[str, Tensor] | None = None, prefix: str = "", keep_vars: bool = False
    ) -> dict[str, Tensor]:
        """All parameters and persistent buffers by dotted name, the same names as PyTorch's; memory is shared.

        Args:
            destination: a dict that takes the tensors, of any shape; a new one if None.
            prefix: put before each name.
            keep_vars: the parameters themselves instead of detached tensors.
        Returns: names and tensors, in the order of registration.

        Example:
            >>> list(nn.BatchNorm2d(3).state_dict())
            ['weight', 'bias', 'running_mean', 'running_var', 'num_batches_tracked']
        """
        if destination is None:
            destination = StateDict()
            destination._metadata = {}
        metadata: dict[str, object] = {} if self._version is None else {"version": self._version}
        if metadata and isinstance(destination, StateDict):
            destination._metadata[prefix[:-1]] = metadata
        for hook in self._state_hooks.get("before saving", ()):
            hook(self, prefix, keep_vars)
        self._save_to_state_dict(destination, prefix, keep_vars)
        for name, module in self._named_parts().items():
            if isinstance(module, Stateful):
                module.state_dict(destination=destination, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
        for hook in self._state_hooks.get("after saving", ()):
            new = hook(self, destination, prefix, metadata)
            destination = destination if new is None else cast("dict[str, Tensor]", new)
        return destination

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Add its own part of the state, without that of submodules."""
        for name, tensor in self._own_state():
            destination[prefix + name] = tensor if keep_vars else tensor.detach()
        if self._has_extra_state():
            destination[prefix + EXTRA] = self.get_extra_state()

    def get_extra_state(self) -> object:
        """Give what a state_dict is to hold beside tensors; a subclass overrides it together with set_extra_state.

        Returns: anything that can be saved.
        Raises: RuntimeError: it is not overridden.
        Example:
            >>> class Counter(nn.Module):
            ...     count = 3
            ...     def get_extra_state(self):
            ...         return self.count
            ...     def set_extra_state(self, state):
            ...         self.count = state
            >>> Counter().state_dict()
            {'_extra_state': 3}
        """
        raise RuntimeError(f"{type(self).__name__}.get_extra_state: a module with extra state overrides it")

    def set_extra_state(self, state: object) -> None:
        """Take over what get_extra_state gave. See `nn.Module.get_extra_state`.

        Raises: RuntimeError: it is not overridden.
        """
        raise RuntimeError(f"{type(self).__name__}.set_extra_state: a module with extra state overrides it")

    def _has_extra_state(self) -> bool:
        return type(self).get_extra_state is not Stateful.get_extra_state

    # --- taking -------------------------------------------------------------------------------------------------------

    def load_state_dict(
        self, state_dict: Mapping[str, object], strict: bool = True, assign: bool = False
    ) -> state.IncompatibleKeys:
        """Copy the values of state_dict into parameters and buffers: all of them, or none if any does not fit.

        Args:
            state_dict: names and tensors, Genesis' or anything with __dlpack__ (PyTorch's, numpy's), of the shapes that
                the module has; they are cast to its dtypes and moved to its devices.
            strict: refuse missing and unexpected keys. Wrong shapes are always refused.
            assign: share the given memory, with its dtype and device, instead of copying.
        Returns: the missing and the unexpected keys.
        Raises: CheckpointError: the keys or the shapes do not fit; the message shows the closest names.

        Example:
            >>> layer = nn.Linear(1, 1)
            >>> layer.load_state_dict({"weight": genesis.full((1, 1), 2.0), "bias": genesis.zeros(1)})
            <All keys matched successfully>
            >>> layer(genesis.ones(1)).tolist()
            [2.0]
        """
        state.require_mapping(state_dict)
        loading = state.Loading(assign)
        before = state.Loading.current.set(loading)
        try:
            self._load_parts(dict(state_dict), "", getattr(state_dict, "_metadata", {}), loading)
        finally:
            state.Loading.current.reset(before)
        kind, result = type(self).__name__, state.IncompatibleKeys(loading.missing, loading.unexpected)
        hooked = [module for _, module in self.named_modules() if module._state_hooks.get("after loading")]
        # Such hooks may take keys off the lists, and expect the values to be there already.
        loading.check(kind, state_dict, strict and not hooked)
        loading.write()
        for module in reversed(hooked):
            for hook in module._state_hooks["after loading"]:
                hook(module, result)
        loading.check(kind, state_dict, strict)
        return result

    def _load_parts(
        self, state_dict: dict[str, object], prefix: str, metadata: state.Metadata, loading: state.Loading
    ) -> None:
        """Find the values of this module and of those below, in a dict that the module may change."""
        lists = loading.missing, loading.unexpected, loading.faults
        self._load_from_state_dict(state_dict, prefix, metadata.get(prefix[:-1], {}), True, *lists)
        for name, module in self._named_parts().items():
            if isinstance(module, Stateful):
                below = f"{prefix}{name}."
                part = {key: value for key, value in state_dict.items() if _starts(key, below)}
                module._load_parts(part, below, metadata, loading)

    def _load_from_state_dict(
        self, state_dict: dict[str, object], prefix: str, local_metadata: Mapping[str, object], strict: bool,
        missing_keys: list[str], unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        """Take its own part of the state; an override may first rename or add entries of state_dict."""
        arguments = (state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        for hook in self._state_hooks.get("before loading", ()):
            hook(self, *arguments)
        loading = state.Loading.current.get()
        direct = loading is None  # called by itself, not by load_state_dict
        loading = state.Loading(assign=False) if loading is None else loading
        own = {prefix + name: tensor for name, tensor in self._own_state()}
        loading.known += own
        for key, tensor in own.items():
            if key in state_dict:
                loading.take(key, tensor, state_dict[key], error_msgs)
            elif strict and not state.may_be_missing(key):
                missing_keys.append(key)
        extra = prefix + EXTRA
        if self._has_extra_state():
            if extra in state_dict:
                loading.calls.append(functools.partial(self.set_extra_state, state_dict[extra]))
            elif strict:
                missing_keys.append(extra)
        if strict:
            parts = self._named_parts()
            unexpected_keys += _unexpected(state_dict, prefix, {*own, extra} if self._has_extra_state() else own, parts)
        if direct:
            loading.write()

    # --- hooks --------------------------------------------------------------------------------------------------------

    def register_state_dict_pre_hook(self, hook: Hook) -> HookHandle:
        """Call hook(module, prefix, keep_vars) before the module gives its state.

        Args:
            hook: called for its effect.
        Returns: a handle; handle.remove() removes the hook.
        Example:
            >>> layer, seen = nn.Identity(), []
            >>> handle = layer.register_state_dict_pre_hook(lambda module, prefix, keep_vars: seen.append(prefix))
            >>> state = nn.Sequential(layer).state_dict()
            >>> seen
            ['0.']
        """
        return self._register_state_hook("before saving", hook)

    def register_state_dict_post_hook(self, hook: Hook) -> HookHandle:
        """Call hook(module, state_dict, prefix, local_metadata) after the module gave its state; it may change it.

        Args:
            hook: called for its effect on state_dict.
        Returns: a handle; handle.remove() removes the hook.
        Example:
            >>> layer = nn.Linear(1, 1)
            >>> def without_bias(module, state_dict, prefix, local_metadata):
            ...     del state_dict[prefix + "bias"]
            >>> handle = layer.register_state_dict_post_hook(without_bias)
            >>> list(layer.state_dict())
            ['weight']
        """
        return self._register_state_hook("after saving", hook)

    _register_state_dict_hook = register_state_dict_post_hook  # its hooks may return another dict

    def register_load_state_dict_pre_hook(self, hook: Hook) -> HookHandle:
        """Call hook(module, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        before the module looks for its part of state_dict, which it may change.

        Args:
            hook: called for its effect.
        Returns: a handle; handle.remove() removes the hook.
        Example:
            >>> layer = nn.Linear(1, 1, bias=False)
            >>> handle = layer.register_load_state_dict_pre_hook(
            ...     lambda module, state, prefix, *rest: state.update({prefix + "weight": state.pop(prefix + "w")})
            ... )
            >>> layer.load_state_dict({"w": genesis.ones(1, 1)})
            <All keys matched successfully>
        """
        return self._register_state_hook("before loading", hook)

    def _register_load_state_dict_pre_hook(self, hook: Hook, with_module: bool = False) -> HookHandle:
        """PyTorch's older form, whose hooks don't take the module unless asked."""
        return self._register_state_hook("before loading", hook if with_module else WithoutModule(hook))

    def register_load_state_dict_post_hook(self, hook: Hook) -> HookHandle:
        """Call hook(module, incompatible_keys) after the state was loaded; it may take keys off the two lists.

        With such a hook, missing and unexpected keys are an error only after the values were written.

        Args:
            hook: called for its effect.
        Returns: a handle; handle.remove() removes the hook.
        Example:
            >>> layer = nn.Linear(1, 1)
            >>> handle = layer.register_load_state_dict_post_hook(lambda module, keys: keys.missing_keys.clear())
            >>> layer.load_state_dict({"weight": genesis.ones(1, 1)})
            <All keys matched successfully>
        """
        return self._register_state_hook("after loading", hook)

    def _register_state_hook(self, kind: str, hook: Hook) -> HookHandle:
        hooks: dict[str, list[Hook]] = vars(self).setdefault("_state_hooks", {})
        return HookHandle(hooks.setdefault(kind, []), hook)

    def load(self, path: str | os.PathLike[str], strict: bool = True) -> state.IncompatibleKeys:
        """Load a file's values into parameters and buffers: all of them, or none if any does not fit.

        Args:
            path: what genesis.save() or torch.save() wrote, or any safetensors file: a state_dict, or a training's
                file with one under "model", "state_dict" or "model_state_dict". torchvision's files fit its models.
                Pickled code is never run. A prefix "module." that all keys have is dropped.
            strict: see load_state_dict.
        Returns: the missing and the unexpected keys.
        Raises: CheckpointError: the file is damaged, or the keys or the shapes do not fit; the message shows the
            closest names. FileNotFoundError: there is no such file.

        Example:
            >>> import tempfile
            >>> path = tempfile.mkdtemp() + "/linear.safetensors"
            >>> genesis.save(nn.Linear(2, 1), path)
            >>> nn.Linear(2, 1).load(path)
            <All keys matched successfully>
        """
        weights = state.weights_in(state.read(path), path)
        try:
            return self.load_state_dict(weights, strict)
        except CheckpointError as error:
            raise CheckpointError(f"{path}: {error}") from error


class WithoutModule:
    """A hook that is called without the module. Made by `nn.Module.register_load_state_dict_pre_hook`."""

    def __init__(self, function: Hook) -> None:
        self.function = function

    def __call__(self, module: object, *arguments: object) -> object:
        return self.function(*arguments)


def _starts(key: object, prefix: str) -> bool:
    return isinstance(key, str) and key.startswith(prefix)  # in a file of PyTorch, keys can be anything


def _unexpected(
    state_dict: Mapping[str, object], prefix: str, own: Iterable[str], parts: Mapping[str, object]
) -> list[str]:
    """The keys that are neither this module's nor of a submodule that it has."""
    unexpected = []
    for key in state_dict:
        if prefix and not _starts(key, prefix):
            continue
        name, dot, _ = key[len(prefix) :].partition(".") if isinstance(key, str) else ("", "", "")
        if not (parts.get(name) is not None if dot else key in own):
            unexpected.append(key)
    return unexpected
