"""The profiler: what it counts, what it writes, on every device, and that nothing of it stays."""

from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path

import pytest

import genesis
from genesis import backends
from genesis.nn import functional as F
from genesis.profiler import Row, profile, table
from genesis.profiler.timed import TimedCall


def test_each_op_is_counted(device: str) -> None:
    x, y = genesis.ones(10, 20, device=device), genesis.ones(20, 30, device=device)
    with profile() as profiled:
        for _ in range(3):
            (x @ y).exp()
        genesis.zeros(5, device=device)
    found = {row.name: row for row in profiled.rows()}
    assert {name: row.calls for name, row in found.items()} == {"matmul": 3, "exp": 3, "full": 1}
    assert {row.device for row in found.values()} == {device}
    assert found["matmul"].num_flops == 3 * 2 * 10 * 20 * 30
    assert found["matmul"].num_bytes == 3 * 4 * (200 + 600 + 300)
    assert found["exp"].num_flops == 0
    assert all(row.total_seconds > 0 for row in found.values())
    assert sum(row.share for row in found.values()) == pytest.approx(1)
    (x @ y).exp()
    assert sum(row.calls for row in profiled.rows()) == 7, "nothing is recorded behind the block"


def test_forward_and_backward_on_the_timeline(device: str, tmp_path: Path) -> None:
    x = genesis.randn(4, 6, device=device, requires_grad=True)
    with profile() as profiled:
        F.softmax(x, dim=1).square().sum().backward()
    profiled.export_chrome_trace(tmp_path / "trace.json")
    loaded = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))
    named = {event["name"]: event["args"]["name"] for event in loaded["traceEvents"] if event["ph"] == "M"}
    assert named["process_name"] == device
    assert named["thread_name"].startswith("thread" if device == "cpu" else "stream 0x0")
    ops = [event for event in loaded["traceEvents"] if event["ph"] == "X"]
    assert {"softmax", "softmax_backward", "sum"} <= {event["name"] for event in ops}
    for event, following in itertools.pairwise(ops):
        assert 0 <= event["ts"] <= event["ts"] + event["dur"] <= following["ts"] + 1  # rounded to a microsecond
    assert ops[0]["args"]["arrays"] == "float32 (4, 6) → float32 (4, 6)"
    assert ops[0]["args"]["bytes"] == 2 * 4 * 24


def test_threads_and_streams_have_rows_of_their_own(device: str) -> None:
    def work() -> None:
        if device == "cpu":
            genesis.ones(3).exp()
        else:
            with genesis.cuda.stream(genesis.cuda.Stream()):
                genesis.ones(3, device=device).exp()

    with profile() as profiled:
        work()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        genesis.ones(3, device=device).exp()
    assert len({call.queue for call in profiled.calls()}) >= 2


def test_profiles_can_be_nested_and_leave_nothing_behind() -> None:
    plain = backends.get("cpu")
    with profile() as outer:
        with profile() as inner:
            genesis.ones(2).exp()
        genesis.ones(2).exp()
        assert [row.calls for row in outer.rows() if row.name == "exp"] == [2], "it can be looked at before its end"
    assert [row.calls for row in inner.rows() if row.name == "exp"] == [1]
    with pytest.raises(ValueError, match="reshape"), profile() as stopped:
        genesis.ones(2).reshape(3)
    assert {row.name for row in stopped.rows()} == {"full"}
    assert backends.active["cpu"] is plain


# --- the table: of made-up times --------------------------------------------------------------------------------------

CALLS = [
    TimedCall("add", "cpu", 1, 0.0, 1e-3, 3_000_000, 0, ""),
    TimedCall("matmul", "cuda:0", 2, 0.0, 2e-3, 1_000_000, 4_000_000_000, ""),
    TimedCall("add", "cpu", 1, 0.0, 3e-3, 3_000_000, 0, ""),
]


def test_rows() -> None:
    add, matmul = table.rows(CALLS, "total")
    assert add == Row("add", "cpu", 2, 4e-3, 4 / 6, 6_000_000, 0)
    assert add.mean_seconds == 2e-3
    assert add.gigabytes_per_second == pytest.approx(1.5)
    assert matmul.gflops_per_second == pytest.approx(2000)


@pytest.mark.parametrize(
    ("sort_by", "first"),
    [("total", "add"), ("mean", "add"), ("calls", "add"), ("bandwidth", "add"), ("flops", "matmul"), ("name", "add")],
)
def test_order(sort_by: str, first: str) -> None:
    assert table.rows(CALLS, sort_by)[0].name == first


def test_text() -> None:
    rows = table.rows(CALLS, "total")
    assert table.text(rows, None).splitlines() == [
        "op      device    calls   total ms    mean µs   share      GB/s    GFLOP/s",
        "add     cpu           2      4.000     2000.0   66.7%      1.50",
        "matmul  cuda:0        1      2.000     2000.0   33.3%      0.50     2000.0",
        "all                   3      6.000",
    ]
    assert len(table.text(rows, 1).splitlines()) == 3
    assert table.text([], None).splitlines()[-1].split() == ["all", "0", "0.000"]


def test_an_unknown_order() -> None:
    with pytest.raises(ValueError, match=r"profile: argument 'sort_by': expected one of total, .*, got 'time'"):
        profile().rows("time")
