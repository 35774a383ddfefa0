"""@planned: an op is written on layouts, and decides once what calls with equal layouts share.

    @planned
    def double(x: Layout, factor: float) -> Callable[[DeviceArray], DeviceArray]:
        result = layout_of(x.shape, x.dtype, x.device_index)
        launch = prepare_raw(_double_kernel, x.device_index, grid, (result, x), factor)

        def run(x: DeviceArray) -> DeviceArray:
            stream = streams.current_handle(x.device_index)
            out = result.new(stream)
            launch(stream, out.data_pointer, x.data_pointer)
            return out

        return run

    double(an_array, 2.0)

A call looks its plan up and runs it: shapes are worked out, kernels chosen and their arguments packed only once.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar, cast, overload

from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import RawLaunch
from genesis.backends.cuda.driver.current import current_handle
from genesis.backends.cuda.runtime.array import DeviceArray, Layout

Varying = float
"""Annotates a number that is another one in each call: run gets it after the arrays; plan must not look at it."""

_ARRAYS = ("Layout", "Layout | None")
_MOST_PLANS = 4096  # of an op: a program whose shapes keep changing must not fill the memory
Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


class Run(Protocol[Result_co]):
    """run(*arrays, *numbers that are Varying); each op has its own parameters."""

    def __call__(self, *args: Any, **kwargs: Any) -> Result_co: ...


class Plan(Protocol[Result_co]):
    """plan(*layouts, *other arguments)."""

    __name__: str

    def __call__(self, *args: Any, **kwargs: Any) -> Run[Result_co]: ...


def planned(plan: Plan[Result]) -> Run[Result]:
    """The function of arrays that plan is one of layouts of.

    Args:
        plan: gets the layout of each array, the parameters annotated Layout or Layout | None, and all other arguments
            as they are, which are hashable; it returns run(*arrays, *numbers that are Varying). The file has
            `from __future__ import annotations`.
    """
    parameters = inspect.signature(plan).parameters
    plans: dict[tuple[object, ...], Run[Result]] = {}
    driver.forget_on_switch(plans.clear)

    def make(key: tuple[object, ...], *arguments: object) -> Run[Result]:
        layouts = [
            each.layout if isinstance(each, DeviceArray) and parameter.annotation in _ARRAYS else each
            for each, parameter in zip(arguments, parameters.values(), strict=True)
        ]
        if len(plans) >= _MOST_PLANS:
            plans.clear()
        run = plans[key] = plan(*layouts)
        return run

    scope: dict[str, object] = {"plans": plans, "make": make}
    exec(_source(plan.__name__, parameters, scope), scope)  # a loop over the arguments would cost as much as a launch
    found = cast(Run[Result], scope[plan.__name__])
    return functools.update_wrapper(found, plan)


def _source(name: str, parameters: Mapping[str, inspect.Parameter], scope: dict[str, object]) -> str:
    """The text of the function that looks the plan up; defaults go into its scope."""
    declared, keys, arrays, numbers = [], [], [], []
    for each, parameter in parameters.items():
        if parameter.default is parameter.empty:
            declared.append(each)
        else:
            scope[f"default_{each}"] = parameter.default
            declared.append(f"{each}=default_{each}")
        if parameter.annotation == "Varying":
            numbers.append(each)
        elif parameter.annotation in _ARRAYS:
            arrays.append(each)
            layout = f"{each}._layout or {each}.layout"
            keys.append(layout if parameter.annotation == "Layout" else f"None if {each} is None else {layout}")
        else:
            keys.append(each)
    return (
        f"def {name}({', '.join(declared)}):\n"
        f"    key = ({', '.join(keys)},)\n"
        f"    run = plans.get(key) or make(key, {', '.join(parameters)})\n"
        f"    return run({', '.join(arrays + numbers)})\n"
    )


@overload
def into_new(launch: RawLaunch, result: Layout, /) -> Run[DeviceArray]: ...
@overload
def into_new(launch: RawLaunch, first: Layout, second: Layout, /) -> Run[tuple[DeviceArray, DeviceArray]]: ...
@overload
def into_new(
    launch: RawLaunch, first: Layout, second: Layout | None, /
) -> Run[tuple[DeviceArray, DeviceArray | None]]: ...
@overload
def into_new(
    launch: RawLaunch, first: Layout | None, second: Layout | None, third: Layout | None, /, *others: Layout | None
) -> Run[tuple[DeviceArray | None, ...]]: ...
def into_new(launch: RawLaunch, *results: Layout | None) -> Run[DeviceArray | tuple[DeviceArray | None, ...]]:
    """run(*operands): launch(stream, addresses of new arrays, addresses of operands); returns the new arrays.

    Args:
        results: their layouts, None for one that is not wanted. One array is returned as it is, several as a tuple.
    """
    first, second, *_ = (*results, None)
    device = next(layout.device_index for layout in results if layout is not None)

    # Most ops have one result or two, and no time for a loop over them.
    def run_for_one(*operands: DeviceArray | None) -> DeviceArray:
        stream = current_handle(device)
        out = first.new(stream)  # type: ignore[union-attr]
        launch(stream, out.data_pointer, *[0 if x is None else x.data_pointer for x in operands])
        return out

    def run_for_two(*operands: DeviceArray | None) -> tuple[DeviceArray, DeviceArray]:
        stream = current_handle(device)
        out, other = first.new(stream), second.new(stream)  # type: ignore[union-attr]
        pointers = [0 if x is None else x.data_pointer for x in operands]
        launch(stream, out.data_pointer, other.data_pointer, *pointers)
        return out, other

    def run_for_all(*operands: DeviceArray | None) -> tuple[DeviceArray | None, ...]:
        stream = current_handle(device)
        made = [None if layout is None else layout.new(stream) for layout in results]
        launch(stream, *[0 if x is None else x.data_pointer for x in [*made, *operands]])
        return tuple(made)

    if len(results) == 1:
        return run_for_one
    return run_for_two if len(results) == 2 and None not in results else run_for_all
