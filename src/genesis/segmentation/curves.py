"""The picture of a training: loss and learning rate, mIoU and Dice, epoch by epoch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from genesis.segmentation.files import replaced

if TYPE_CHECKING:
    from genesis.segmentation.training import Epoch


def save(path: Path, history: list[Epoch]) -> None:
    """Write a PNG with the loss on the left and the scores on what was held out on the right."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    _lines(left, history, "loss")
    _lines(right, history, "miou", "dice", "accuracy")
    right.set_ylim(0, 1)
    with replaced(path) as temporary:
        canvas.print_figure(temporary, format="png", dpi=75)


def _lines(panel: Any, history: list[Epoch], *names: str) -> None:
    for name in names:
        panel.plot(range(1, len(history) + 1), [getattr(epoch, name) for epoch in history], ".-", label=name)
    panel.set_xlabel("epoch")
    panel.grid(alpha=0.3)
    panel.legend()
