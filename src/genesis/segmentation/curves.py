"""The pictures of a training: its curves, epoch by epoch, and what a network found in a photograph."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from genesis.files import replaced
from genesis.growth import Event
from genesis.segmentation.arrays import Array
from genesis.segmentation.examples import LabelledSet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from genesis.segmentation.training import Epoch

ACCENT = "#e4572e"


def can_draw() -> bool:
    """Whether there is matplotlib, which pictures of curves need and nothing else."""
    try:
        import matplotlib.figure  # noqa: F401  (a broken one is as good as none)
    except ImportError:
        return False
    return True


def save(path: Path, history: list[Epoch], events: Sequence[Event] = ()) -> None:
    """Write a PNG with the loss on the left and the scores on what was held out on the right, if matplotlib is there.

    Args:
        events: when the network grew, marked in the curves.
    """
    if not can_draw():
        return
    figure = _figure(10, 4)
    left, right = figure.subplots(1, 2)
    _draw(left, {"loss": [epoch.loss for epoch in history]}, events)
    scores = {name: [getattr(epoch, name) for epoch in history] for name in ("miou", "dice", "accuracy")}
    _draw(right, scores, events)
    right.set_ylim(0, 1)
    _write(figure, path)


def save_result(
    path: Path, data: LabelledSet, found: Array, history: list[Epoch], events: Sequence[Event] = ()
) -> None:
    """Write a PNG with four panels: a photograph, the mask of its objects, what was found, the curves.

    Args:
        data: the two parts of the photograph.
        found: (H, W), 1 where the network sees an object.
    """
    seen, held_out = data.training[0], data.held_out[0]
    pixels = np.concatenate([seen.values, held_out.values], axis=2).transpose(1, 2, 0)
    mask = np.concatenate([seen.labels, held_out.labels], axis=1)
    tint = np.array([int(ACCENT[i : i + 2], 16) for i in (1, 3, 5)], np.float32) / 255
    figure = _figure(10, 8)
    panels = figure.subplots(2, 2)
    shown = {
        "photograph; right of the line is held out": pixels,
        "mask to learn from and to compare with": mask,
        "what the network found": np.where(found[..., None] > 0, 0.55 * pixels + 0.45 * tint, pixels),
    }
    for panel, (title, image) in zip(panels.flat, shown.items(), strict=False):
        panel.imshow(image, cmap="gray", interpolation="nearest")
        panel.axvline(seen.labels.shape[1] - 0.5, color=ACCENT, linestyle="--", linewidth=1)
        panel.set_title(title, fontsize=10)
        panel.set_axis_off()
    held_out_iou = f"held-out IoU of {data.classes[1]}"
    numbers = {"loss": [epoch.loss for epoch in history], held_out_iou: [epoch.iou[1] for epoch in history]}
    _draw(panels[1, 1], numbers, events)
    panels[1, 1].set_ylim(0, 1)
    _write(figure, path)


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _draw(panel: Axes, lines: dict[str, list[float]], events: Sequence[Event]) -> None:
    colours = ("black", ACCENT, "tab:blue")
    for colour, (name, values) in zip(colours, lines.items(), strict=False):
        panel.plot(range(1, len(values) + 1), values, ".-", color=colour, label=name)
    for event in events:
        panel.axvline(event.epoch + 0.5, color="grey", linestyle="--", linewidth=1)
        place = panel.get_xaxis_transform()
        label = f"{event.parameters / 1000:.0f}k parameters"
        panel.text(event.epoch + 0.6, 0.3, label, transform=place, rotation=90, color="grey", fontsize=8)
    panel.set_xlabel("epoch")
    panel.grid(alpha=0.3)
    panel.legend(loc="center right")


def _write(figure: Figure, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with replaced(path) as temporary:
        FigureCanvasAgg(figure).print_figure(temporary, format="png", dpi=75)
