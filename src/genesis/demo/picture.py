"""The picture of the result: photograph, mask, overlay, curves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from genesis.demo.photograph import Photograph
from genesis.demo.training import Epoch
from genesis.growth import Event

ACCENT = "#e4572e"


def save(
    path: Path, photograph: Photograph, probabilities: np.ndarray, history: list[Epoch], events: Sequence[Event] = ()
) -> None:
    """Write a PNG with four panels.

    Args:
        probabilities: (H, W), of each pixel to belong to an object; objects are where it exceeds one half.
        history: an entry per epoch, for the curves.
        events: when the network grew, marked in the curves.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    found = probabilities > 0.5
    figure = Figure(figsize=(10, 8), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    panels = figure.subplots(2, 2)
    _show(panels[0, 0], photograph, photograph.image, "photograph; right of the line is held out")
    _show(panels[0, 1], photograph, photograph.mask, "mask to learn from and to compare with")
    _show(panels[1, 0], photograph, _overlay(photograph.image, found), "what the network found")
    _curves(panels[1, 1], history, events)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".partial.png")
    canvas.print_figure(temporary, format="png", dpi=75)
    temporary.replace(path)


def _show(panel: Any, photograph: Photograph, pixels: np.ndarray, title: str) -> None:
    panel.imshow(pixels, cmap="gray", interpolation="nearest")
    panel.axvline(photograph.boundary - 0.5, color=ACCENT, linestyle="--", linewidth=1)
    panel.set_title(title, fontsize=10)
    panel.set_axis_off()


def _overlay(image: np.ndarray, found: np.ndarray) -> np.ndarray:
    """The photograph in grey with the objects tinted."""
    tint = np.array([0xE4, 0x57, 0x2E], dtype=np.float32) / 255
    grey = np.repeat(image[..., None], 3, axis=2)
    return np.where(found[..., None], 0.55 * grey + 0.45 * tint, grey)


def _curves(panel: Any, history: list[Epoch], events: Sequence[Event]) -> None:
    epochs = range(1, len(history) + 1)
    panel.plot(epochs, [epoch.loss for epoch in history], "o-", color="black", markersize=3, label="loss")
    panel.plot(
        epochs, [epoch.held_out_iou for epoch in history], "o-", color=ACCENT, markersize=3, label="held-out IoU"
    )
    panel.set_ylim(0, 1)
    for event in events:
        panel.axvline(event.epoch + 0.5, color="grey", linestyle="--", linewidth=1)
        label = f"{event.parameters / 1000:.0f}k parameters"
        panel.text(event.epoch + 0.6, 0.3, label, rotation=90, color="grey", fontsize=8)
    panel.set_xlabel("epoch")
    panel.grid(alpha=0.3)
    panel.legend(loc="center right")
