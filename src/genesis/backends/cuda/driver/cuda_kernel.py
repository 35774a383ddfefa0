"""Triton's kernels on a GPU: which of their parameters are given at a launch, and how they are packed."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from genesis.backends.cuda.driver.interface import Function, GpuDriver, Grid, KernelMetadata, Kind, RawLaunch, Value
from genesis.backends.cuda.driver.launching import FORMATS, Configuration, Launcher, attribute

_MOST_PREPARED = 256  # grids that a kernel keeps launches for


class CudaKernel:
    """A Triton kernel on the device: which of its parameters are given, and how they are packed."""

    def __init__(
        self,
        driver: GpuDriver,
        device: int,
        name: str,
        function: Function,
        types: Iterable[Kind],
        metadata: KernelMetadata,
    ) -> None:
        self.name = name
        self._launcher, self._metadata = Launcher(driver, device, function, name), metadata
        kinds = [str(kind) for kind in flat(types)]
        self._used = used = [i for i, kind in enumerate(kinds) if kind != "constexpr"]
        self._select = None if len(used) == len(kinds) else _selection(used)
        self._formats = [FORMATS["*" if kinds[i][0] == "*" else kinds[i]] for i in used]
        self._attributes: list[bytes] = []
        if _option(metadata, "launch_pdl"):
            self._attributes.append(attribute("PROGRAMMATIC_STREAM_SERIALIZATION", 1))
        if _option(metadata, "launch_cooperative_grid"):
            self._attributes.append(attribute("COOPERATIVE", 1))
        if metadata.num_ctas > 1:
            self._attributes.append(attribute("CLUSTER_DIMENSION", metadata.num_ctas, 1, 1))
        self._prepared: dict[Grid, RawLaunch] = {}

    def launch(self, grid: Grid, stream: int, values: Sequence[Value]) -> None:
        run = self._prepared.get(grid)
        if run is None:
            if len(self._prepared) >= _MOST_PREPARED:
                self._prepared.clear()
            run = self._prepared[grid] = self._prepare(grid, len(self._used), ())
        run(stream, *(values if self._select is None else self._select(values)))

    def prepare(self, grid: Grid, num_leading: int, rest: Sequence[Value]) -> RawLaunch:
        given = [i for i in self._used if i < num_leading]
        everything = (*[0] * num_leading, *rest)
        selected = everything if self._select is None else self._select(everything)
        skipped = frozenset(range(num_leading)).difference(given)
        if not skipped or not self._metadata.global_scratch_size:
            return self._prepare(grid, num_leading, selected[len(given) :], skipped)
        run = self._prepare(grid, len(given), selected[len(given) :])
        select = _selection(given)
        return lambda stream, *leading: run(stream, *select(leading))

    def _prepare(self, grid: Grid, num_given: int, rest: Sequence[Value], skipped: Collection[int] = ()) -> RawLaunch:
        """run(stream, *values): values without the constants among them, but for those at the skipped places."""
        x, y, z = grid
        metadata, launcher = self._metadata, self._launcher
        threads = (32 * metadata.num_warps, 1, 1)
        configuration = Configuration((x * metadata.num_ctas, y, z), threads, metadata.shared, self._attributes)
        formats = iter(self._formats)  # after which Triton adds two addresses of scratch memory
        given = ["Q" if i in skipped else next(formats) for i in range(num_given)]
        if not metadata.global_scratch_size:
            return launcher.prepare(configuration, given, [*formats, "8x", "8x"], rest, skipped)
        run = launcher.prepare(configuration, [*given, *formats, "Q"], ["8x"])
        driver, device = launcher.driver, launcher.device
        num_bytes = x * y * z * metadata.num_ctas * metadata.global_scratch_size

        def run_with_scratch(stream: int, /, *values: Value) -> None:
            scratch = driver.allocate(device, num_bytes, stream)
            run(stream, *values, *rest, scratch)
            driver.release(device, scratch, stream)

        return run_with_scratch


def flat(values: Iterable[object]) -> Iterator[object]:
    for value in values:
        if isinstance(value, tuple):
            yield from flat(value)
        else:
            yield value


def _selection(places: Sequence[int]) -> Callable[[Sequence[Value]], Sequence[Value]]:
    """The values at these places."""
    if len(places) == 1:
        return lambda values: (values[places[0]],)
    return operator.itemgetter(*places) if places else lambda values: ()


def _option(metadata: KernelMetadata, name: str) -> bool:
    return bool(getattr(metadata, name, False))
