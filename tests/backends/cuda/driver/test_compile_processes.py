"""Compiling in other processes: what comes back, what becomes of those who die, and that none outlives its parent."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from triton import knobs

from genesis.backends.cuda.driver import KernelError, compile_processes, compile_server, deferred
from genesis.backends.cuda.driver.compile_processes import Processes, Threads
from genesis.backends.cuda.driver.deferred import NotCompiledYet, Request, Ticket, deferring
from genesis.backends.cuda.driver.triton_driver import compile_kernel
from genesis.backends.cuda.nvrtc.program import Program
from genesis.backends.cuda.ops.indexing import kernels
from genesis.settings import override
from tests.backends.cuda.driver.compile_tasks import die, fail, write_modules, write_state, write_text

AnyCompilers = Processes | Threads
SPECIMEN = kernels.SPECIMENS[0]


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    pool = Processes(2)
    yield pool
    pool.close()


@pytest.fixture
def threads() -> Iterator[Threads]:
    pool = Threads(2)
    yield pool
    pool.close()


@pytest.fixture
def empty_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path / "triton"))
    with override(cache_dir=tmp_path / "genesis"):
        yield tmp_path


def finish(pool: AnyCompilers, *tickets: Ticket) -> None:
    deadline = time.monotonic() + 60
    while not all(ticket.done for ticket in tickets) and time.monotonic() < deadline:
        pool.wait(10)
    assert all(ticket.done for ticket in tickets)


def test_a_kernel_is_compiled_there_and_loaded_here(processes: Processes, empty_caches: Path) -> None:
    tickets: dict[Any, Ticket] = {}
    arguments = SPECIMEN.kernel, SPECIMEN.signature(), 90
    with deferring(processes, tickets):
        for _ in range(2):  # one request for both
            with pytest.raises(NotCompiledYet) as asked:
                compile_kernel(*arguments)
        assert list(tickets.values()) == [asked.value.ticket]
        finish(processes, asked.value.ticket)
        files = sorted(empty_caches.rglob("*.cubin"))
        compiled = compile_kernel(*arguments)
    assert asked.value.ticket.seconds > 0
    assert compiled.asm["cubin"] == files[0].read_bytes()
    assert compiled.metadata.target.arch == 90
    assert sorted(empty_caches.rglob("*.cubin")) == files, "this process has compiled nothing"
    with deferring(processes, {}):
        compile_kernel(*arguments)  # from the disk, without asking


def test_cuda_source_is_compiled_there(processes: Processes, empty_caches: Path) -> None:
    source = 'extern "C" __global__ void fill(float* out) { out[threadIdx.x] = 1.0f; }'
    program = Program("fill", source, "fill.cu", None)
    assert program.kernels.keys() == {"fill"}
    tickets: dict[Any, Ticket] = {}
    with deferring(processes, tickets):
        with pytest.raises(NotCompiledYet) as asked:
            program.compiled("sm_90", ("fill",))
        finish(processes, asked.value.ticket)
        (path,) = (empty_caches / "genesis" / "kernels").glob("*.cubin")
        assert program.compiled("sm_90", ("fill",)).cubin in path.read_bytes()
    with deferring(processes, {}):
        dataclasses.replace(program).compiled("sm_90", ("fill",))


def test_workers_hold_no_device_and_use_the_caches_of_the_moment(processes: Processes, empty_caches: Path) -> None:
    path = empty_caches / "state"
    finish(processes, processes.submit(Request.of("state", write_state, path)))
    assert path.read_text().rpartition(" ")[0] == f"[] False {empty_caches}/genesis {empty_caches}/triton"
    assert int(path.read_text().split()[-1]) != os.getpid()


def test_workers_begin_with_what_compiling_imports(tmp_path: Path) -> None:
    pool = Processes(1)
    path = tmp_path / "modules"
    finish(pool, pool.submit(Request.of("modules", write_modules, path)))
    assert {"triton.compiler.code_generator", "cuda.bindings.nvrtc"} <= set(path.read_text().split())
    pool.close()


def test_workers_that_another_process_started_are_taken_over(tmp_path: Path) -> None:
    server, sockets = compile_processes.start_server(2)
    pool = Processes(2, [each.detach() for each in sockets])
    finish(pool, *[pool.submit(Request.of(i, write_text, tmp_path / str(i), "done")) for i in range(4)])
    assert pool._server is None, "none was started besides"
    pool.close()
    assert server.wait(10) == 0, "they end with their sockets"
    finish(pool, pool.submit(Request.of(4, write_text, tmp_path / "4", "done")))  # by others
    pool.close()
    assert {path.name for path in tmp_path.iterdir()} == set("01234")


def test_what_dies_is_lost_and_the_others_go_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pool = Processes(2)
    deadly = [Request.of(i, die, tmp_path / f"deadly {i}") for i in range(2)]
    good = [Request.of(10 + i, write_text, tmp_path / str(i), "done") for i in range(3)]
    tickets = {each.key: pool.submit(each) for each in [*deadly, *good]}
    finish(pool, *tickets.values())
    assert [ticket.lost for ticket in tickets.values()] == [True, True, False, False, False]
    assert all((tmp_path / str(i)).read_text() == "done" for i in range(3)), "by workers that were started anew"
    with deferring(pool, tickets), pytest.raises(KernelError, match=r"die: the compiler died of .*deadly 0"):
        deferred.require(deadly[0])
    assert "a compiler died of" in caplog.text
    pool.close()


@pytest.mark.parametrize("which", ["processes", "threads"])
def test_whoever_asks_again_gets_the_error(which: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    pool: AnyCompilers = request.getfixturevalue(which)
    unpicklable = Request.of("lambda", lambda path: fail(path), tmp_path)
    tickets = [pool.submit(Request.of("fails", fail, tmp_path)), pool.submit(unpicklable)]
    finish(pool, *tickets)
    assert not any(ticket.lost for ticket in tickets)
    with deferring(pool, {ticket.request.key: ticket for ticket in tickets}):
        deferred.require(tickets[0].request)  # returns: the caller compiles, and sees for itself


def test_threads_do_the_same(threads: Threads, tmp_path: Path) -> None:
    tickets = [threads.submit(Request.of(i, write_text, tmp_path / str(i), "done")) for i in range(5)]
    finish(threads, *tickets)
    assert all(ticket.seconds > 0 for ticket in tickets)
    assert {path.name for path in tmp_path.iterdir()} == set("01234")


def test_requests_that_have_not_begun_are_dropped(tmp_path: Path) -> None:
    for pool in (Processes(1), Threads(1)):
        slow = [pool.submit(Request.of(i, write_text, tmp_path / f"{pool.apart} {i}", "")) for i in range(9)]
        pool.drop()
        pool.close()
        assert len(slow) == 9
    assert not list(tmp_path.glob("True*")), "no process had begun"


@pytest.mark.parametrize("broken", ["no Python", "ends at once"])
def test_where_no_process_can_be_started_this_one_compiles(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    command = {"no Python": ["/nowhere/python"], "ends at once": [sys.executable, "-c", ""]}[broken]
    monkeypatch.setattr(compile_processes, "command", lambda module: command)
    pool = Processes(2)
    ticket = pool.submit(Request.of(0, write_text, tmp_path / "never", ""))
    finish(pool, ticket)
    assert pool.is_broken
    assert not ticket.lost
    assert "no processes to compile in" in caplog.text
    pool.close()


def test_idle_workers_end_and_others_start(tmp_path: Path) -> None:
    pool = Processes(1)
    finish(pool, pool.submit(Request.of(0, write_text, tmp_path / "first", "")))
    (worker,) = pool._workers
    assert pool._server is not None
    for pid in children(pool._server.pid):
        os.kill(pid, signal.SIGKILL)  # as if its time were up
    worker.connection.poll(10)
    finish(pool, pool.submit(Request.of(1, write_text, tmp_path / "second", "")))
    assert (tmp_path / "second").exists()
    assert not pool.is_broken
    pool.close()
    assert compile_server._IDLE > 1


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


_PARENT = """
import signal, sys, time
from pathlib import Path
from genesis.backends.cuda.driver.compile_processes import Processes
from genesis.backends.cuda.driver.deferred import Request
from tests.backends.cuda.driver import compile_tasks as tests
pool = Processes(2)
tickets = [pool.submit(Request.of(i, tests.write_pid_and_sleep, Path(sys.argv[1]) / str(i), 60)) for i in range(2)]
while True:
    pool.wait(60)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_no_worker_outlives_its_parent(how: signal.Signals, tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[4]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(tmp_path)], env=environment, stderr=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: all((tmp_path / name).exists() for name in "01"), 60)
        pids = {int(pid) for name in "01" for pid in (tmp_path / name).read_text().split()}
        assert len(pids) == 3, "two workers and their server"
    finally:
        parent.send_signal(how)
        parent.wait(10)
    wait_until(lambda: not any(map(is_running, pids)), 30)


def test_workers_that_take_too_long_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_processes, "_PATIENCE", 0.05)
    pool = Processes(1)
    pool._server = server = subprocess.Popen(["sleep", "100"], start_new_session=True)
    pool.close()
    assert pool._server is None
    assert server.returncode == -signal.SIGKILL


def wait_until(holds: Any, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
