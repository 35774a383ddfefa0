"""The report of fuse(), to read and to print."""

from __future__ import annotations

from collections.abc import Sequence

from genesis.fusion.chains import Chain, Step


class Fusion:
    """The outcome of fuse() for each layer of a model.

    fused: the names of the parts of each op. replaced: those of layers that run by one of Genesis' kernels each.
    left: those of convolutions, poolings or modules that stay, and why.
    """

    def __init__(self) -> None:
        self.fused: list[tuple[str, ...]] = []
        self.replaced: list[str] = []
        self.left: list[tuple[str, str]] = []

    def add(self, prefix: str, steps: Sequence[Step], chains: Sequence[Chain]) -> None:
        """Note the chains found in the module of this name."""
        for chain in chains:
            names = [steps[position].name for position in chain.parts]
            self.fused.append(tuple(_join(prefix, name) for name in names))

    def replace(self, prefix: str, name: str) -> None:
        self.replaced.append(_join(prefix, name))

    def leave(self, prefix: str, name: str, reason: str) -> None:
        self.left.append((_join(prefix, name), reason))

    def __str__(self) -> str:
        replaced = f"{len(self.replaced)} replaced, " if self.replaced else ""
        lines = [f"{len(self.fused)} fused, {replaced}{len(self.left)} left"]
        lines += ["  " + " → ".join(names) for names in self.fused]
        lines += [f"  {name}: replaced" for name in self.replaced]
        lines += [f"  {name or 'the model'}: left, as {reason}" for name, reason in self.left]
        return "\n".join(lines)


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix and name else prefix or name
