"""Reports of genesis.torch.compile: graphs, and the calls that ran eagerly."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from torch import nn

from genesis.fusion import Fusion


@dataclass
class Recording:
    """A graph that Dynamo recorded.

    break_reason, place: why it ends before the program does, and at which line; both are empty where it does not.
    obstacle: why it runs eagerly. captured: by a CUDA graph. cached: it was compiled before, maybe by another process,
    and came from PyTorch's cache.
    """

    with_gradients: bool
    break_reason: str = ""
    place: str = ""
    fusion: Fusion = field(default_factory=Fusion)
    compiler: str = ""
    captured: bool = False
    cached: bool = False
    obstacle: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        kind = "with gradients" if self.with_gradients else "without gradients"
        captured = ", captured" if self.captured else ""
        cached = ", from the cache" if self.cached else ""
        how = f"eagerly, as {self.obstacle}" if self.obstacle else f"by {self.compiler}{captured}{cached}"
        lines = [f"{kind}, {how}, {self.seconds:.1f} s: {self.fusion}"]
        if self.break_reason:
            lines.append(f"  ends{f' at {self.place}' if self.place else ''}: {self.break_reason}")
        return "\n".join(lines)


class Recordings:
    """The report of a compiled model or function; its text says all of it.

    graphs: each that was recorded. eager_calls: how many calls ran eagerly, by reason. notes: what PyTorch said where
    it did not capture a graph, and what became of tuning.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.graphs: list[Recording] = []
        self.eager_calls: Counter[str] = Counter()
        self.notes: list[str] = []

    @property
    def fused(self) -> list[tuple[str, ...]]:
        """The parts of each op that was fused, graph by graph, by the names in Dynamo's graphs."""
        return [names for graph in self.graphs for names in graph.fusion.fused]

    @property
    def breaks(self) -> list[tuple[str, str]]:
        """Places where graphs end before the program does, each with the reason."""
        return [(graph.place, graph.break_reason) for graph in self.graphs if graph.break_reason]

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def __str__(self) -> str:
        lines = [f"{self.name}: {len(self.graphs)} graph{'' if len(self.graphs) == 1 else 's'}"]
        for graph in self.graphs:
            lines += ["  " + line for line in str(graph).splitlines()]
        lines += [f"  {number} calls ran eagerly: {reason}" for reason, number in self.eager_calls.items()]
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])


class Target:
    """A compiled target; in a model, it takes the place of its call."""

    recordings: Recordings

    def report(self) -> Recordings:
        """Report the calls so far: graphs, and what ran eagerly and why."""
        return self.recordings


def compiled_of(model: nn.Module) -> Target | None:
    """Find the compiled target that compile() has put into a model."""
    found = model.__dict__.get("_compiled_call_impl")
    return found if isinstance(found, Target) else None


def uncompile(model: nn.Module) -> None:
    """Take what compile() has put into a model and its parts out of them."""
    for module in model.modules():
        if compiled_of(module) is not None:
            del module.__dict__["_compiled_call_impl"]
