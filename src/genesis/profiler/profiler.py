"""Profiler: time one operation over many iterations, with its GFLOP/s."""

from __future__ import annotations

import math

from genesis import backends
from genesis.dtypes import DType
from genesis.errors import GraphError, describe
from genesis.ndarray import Device
from genesis.precision import get_float32_precision
from genesis.shapes import Shape


class Profiler:
    """Time iterations of an operation on one device, from start() to stop().

    On CUDA the time is taken on the device, between two marks in the order of its work; on the CPU by the clock.

    Args:
        iterations: how often the operation runs between start() and stop().
        device: where it runs.
    Raises: ValueError: iterations < 1.
    Example:
        >>> x, weight = genesis.ones(1, 8, 16, 16), genesis.ones(8, 8, 3, 3)
        >>> profiler = genesis.Profiler(iterations=5)
        >>> profiler.describe_operation("conv", x.shape, weight.shape, (1, 8, 14, 14), x.dtype)
        >>> profiler.start()
        >>> for _ in range(profiler.iterations):
        ...     y = genesis.conv(x, weight)
        >>> profiler.stop()
        >>> profiler.flops, profiler.milliseconds > 0, profiler.gflops_per_second > 0
        (225792, True, True)
    """

    def __init__(self, iterations: int = 1, device: Device | str = "cpu") -> None:
        if iterations < 1:
            raise ValueError(describe("Profiler", "iterations", "at least 1", iterations))
        self.iterations = iterations
        self.description = "operation"
        self.flops = 0  # of one iteration
        self._device = device if isinstance(device, Device) else Device(device)
        self._marks: list[object] = []  # the backend's own

    def describe_operation(
        self, name: str, input_shape: Shape, weight_shape: Shape, output_shape: Shape, dtype: DType
    ) -> None:
        """Describe a convolution, to count its floating-point operations: two per product, those with padding included.

        Two are counted for each product: all of them, also those with padding.

        Args:
            name: of the operation, in the text of the profiler.
            input_shape: (…, C, H, W).
            weight_shape: (K, C / groups, R, S).
            output_shape: (…, K, P, Q).
            dtype: of the operands.
        Raises: ValueError: weight_shape has not 4 dimensions.
        """
        if len(weight_shape) != 4:
            raise ValueError(describe("describe_operation", "weight_shape", "4 dimensions", weight_shape))
        self.flops = 2 * math.prod(output_shape) * math.prod(weight_shape[1:])
        sizes = " * ".join(["x".join(map(str, shape)) for shape in (input_shape, weight_shape)])
        precision = f" {get_float32_precision()}" if dtype.name == "float32" else ""
        self.description = f"{name} {sizes}, {dtype.name}{precision}"

    def start(self) -> None:
        """Start timing, after all work submitted to the device so far."""
        backend = backends.get(self._device.type)
        backend.synchronize(self._device.index)
        self._marks = [backend.time_mark(self._device.index)]

    def stop(self) -> None:
        """Stop timing, after all work submitted to the device so far.

        Raises: GraphError: start() was not called.
        """
        if len(self._marks) != 1:
            raise GraphError("Profiler.stop: called without start()")
        self._marks.append(backends.get(self._device.type).time_mark(self._device.index))

    @property
    def milliseconds(self) -> float:
        """The time of one iteration; waits for the device. Raises: GraphError: before stop()."""
        if len(self._marks) != 2:
            raise GraphError("Profiler.milliseconds: asked for before stop()")
        return float(backends.get(self._device.type).seconds_between(*self._marks)) * 1e3 / self.iterations

    @property
    def gflops_per_second(self) -> float:
        """10⁹ floating-point operations per second; 0 without describe_operation()."""
        return self.flops / self.milliseconds / 1e6

    def __str__(self) -> str:
        return (
            f"{self.description}: {self.iterations} iterations, {self.milliseconds * 1e3:.1f} µs each, "
            f"{self.gflops_per_second:.1f} GFLOP/s"
        )
