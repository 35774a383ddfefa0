"""GradScaler: a scale for the loss that keeps float16 gradients alive."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar, overload

from genesis import dtypes
from genesis.amp.device_scale import DeviceScale, Round, Scaling
from genesis.autograd.modes import state as thread
from genesis.callsite import user_line
from genesis.dtypes import DType
from genesis.errors import CaptureError, DTypeError, GraphError, describe
from genesis.interrupts import at_once, held
from genesis.ndarray import Device, NDArray, ops
from genesis.ndarray.capturing import capture_of
from genesis.optim import Optimizer
from genesis.tensor import Tensor

Result = TypeVar("Result")


class GradScaler:
    """Loss scaling: keeps float16 gradients from underflowing, skips steps that overflow, and adapts the scale.

    Args:
        device: accepted for PyTorch's signature; losses may be on any device.
        init_scale: initial factor of the loss.
        growth_factor: the scale is multiplied by it after growth_interval steps in a row without overflow.
        backoff_factor: the scale is multiplied by it after a step that overflowed.
        growth_interval: number of steps.
        enabled: False makes scale() return its argument and step() run optimizer.step().
    Raises: ValueError: growth_factor ≤ 1, or backoff_factor outside (0, 1).
    Source: Micikevicius et al. 2018, arXiv:1710.03740.

    Example:
        >>> p = genesis.tensor([1.0], requires_grad=True)
        >>> optimizer, scaler = genesis.optim.SGD([p], lr=0.1), genesis.amp.GradScaler()
        >>> scaler.scale(p * p).backward()
        >>> scaler.step(optimizer)
        >>> scaler.update()
        >>> round(p.item(), 4)
        0.8
    """

    _on_device: DeviceScale | None = None  # once it has been captured into a CUDA graph

    def __init__(
        self, device: str = "cpu", init_scale: float = 65536.0, growth_factor: float = 2.0, backoff_factor: float = 0.5,
        growth_interval: int = 2000, enabled: bool = True,
    ) -> None:  # fmt: skip
        if growth_factor <= 1.0:
            raise ValueError(describe("GradScaler", "growth_factor", "a number > 1", growth_factor))
        if not 0 < backoff_factor < 1.0:
            raise ValueError(describe("GradScaler", "backoff_factor", "a number in (0, 1)", backoff_factor))
        self._scale, self._growth_factor, self._backoff_factor = float(init_scale), growth_factor, backoff_factor
        self._growth_interval, self._growth_tracker, self._enabled = growth_interval, 0, enabled
        self._round = Round()

    @overload
    def scale(self, outputs: Tensor) -> Tensor: ...
    @overload
    def scale(self, outputs: list[Tensor]) -> list[Tensor]: ...
    @overload
    def scale(self, outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]: ...
    @overload
    def scale(self, outputs: Iterable[object]) -> object: ...
    def scale(self, outputs: object) -> object:
        """Multiply a loss, or each in nested lists and tuples, by the scale; float16 losses become float32.

        Args:
            outputs: a floating tensor of any shape, or nested lists and tuples of them.
        Returns: the same structure.
        Raises: DTypeError: something is not a tensor.
        """
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            # A 0-d float32 tensor: a 0-d float16 loss becomes float32 and cannot overflow.
            if self._round_on(outputs.device).is_captured:
                assert self._on_device is not None
                return outputs * Tensor(self._on_device.scale.to(dtypes.float32))
            self._read_device()
            return outputs * Tensor(NDArray.full((), self._scale, dtypes.float32, outputs.device))
        if isinstance(outputs, Iterable) and not isinstance(outputs, str | dict):
            scaled = [self.scale(output) for output in outputs]
            return tuple(scaled) if isinstance(outputs, tuple) else scaled
        raise DTypeError(describe("GradScaler.scale", "outputs", "tensors", type(outputs).__name__))

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients of optimizer by the scale, in place, so that they can be clipped before step().

        Args:
            optimizer: its gradients are divided.
        Raises: GraphError: called twice since update(), or after step(); DTypeError: a gradient is float16.

        Example:
            >>> p = genesis.tensor([1.0], requires_grad=True)
            >>> optimizer, scaler = genesis.optim.SGD([p], lr=0.1), genesis.amp.GradScaler(init_scale=8.0)
            >>> scaler.scale(p * p).backward()
            >>> before = p.grad.item()
            >>> scaler.unscale_(optimizer)
            >>> before, p.grad.item()
            (16.0, 2.0)
        """
        if not self._enabled:
            return
        present = self._round_of(optimizer)
        if id(optimizer) in present.stepped:
            raise GraphError("GradScaler.unscale_: called after step() of the same optimizer; call update() first")
        if id(optimizer) in present.found:
            raise GraphError("GradScaler.unscale_: called a second time for the same optimizer since the last update()")
        groups: dict[tuple[DType, Device], list[NDArray]] = {}
        for group in optimizer.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    grad = param.grad.array
                    if grad.dtype is dtypes.float16:
                        raise DTypeError(
                            describe(
                                "GradScaler.unscale_", "grad", "gradients of float32 weights", "a float16 gradient"
                            )
                        )
                    groups.setdefault((grad.dtype, grad.device), []).append(grad)
        if not present.is_captured:
            self._read_device()
            factor: NDArray | float = 1.0 / self._scale
        else:
            assert self._on_device is not None
            factor = self._on_device.inverse({device for _, device in groups})
        with held():  # gradients that were divided, and not noted, would be divided again
            present.found[id(optimizer)] = [ops.unscale_into(grads, factor) for grads in groups.values()]

    def step(self, optimizer: Optimizer, closure: Callable[[], Result] | None = None) -> Result | None:
        """Run optimizer.step() with unscaled gradients; skip it if one of them is not finite.

        Args:
            optimizer: its step() runs.
            closure: only where the scaler is not enabled: its gradients would not be scaled.
        Returns: what optimizer.step() returned, or None.
        Raises: GraphError: called twice since update(), or there are no gradients; DTypeError: a closure is given.
            CaptureError: a CUDA graph is captured, and the device cannot skip the optimizer's step.
        """
        if not self._enabled:
            return optimizer.step() if closure is None else optimizer.step(closure)
        if closure is not None:
            raise DTypeError(describe("GradScaler.step", "closure", "none: it would make unscaled gradients", "one"))
        present = self._round_of(optimizer)
        if id(optimizer) in present.stepped:
            raise GraphError("GradScaler.step: called a second time for the same optimizer since the last update()")
        if id(optimizer) not in present.found:
            self.unscale_(optimizer)
        found = present.found[id(optimizer)]
        if not found:
            del present.found[id(optimizer)]
            raise GraphError("GradScaler.step: the optimizer's parameters have no gradients; call backward() first")
        present.stepped.add(id(optimizer))
        if present.is_captured:
            if type(optimizer).step is not Optimizer.step:
                raise CaptureError(
                    f"{user_line()}: GradScaler.step: {type(optimizer).__name__} has a step() of its own, which the "
                    "device cannot skip after an overflow: call it after replay()"
                )
            if optimizer.has_step_hooks:
                raise CaptureError(
                    f"{user_line()}: GradScaler.step: {type(optimizer).__name__} has hooks around its step, which a "
                    "CUDA graph would not call again: remove them, or call it after replay()"
                )
            optimizer.step_unless({found[0].device: functools.reduce(ops.logical_or, found)})
        elif not any(flag.item() for flag in found):
            optimizer.step()
        return None

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Adapt the scale to whether the steps since the last update overflowed; or set it to new_scale.

        Args:
            new_scale: a number, or a tensor of one element; None adapts the scale.
        Raises: GraphError: there has been no step since the last update.
        """
        if not self._enabled:
            return
        if self._on_device is not None:
            present = self._round_on(self._on_device.device)
            if present.is_captured:
                self._on_device.update(present, new_scale)
                return
        self._read_device()
        found = [flag.item() for flags in self._round.found.values() for flag in flags]
        scale, tracker = self._scale, self._growth_tracker
        if new_scale is not None:
            scale = float(new_scale)
        elif not found:
            raise GraphError("GradScaler.update: no step() or unscale_() has been called since the last update()")
        elif any(found):
            scale, tracker = scale * self._backoff_factor, 0
        else:
            tracker += 1
            if tracker == self._growth_interval:
                grown = scale * self._growth_factor
                scale, tracker = grown if grown < _FLOAT32_LIMIT else scale, 0
        state = {"_scale": scale, "_growth_tracker": tracker, "_round": Round()}
        at_once([(vars(self).update, state)])

    # --- in CUDA graphs ---------------------------------------------------------------------------------------------

    def _round_on(self, device: Device) -> Round:
        """The present round: of eager calls, or of the capture that takes in launches on a device."""
        capture = capture_of(device)
        if capture is None:
            rehearsal = None if thread.watcher is None else thread.watcher.rehearsal
            if rehearsal is None or self._on_device is None or not rehearsal.includes(self._on_device):
                return self._round
            return self._on_device.round_of(device, rehearsal)
        return self.on_device(device).round_of(device, capture)

    def on_device(self, device: Device) -> DeviceScale:
        """The scale in a device's memory. See `genesis.amp.GradScaler`."""
        if self._on_device is None:
            self._on_device = DeviceScale(self._scaling, device)
        return self._on_device

    def _round_of(self, optimizer: Optimizer) -> Round:
        return self._round_on(optimizer.param_groups[0]["params"][0].device)

    def _scaling(self) -> Scaling:
        factors = self._growth_factor, self._backoff_factor, self._growth_interval
        return Scaling(self._scale, self._growth_tracker, *factors)

    def _read_device(self) -> None:
        """Take over what replays have made of the scale."""
        if self._on_device is not None:
            self._on_device.read(vars(self))

    def __getstate__(self) -> dict[str, object]:
        self._read_device()
        return {**vars(self), "_on_device": None}

    def get_scale(self) -> float:
        """The present scale; 1 if not enabled.

        Example:
            >>> genesis.amp.GradScaler(init_scale=8.0).get_scale()
            8.0
        """
        self._read_device()
        return self._scale if self._enabled else 1.0

    def is_enabled(self) -> bool:
        """Whether the scaler is enabled.

        Example:
            >>> genesis.amp.GradScaler(enabled=False).is_enabled()
            False
        """
        return self._enabled

    def state_dict(self) -> dict[str, float]:
        """The scale and the settings.

        Returns: named as by PyTorch's scaler; empty if not enabled.

        Example:
            >>> scaler = genesis.amp.GradScaler()
            >>> scaler.load_state_dict(genesis.amp.GradScaler(init_scale=4.0).state_dict())
            >>> scaler.get_scale()
            4.0
        """
        if not self._enabled:
            return {}
        self._read_device()
        return {
            "scale": self._scale,
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._growth_tracker,
        }

    def load_state_dict(self, state_dict: Mapping[str, float]) -> None:
        """Load the state of a scaler, of Genesis or PyTorch. See `genesis.amp.GradScaler.state_dict`.

        Args:
            state_dict: what state_dict() returned.
        Raises: ValueError: an entry is missing; nothing has changed.
        """
        if not self._enabled:
            return
        missing = self.state_dict().keys() - state_dict.keys()
        if missing:
            raise ValueError(
                describe(
                    "GradScaler.load_state_dict",
                    "state_dict",
                    "the state of an enabled scaler",
                    f"no {sorted(missing)}",
                )
            )
        self._read_device()
        names = ("growth_factor", "backoff_factor", "growth_interval")
        state = {f"_{name}": state_dict[name] for name in names} | {"_scale": float(state_dict["scale"])}
        at_once([(vars(self).update, state | {"_growth_tracker": state_dict["_growth_tracker"]})])


_FLOAT32_LIMIT = math.ldexp(1.0, 128)
