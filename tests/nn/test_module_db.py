"""Samples of every module of PyTorch's database that Genesis has; `python -m tests.nn.module_db` takes them all."""

from __future__ import annotations

import pytest

import genesis
from tests.nn import module_db


@pytest.mark.filterwarnings("ignore")  # PyTorch's own, about its samples
@pytest.mark.parametrize("name", module_db.NAMES)
def test_samples(name: str) -> None:
    assert module_db.check_all(name, most=2)["equal"]


def test_what_is_not_here_is_listed() -> None:
    missing = {info.module_cls.__name__ for info in module_db.INFOS.values()} - set(dir(genesis.nn))
    assert missing == module_db.NOT_HERE
