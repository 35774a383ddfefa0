"""The process that tunes beside the one that compiles: see tuning.py, its parent.

It is told the settings, then calls of ops: it compiles the kernels that they launch, on all cores, and tunes what they
compute. It ends with its parent, whatever ends that: its end of the socket closes.
"""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

import torch

import genesis
import genesis.torch.dynamo  # these register the ops
import genesis.torch.graph_casts
from genesis.backends.cuda.driver.compile_server import end_with_parent
from genesis.backends.cuda.engine import planner, platform
from genesis.backends.cuda.engine.builders import Builders, compilers
from genesis.settings import override
from genesis.torch.graph_calls import Call
from genesis.torch.tuning_messages import FAILED, LOG, TUNED, Answer, Setting, Told, Tuned


def tune(calls: Sequence[Call], budget: float) -> Tuned:
    """Tune what some calls compute. Raises: what one of the calls raises."""
    began = math.inf

    def make_all() -> None:
        nonlocal began
        _compile_for(calls)
        for call in calls:
            call.make()
        began = time.monotonic()

    report = genesis.tune(make_all, budget=budget, resume=False)
    return Tuned(len(report), report.num_left, time.monotonic() - began, sorted(_tuned_problems()))


def _tuned_problems() -> set[str]:
    """Keys of all problems that this process has met and the store knows: others that it met have no say in whether
    some calls were tuned."""
    met = [plan.problem for plan in planner.all_plans()]
    return {each.key for each in met if platform.store(each.device).get(each.key) is not None}


def _compile_for(calls: Sequence[Call]) -> None:
    """Have what these calls launch compiled, on all cores."""
    if not genesis.cuda.is_available():
        return
    builders = Builders(compilers())
    builders.rehearse({repr(call): call.make for call in calls})
    while builders.num_busy:
        builders.advance(0.2)
    builders.drop()


# --- in the process ---------------------------------------------------------------------------------------------------
def main(descriptor: int) -> None:
    threading.Thread(target=end_with_parent, args=(descriptor,), daemon=True).start()
    connection: Connection[Answer, Setting | Told] = Connection(descriptor)
    setting = connection.recv()
    assert isinstance(setting, Setting)
    if setting.logs:
        _relay_to(connection)
    genesis.set_float32_precision(setting.precision)
    with override(cache_dir=setting.cache_dir, **setting.settings), contextlib.suppress(EOFError):
        _serve(connection, _prepare(setting.device))


def _prepare(device: int | None) -> str:
    """Make ready the device and the compilers. Returns: why that is not possible."""
    try:
        if device is not None:
            torch.cuda.set_device(device)
            torch.zeros(1, device="cuda")
        if genesis.cuda.is_available():
            compilers().start()
            # Until this process ends, problems are only noted outside tune(), and the compilers stay.
            planner.begin(planner.Session(math.inf, gathers=True, resumes=False))
    except Exception as error:  # a device that is another process' alone, or full
        return f"{type(error).__name__}: {error}"
    return ""


def _serve(connection: Connection[Answer, Setting | Told], obstacle: str) -> None:
    """Answer what the parent asks; where that fails, it tries it itself, and gets the error that there is."""
    while True:
        told = connection.recv()
        assert not isinstance(told, Setting)
        if obstacle:
            connection.send((FAILED, obstacle))
            continue
        try:
            tuned = tune(*told)
        except Exception as error:
            connection.send((FAILED, f"{type(error).__name__}: {error}"))
        else:
            connection.send((TUNED, tuned))


def _relay_to(connection: Connection[Answer, Setting | Told]) -> None:
    class Relay(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            connection.send((LOG, record.getMessage()))

    logger = logging.getLogger("genesis.tuning")
    logger.propagate = False
    logger.setLevel(logging.INFO)
    logger.addHandler(Relay())


if __name__ == "__main__":
    main(int(sys.argv[1]))
