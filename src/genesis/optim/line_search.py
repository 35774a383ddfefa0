"""A line search for the strong Wolfe conditions, as LBFGS may use."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from genesis.tensor import Tensor

DECREASE, CURVATURE = 1e-4, 0.9  # c₁ and c₂ of the conditions


class Point(NamedTuple):
    """A point of the line, its loss and its gradient."""

    step: float  # its distance from the start, in lengths of the direction
    loss: float
    grad: Tensor
    slope: float  # grad · direction


def strong_wolfe(
    evaluate: Callable[[float], Point], start: Point, step: float, tolerance: float, most: int
) -> tuple[Point, int]:
    """Search a point whose loss is lower by enough (Armijo) and whose slope is flatter by enough (curvature).

    Args:
        evaluate: gives the point at a step.
        start: the point at step 0.
        step: the first one that is tried.
        tolerance: brackets shorter than that are not divided.
        most: evaluations after the first one.
    Returns: the best point found, and the number of evaluations.
    Source: Nocedal & Wright 2006, "Numerical optimization", algorithms 3.5 and 3.6.
    """
    before, point, count = start, evaluate(step), 0
    bracket: list[Point] = []
    while count < most and not bracket:
        if _is_too_high(point, start) or (count > 1 and point.loss >= before.loss):
            bracket = [before, point]
        elif _is_flat(point, start):
            return point, count + 1
        elif point.slope >= 0:
            bracket = [before, point]
        else:
            limits = point.step + 0.01 * (point.step - before.step), point.step * 10
            step = _lowest_of_cubic(before, point, limits)
            before, point, count = point, evaluate(step), count + 1
    return _zoom(evaluate, start, bracket or [start, point], tolerance, most - count, count + 1)


def _zoom(
    evaluate: Callable[[float], Point], start: Point, bracket: list[Point], tolerance: float, most: int, count: int
) -> tuple[Point, int]:
    """Shrink a bracket that contains an acceptable point around it."""
    low, high = sorted(bracket, key=lambda point: point.loss)
    stalled = False
    for _ in range(most):
        left, right = sorted((low.step, high.step))
        if right - left < tolerance:
            break
        first, second = (low, high) if bracket[0] is low else (high, low)
        step = _lowest_of_cubic(first, second, (left, right))
        margin = 0.1 * (right - left)
        if min(right - step, step - left) < margin:  # too near to an end, for the second time or beyond it
            if stalled or step >= right or step <= left:
                step = right - margin if abs(step - right) < abs(step - left) else left + margin
                stalled = False
            else:
                stalled = True
        else:
            stalled = False
        point, count = evaluate(step), count + 1
        if _is_too_high(point, start) or point.loss >= low.loss:
            bracket = [point if each is high else each for each in bracket]
            low, high = sorted(bracket, key=lambda each: each.loss)
            continue
        if _is_flat(point, start):
            return point, count
        if point.slope * (high.step - low.step) >= 0:
            high = low
        low, bracket = point, [point, high]
    return low, count


def _is_too_high(point: Point, start: Point) -> bool:
    return point.loss > start.loss + DECREASE * point.step * start.slope


def _is_flat(point: Point, start: Point) -> bool:
    return abs(point.slope) <= -CURVATURE * start.slope


def _lowest_of_cubic(first: Point, second: Point, limits: tuple[float, float]) -> float:
    """The step at which the cubic through two points and their slopes is lowest, within limits."""
    low, high = limits
    left, right = (first, second) if first.step <= second.step else (second, first)
    width = left.step - right.step
    rise = left.slope + right.slope - 3 * (left.loss - right.loss) / width if width else math.nan
    squared = rise**2 - left.slope * right.slope
    if squared >= 0:
        root = math.sqrt(squared)
        divisor = right.slope - left.slope + 2 * root
        if divisor:
            return min(max(right.step + width * ((right.slope + root - rise) / divisor), low), high)
    return (low + high) / 2
