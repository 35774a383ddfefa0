"""The process that compiles: it loads the compilers once, and forks a worker for each of the sockets that it was given.

It holds no CUDA context and never asks for a device. Workers end with their parent, whatever ends that: its end of the
socket closes. They get no Ctrl-C, since they are a session of their own, and end when they have long had nothing to do.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import select
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

READY, BEGUN, DONE = "ready", "begun", "done"
Message = tuple[str, bool, float, str]  # one of these, has it succeeded, seconds, error
_IDLE = 30.0  # seconds
_NICE = 10  # the process that measures comes first


def main(descriptors: Sequence[int]) -> None:
    """Serve until the last worker has ended, then remove what killed compilers have left in the temporary folder."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_NICE)
    with tempfile.TemporaryDirectory(prefix="genesis-compile-") as folder:
        tempfile.tempdir = os.environ["TMPDIR"] = folder
        _warm_up(folder)
        gc.freeze()
        for descriptor in descriptors:
            if os.fork() == 0:
                _work(descriptor, [other for other in descriptors if other != descriptor])
        for descriptor in descriptors:
            os.close(descriptor)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.wait()


def _warm_up(folder: str) -> None:
    """Compile something with each compiler: the first kernel of a process takes a second more than the next."""
    from genesis.backends.cuda.driver import nvrtc, triton_driver

    with contextlib.suppress(Exception):  # whoever compiles in earnest gets the error
        triton_driver.warm_up(folder)
    with contextlib.suppress(Exception):
        nvrtc.compile_cubin("__global__ void nothing() {}", "nothing.cu", "sm_90", (), (), ())


def _work(descriptor: int, others: Sequence[int]) -> None:
    """A worker's life. It never returns into what the server does."""
    try:
        for other in others:
            os.close(other)
        threading.Thread(target=end_with_parent, args=(descriptor,), daemon=True).start()
        _serve(Connection(descriptor))
    finally:
        os._exit(0)


def _serve(connection: Connection[Message, bytes]) -> None:
    connection.send((READY, True, 0.0, ""))
    while connection.poll(_IDLE):
        try:
            message = connection.recv_bytes()
        except EOFError:
            return
        began = time.monotonic()
        connection.send((BEGUN, True, 0.0, ""))  # if this process dies from now on, the request is to blame
        try:
            _compile(message)
        except Exception as error:  # the parent compiles it itself, and gets the error that there is
            connection.send((DONE, False, time.monotonic() - began, repr(error)))
        else:
            connection.send((DONE, True, time.monotonic() - began, ""))


def _compile(message: bytes) -> None:
    from triton import knobs

    from genesis.settings import override

    cache_dir, triton_dir, request = pickle.loads(message)
    call = pickle.loads(request)
    knobs.cache.dir = triton_dir
    with override(cache_dir=cache_dir):
        call()


def end_with_parent(descriptor: int) -> None:
    """End this process when the other end of a socket closes. In a thread: this one may be at work for long."""
    hangup = select.poll()
    hangup.register(descriptor, select.POLLRDHUP)
    hangup.poll()
    os._exit(0)


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]])
