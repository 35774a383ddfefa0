"""One forward pass, watched: which channels flow where, by the rule of each op."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from genesis.autograd import Variable, enable_grad
from genesis.autograd.modes import observe, without_autocast
from genesis.growth import axes
from genesis.growth.axes import Axis
from genesis.growth.passes import tensors_in
from genesis.growth.rules import follow
from genesis.nn import MultiheadAttention
from genesis.nn.module import Module
from genesis.tensor import Tensor

Layout = tuple[Axis | None, ...]  # for each dimension, its channels; None where there are none


class Use(NamedTuple):
    """How a dimension of a parameter or buffer shows channels."""

    axis: Axis
    splits: bool  # whether copies of a channel share its value here (a consumer's weight), or each has it
    fresh: str  # what channels without an original begin with: "normal", "zero" or "mean"


class Passage(NamedTuple):
    """What a module got and gave."""

    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    input_layout: Layout
    output_layout: Layout


class Recorder:
    """Follows channels through calls. Rules (see rules.py) ask it for layouts and tell it what they mean.

    Attributes:
        names: of each parameter, then of each buffer, by the id of its array; what is shared has several.
        uses: for each of them: dimension → Use.
        passages: for each module that was called with a tensor, by name.
        macs: multiplications (with an addition each) of convolutions and linear layers.
        seen: the parameters that an op took, by the ids of their arrays.
    """

    def __init__(self, model: Module) -> None:
        self.model = model
        self._modules: dict[Module, str] = {}
        parameters: dict[int, tuple[Tensor, list[str]]] = {}
        buffers: dict[int, tuple[Tensor, list[str]]] = {}
        for path, module in model.named_modules(remove_duplicate=False):  # once: walking a large network takes time
            self._modules.setdefault(module, path)
            for found, members in ((parameters, module._parameters), (buffers, module._buffers)):
                for member, tensor in members.items():
                    if tensor is not None:
                        name = f"{path}.{member}" if path else member
                        found.setdefault(id(tensor.array), (tensor, []))[1].append(name)
        self.names = {key: tuple(names) for key, (_, names) in (*parameters.items(), *buffers.items())}
        self._parameters = {key: tensor for key, (tensor, _) in parameters.items()}
        self.uses: dict[int, dict[int, Use]] = {}
        self.passages: dict[str, Passage] = {}
        self.macs = 0
        self.seen: set[int] = set()
        self._same_as: dict[int, int] = {}  # casts and copies of parameters, by the ids of the arrays
        self._opaque: dict[int, str] = {}  # parameters that were used in a way that is not understood
        self._layouts: dict[Any, Layout] = {}
        # Ids stay unique only while what they name lives.
        self._alive: list[Any] = [tensor.array for tensor, _ in (*parameters.values(), *buffers.values())]

    # --- the pass -----------------------------------------------------------------------------------------------------

    def run(self, args: tuple[Any, ...]) -> list[Tensor]:
        """Call the model on args and follow it; gives the tensors of its output.

        In the precision of the model itself, inside of autocast too: what that has cast before would not be seen.
        """

        def watch(function: Any, inputs: tuple[Any, ...], options: dict[str, Any], outputs: list[Any]) -> None:
            self.seen.update(self.owner(value.array) or 0 for value in inputs if isinstance(value, Variable))
            follow(self, function, inputs, options, outputs)

        with _as_if_trained(self._parameters.values()), self._noting_modules(), without_autocast(), observe(watch):
            outputs = tensors_in(self.model(*args))
        for output in outputs:
            self.fix(output, "it is an output of the network")
        return [output.detach() for output in outputs]

    def unreached(self) -> tuple[str, ...]:
        """The parameters that the passes did not use."""
        return tuple(self.names[key][0] for key in self._parameters if key not in self.seen)

    @contextlib.contextmanager
    def _noting_modules(self) -> Iterator[None]:
        def note(module: Module, args: tuple[Any, ...], output: Any) -> None:
            given = [arg for arg in args if isinstance(arg, Tensor)]
            if given and isinstance(output, Tensor):
                layouts = self.layout(given[0]), self.layout(output)
                self.passages[self._modules[module]] = Passage(given[0].shape, output.shape, *layouts)

        def fix(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            for value in (*args, *kwargs.values()):
                self.fix(value, "attention splits it into heads")

        handles = [module.register_forward_hook(note) for module in self._modules]
        handles += [
            module.register_forward_pre_hook(fix, with_kwargs=True)
            for module in self._modules
            if isinstance(module, MultiheadAttention)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    # --- what rules ask and tell --------------------------------------------------------------------------------------

    def layout(self, value: Any) -> Layout:
        """Where value has channels: a tensor or an array, or None."""
        if value is None or isinstance(value, int | float | bool):
            return ()
        array = value.array if isinstance(value, Variable) else value
        owner = self.owner(array)
        if owner is not None:
            uses = self.uses.get(owner, {})
            return tuple(uses[dim].axis if dim in uses else None for dim in range(array.ndim))
        for key in self._keys(value):
            if key in self._layouts:
                return self._layouts[key]
        return (None,) * array.ndim

    def set_layout(self, value: Any, layout: Layout) -> None:
        if any(axis is not None for axis in layout):
            assert len(layout) == value.array.ndim
            for key in self._keys(value):
                self._layouts[key] = layout
            self._alive.append((value.array, value._node))

    def owner(self, array: Any) -> int | None:
        """The key in uses of the parameter or buffer that array is (or is a cast of), or None."""
        key = self._same_as.get(id(array), id(array))
        return key if key in self.names else None

    def set_same(self, value: Any, original: Any) -> None:
        """value is a cast or a copy of a parameter: it is used as the parameter is."""
        owner = self.owner(original.array)
        if owner is not None:
            self._same_as[id(value.array)] = owner
            self._alive.append(value.array)

    def use(self, value: Any, dim: int, axis: Axis, splits: bool = False, fresh: str = "mean") -> None:
        """Dimension dim of this parameter or buffer (or None) shows axis."""
        if value is None:
            return
        array = value.array if isinstance(value, Variable) else value
        owner = self.owner(array)
        if owner is None:
            axes.fix(axis, "it meets a tensor that is no parameter of the network")
            return
        if owner in self._opaque:
            axes.fix(axis, self._opaque[owner])
        known = self.uses.setdefault(owner, {}).get(dim)
        if known is None:
            self.uses[owner][dim] = Use(axis, splits, fresh)
            return
        axes.unify(known.axis, axis, "a parameter is used for two axes that are made differently")
        if known.splits != splits:
            axes.fix(axis, "a parameter is used both to make these channels and to take them")

    def parameter_layout(self, value: Any) -> Layout:
        """layout(value), where each dimension of a parameter that was not seen before is given a group of its own."""
        if isinstance(value, Variable) and self.owner(value.array) is not None:
            for dim, (axis, size) in enumerate(zip(self.layout(value), value.array.shape, strict=True)):
                if axis is None and size > 1:
                    self.use(value, dim, axes.new_axis(size))
        return self.layout(value)

    def fix(self, value: Any, reason: str) -> None:
        """Nothing in value can grow: an op (or the world outside) takes it in a way that is not understood."""
        if not isinstance(value, Variable):
            return
        owner = self.owner(value.array)
        if owner is not None:
            self._opaque.setdefault(owner, reason)
        for axis in self.layout(value):
            axes.fix(axis, reason)

    def _keys(self, value: Any) -> list[Any]:
        """A tensor is known by its place in the graph, which follows it through changes in place, and by its array."""
        if not isinstance(value, Variable):
            return [id(value)]
        node = [] if value._node is None else [(id(value._node), value._output_index)]
        return [*node, id(value.array)]


@contextlib.contextmanager
def _as_if_trained(parameters: Iterable[Tensor]) -> Iterator[None]:
    """Layers run as they would in training, not folded together; frozen ones too, and part of the graph."""
    frozen = [parameter for parameter in parameters if not parameter.requires_grad]
    try:
        for parameter in frozen:
            parameter.requires_grad = parameter.dtype.is_floating_point
        with enable_grad():
            yield
    finally:
        for parameter in frozen:
            parameter.requires_grad = False
