"""Entries that are set aside while a model runs plain: a call that only passes through one costs the host time."""

from __future__ import annotations

from torch import nn

from genesis.torch.entry import FORWARD, Entry

ASIDE = "_genesis_forward"  # the attribute that has the entry meanwhile


def entry_of(layer: nn.Module) -> Entry[nn.Module] | None:
    """The entry of a layer, set aside or not; None where it has none."""
    state = layer.__dict__
    entry = state.get(ASIDE, state.get(FORWARD))
    return entry if isinstance(entry, Entry) else None


class Layers:
    """The layers of a model, whose entries are set aside while it runs plain.

    A thread that runs the model fused meanwhile gets the same results: only less is fused in that call.
    """

    moves = 0  # of entries, in any model: models may share layers

    def __init__(self) -> None:
        self._known: tuple[bool, int] | None = None  # whether they are set aside, and the number of moves then
        self._was_plain = False

    def prepare(self, model: nn.Module, plain: bool) -> None:
        """Prepare a call: the second plain one in a row sets the entries aside, a fused one puts them back."""
        in_a_row, self._was_plain = self._was_plain == plain, plain
        if (plain and not in_a_row) or self._known == (plain, Layers.moves):
            return
        move = set_aside if plain else put_back
        for layer in model.modules():
            move(layer)
        self._known = plain, Layers.moves


def set_aside(layer: nn.Module) -> None:
    """Have PyTorch's forward of a layer run instead of its entry."""
    state = layer.__dict__
    entry = state.get(FORWARD)
    if isinstance(entry, Entry) and entry.may_be_set_aside:
        state[ASIDE] = entry
        state.pop(FORWARD, None)  # unless another thread has
        Layers.moves += 1


def put_back(layer: nn.Module) -> None:
    """Have the layer's entry run again, unless someone else's forward has taken its place."""
    entry = layer.__dict__.pop(ASIDE, None)
    if entry is not None:
        layer.__dict__.setdefault(FORWARD, entry)
        Layers.moves += 1
