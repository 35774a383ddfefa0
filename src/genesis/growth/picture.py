"""A picture of a network's growth: parameters, loss and metric over the epochs, and the events."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from genesis.files import replaced
from genesis.growth.schedule import Event, Point

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {"grown": "#2a7f62", "kept": "#2a7f62", "undone": "#e4572e", "refused": "#888888", "over budget": "#888888"}


def picture(path: str | os.PathLike[str], curve: Sequence[Point], events: Sequence[Event] = ()) -> None:
    """Write a PNG: the number of parameters above, metric and loss below, a line at each event.

    Args:
        path: the file; it is replaced atomically.
        curve, events: those of a Schedule.
    Raises: ImportError: matplotlib is not installed.

    Example:
        >>> import pathlib, tempfile
        >>> from genesis import growth
        >>> path = pathlib.Path(tempfile.mkdtemp(), "growth.png")
        >>> growth.picture(path, [growth.Point(1, 0.5, 2.0, 10), growth.Point(2, 0.6, 1.5, 20)])
        >>> path.read_bytes()[1:4]
        b'PNG'
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    size, quality = figure.subplots(2, 1, sharex=True, height_ratios=(2, 3))
    draw_size(size, curve, events)
    epochs = [point.epoch for point in curve]
    quality.plot(epochs, [point.metric for point in curve], "o-", color="#e4572e", markersize=3, label="metric")
    if any(point.loss is not None for point in curve):
        quality.plot(epochs, [point.loss for point in curve], "o-", color="black", markersize=3, label="loss")
    _mark(quality, events)
    quality.set_xlabel("epoch")
    quality.grid(alpha=0.3)
    quality.legend()
    with replaced(path) as temporary:
        canvas.print_figure(temporary, format="png", dpi=90)


def draw_size(panel: Axes, curve: Sequence[Point], events: Sequence[Event]) -> None:
    """Draw the number of parameters over the epochs on matplotlib axes."""
    panel.step([point.epoch for point in curve], [point.parameters for point in curve], color="black", where="mid")
    panel.set_ylabel("parameters")
    panel.set_ylim(bottom=0)
    panel.grid(alpha=0.3)
    _mark(panel, events)


def _mark(panel: Axes, events: Sequence[Event]) -> None:
    for event in events:
        panel.axvline(event.epoch + 0.5, color=_COLOURS[event.kind], linestyle="--", linewidth=1)
