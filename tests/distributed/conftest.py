"""Processes that all tests of a module share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.distributed.ranks import Ranks, ranks


@pytest.fixture(scope="session")
def two_ranks() -> Iterator[Ranks]:
    with ranks(2) as started:
        yield started


@pytest.fixture(scope="session")
def four_ranks() -> Iterator[Ranks]:
    with ranks(4) as started:
        yield started
