"""torch.random: what genesis.random leaves out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import genesis
from genesis.port.stand_ins.toplevel import default_generator as default_generator
from genesis.port.stand_ins.toplevel import initial_seed as initial_seed
from genesis.port.stand_ins.toplevel import manual_seed as manual_seed


@contextmanager
def fork_rng(devices: Iterable[object] | None = None, enabled: bool = True, **options: object) -> Iterator[None]:
    """Restore the states of the generators after the block: the CPU's, and those of devices; None for all GPUs."""
    if not enabled:
        yield
        return
    if devices is None:
        devices = range(genesis.cuda.device_count())
    places = ["cpu", *(f"cuda:{each}" if isinstance(each, int) else each for each in devices)]
    states = [genesis.get_rng_state(place) for place in places]  # type: ignore[arg-type]
    try:
        yield
    finally:
        for place, state in zip(places, states, strict=True):
            genesis.set_rng_state(state, place)  # type: ignore[arg-type]
