"""Tensors in shared memory, and on their way through multiprocessing's queues."""

from __future__ import annotations

import multiprocessing as mp
import pickle
from multiprocessing.queues import Queue
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest

import genesis
from genesis import nn
from genesis.errors import GraphError
from genesis.settings import override


def _add_one(received: Queue[Any], sent: Queue[Any]) -> None:
    for tensor in received.get():
        with genesis.no_grad():
            tensor += 1
    sent.put("done")
    received.get()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_other_processes_write_into_shared_memory_and_into_copies_of_other(method: str) -> None:
    context = mp.get_context(method)
    to_child, from_child = context.Queue(), context.Queue()
    shared, view = genesis.zeros(2, 3).share_memory_(), None
    view, weight, copied = shared.T, nn.Parameter(genesis.ones(2)), genesis.zeros(2)
    weight.share_memory_()
    child = context.Process(target=_add_one, args=(to_child, from_child), daemon=True)
    child.start()
    to_child.put((shared, weight, copied))
    assert from_child.get(timeout=60) == "done"
    assert (shared.tolist(), view.tolist()) == ([[1.0] * 3] * 2, [[1.0] * 2] * 3)
    assert (weight.tolist(), copied.tolist()) == ([2.0, 2.0], [0.0, 0.0])
    to_child.put(None)
    child.join(60)
    assert child.exitcode == 0


def test_what_is_sent_keeps_its_class_and_attributes() -> None:
    weight = nn.Parameter(genesis.arange(6.0).reshape(2, 3)).share_memory_()
    weight.tag = "kept"
    found = pickle.loads(ForkingPickler.dumps(weight))
    assert type(found) is nn.Parameter
    assert (found.requires_grad, found.tag, found.is_shared()) == (True, "kept", True)
    assert found.tolist() == weight.tolist()
    assert found.data_ptr() != 0
    with genesis.no_grad():
        found[0, 0] = 7.0
    assert weight[0, 0].item() == 7.0
    assert pickle.loads(pickle.dumps(weight)).is_shared() is False  # a copy, for files


def test_what_is_not_sent() -> None:
    y = (genesis.ones(2, requires_grad=True) * 2).share_memory_()
    with pytest.raises(GraphError, match="pickle: only leaves can be pickled"):
        ForkingPickler.dumps(y)


def test_a_module_shares_its_parameters_and_buffers() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).share_memory()
    assert all(tensor.is_shared() for tensor in net.state_dict().values())
    with override(cuda="simulated"):
        assert genesis.ones(2, device="cuda").share_memory_().is_shared()
