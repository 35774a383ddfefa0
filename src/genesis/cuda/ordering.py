"""The stream of a launch whose tensors come from several libraries, or for which the caller named one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from genesis.backends.cuda.runtime import streams
from genesis.cuda.arguments import framework_of
from genesis.cuda.frameworks.interface import Framework
from genesis.errors import DTypeError, describe


@contextmanager
def ordered(
    args: Sequence[object], frameworks: Sequence[Framework], device: int, stream: object = None
) -> Iterator[int]:
    """The stream to launch on inside the with block.

    A stream that the caller names is used as it is: the caller orders it with others. Otherwise it is the current one
    of the first library; it waits for those of the others, and they wait for what was launched.
    """
    if stream is None:
        handle, *others = dict.fromkeys(framework.current_stream(device) for framework in frameworks)
    else:
        given, others = getattr(stream, "cuda_stream", stream), []
        if not isinstance(given, int):
            raise DTypeError(
                describe("launch", "stream", "a stream of Genesis or PyTorch, or its address", repr(stream))
            )
        handle = given
    here = streams.Stream(device, handle=handle)
    for other in others:
        here.wait_stream(streams.Stream(device, handle=other))
    yield handle
    for other in others:
        streams.Stream(device, handle=other).wait_stream(here)
    for arg in args:
        framework = framework_of(type(arg))
        if framework is not None:
            framework.use_on(arg, handle)
