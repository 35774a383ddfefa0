"""torch.default_generator: the CPU's own stream of random numbers as a Generator."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

import genesis
from genesis import Generator, Tensor
from genesis.ndarray import CPU, random


class DefaultGenerator(Generator):
    """The stream that the CPU's draws without a generator come from."""

    def __init__(self) -> None:
        self.device = CPU

    @contextlib.contextmanager
    def _in_place_of_the_devices(self) -> Iterator[None]:
        yield

    def manual_seed(self, seed: int) -> Generator:
        random.manual_seed_of(int(seed), CPU)
        return self

    def seed(self) -> int:
        number = Generator().initial_seed()
        self.manual_seed(number)
        return number

    def initial_seed(self) -> int:
        return torch.initial_seed()  # the CPU's generator is PyTorch's

    def get_state(self) -> Tensor:
        return genesis.get_rng_state("cpu")

    def set_state(self, new_state: Tensor) -> None:
        genesis.set_rng_state(new_state, "cpu")


default_generator = DefaultGenerator()
