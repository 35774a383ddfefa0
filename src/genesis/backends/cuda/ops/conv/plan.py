"""A convolution's plan: allocates the result and the workspace, and launches."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from genesis import dtypes
from genesis.backends.cuda.engine import planner
from genesis.backends.cuda.engine.candidate import Candidate, Parts
from genesis.backends.cuda.engine.operation import Operation
from genesis.backends.cuda.engine.plan import Plan
from genesis.backends.cuda.ops.conv.problem import ConvProblem
from genesis.backends.cuda.runtime import streams
from genesis.backends.cuda.runtime.array import DeviceArray, Layout, layout_of
from genesis.backends.cuda.runtime.memory import Storage, allocate
from genesis.errors import OutOfMemoryError
from genesis.shapes import channels_last_strides


class Moments(NamedTuple):
    """The statistics of a convolution's result per channel."""

    partial: DeviceArray
    parts: Parts


Result: TypeAlias = DeviceArray | tuple[DeviceArray, Moments]


class ConvPlan(Plan[ConvProblem]):
    __slots__ = ("_layout",)

    def __init__(self, operation: Operation[ConvProblem], problem: ConvProblem) -> None:
        super().__init__(operation, problem)
        shape = problem.result_shape
        self._layout = layout_of(shape, problem.dtype, problem.device, channels_last_strides(shape))

    def __call__(
        self, first: DeviceArray, second: DeviceArray, bias: DeviceArray | None, residual: DeviceArray | None
    ) -> Result:
        """The result for these operands, in the problem's layout; on the current stream.

        With its statistics, where the problem asks for them: (result, Moments).
        """
        layout = self._layout
        stream = streams.current_handle(layout.device_index)
        out = layout.new(stream)
        _, launch, num_bytes, moments = self.ready  # type: ignore[misc]
        workspace: Storage | None = None
        if num_bytes:
            try:
                workspace = allocate(num_bytes, layout.device_index, stream)
            except OutOfMemoryError:
                planner.use_smaller(self, num_bytes)
                return self(first, second, bias, residual)
        # After the launch the workspace goes back to its stream's shelf: what takes it next comes later on the stream.
        launch(
            stream, out.data_pointer, first.data_pointer, second.data_pointer,
            0 if bias is None else bias.data_pointer, 0 if residual is None else residual.data_pointer,
            0 if workspace is None else workspace.pointer,
        )  # fmt: skip
        if moments is None:
            return out
        partial, parts = moments
        assert workspace is not None
        return out, Moments(partial.on(workspace), parts)

    def _moments(self, candidate: Candidate[ConvProblem]) -> tuple[Layout, Parts] | None:
        if not self.problem.statistics:
            return None
        parts = candidate.parts(self.problem)
        shape = (3, parts.number, self.problem.result_shape[1])
        return layout_of(shape, dtypes.float32, self.problem.device), parts
