"""Does a network that grows get as far as one that is large from the start, for no more computation?

    python benchmarks/grow_digits.py

Scikit-learn's digits (1,797 images of 8×8), five seeds, each with its own split (30 % held out), initial weights and
order of the batches. Three ways to train a convolution network with 16 channels after its first layer:

- fixed: 20 epochs at that width;
- copy: 12 epochs at half of it, then growth.grow_width(new="copy"), then as many epochs as the multiplications that
  are left allow;
- zero: the same with new="zero".

All use AdamW, batches of 64 and one cosine for the learning rate. Writes results/grow_digits.json and
docs/images/growth-digits.png.
"""

from __future__ import annotations

import json
import math
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import genesis
import genesis.nn.functional as F
from genesis import growth, nn, optim

HERE = Path(__file__).resolve().parent
WIDTH, EPOCHS, BATCH, LR, SEEDS = 16, 20, 64, 4e-3, range(5)
SMALL_WIDTH, SMALL_EPOCHS = 8, 12


def build(width: int) -> nn.Module:
    return nn.Sequential(
        nn.ConvBNReLU(1, width, 3, padding=1),
        nn.ConvBNReLU(width, 2 * width, 3, padding=1),
        nn.MaxPool2d(2),
        nn.ConvBNReLU(2 * width, 2 * width, 3, padding=1),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * width, 10),
    )


def macs_of(model: nn.Module) -> int:
    """Multiplications of a forward pass of one image."""
    return growth.channel_map(model, genesis.zeros(1, 1, 8, 8)).macs


def run(way: str, seed: int) -> dict[str, Any]:
    """Train once; gives the accuracy on the held-out images after each epoch, and what was spent until then."""
    images, labels = load_digits(return_X_y=True)
    images = (images.reshape(-1, 1, 8, 8) / 8 - 1).astype(np.float32)
    split = train_test_split(images, labels.astype(np.int64), test_size=0.3, stratify=labels, random_state=seed)
    train_x, test_x, train_y, test_y = (genesis.from_numpy(np.ascontiguousarray(part)) for part in split)
    genesis.manual_seed(seed)
    generator = np.random.default_rng(seed)
    full = macs_of(build(WIDTH))
    model = build(WIDTH if way == "fixed" else SMALL_WIDTH)
    optimizer = optim.AdamW(model.parameters(), lr=LR, weight_decay=0.01)
    epochs = EPOCHS
    if way != "fixed":
        epochs = SMALL_EPOCHS + math.floor((EPOCHS * full - SMALL_EPOCHS * macs_of(model)) / full)
    per_epoch = -(-len(train_x) // BATCH)
    rates = optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * per_epoch)
    schedule = growth.Schedule(
        model, optimizer, [lambda net: growth.grow_width(net, factor=WIDTH / SMALL_WIDTH, new=way)] if way != "fixed" else [],
        when=growth.at_epochs(SMALL_EPOCHS), example=train_x[:2], seed=seed,
    )  # fmt: skip
    accuracies, spent, total = [], [], 0
    for _ in range(epochs):
        order = generator.permutation(len(train_x))
        model.train()
        for start in range(0, len(order), BATCH):
            batch = genesis.from_numpy(order[start : start + BATCH])
            loss = F.cross_entropy(model(train_x[batch]), train_y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rates.step()
        total += 3 * macs_of(model) * len(order)  # a backward pass multiplies twice as much as a forward pass
        model.eval()
        with genesis.no_grad():
            accuracies.append(float((model(test_x).argmax(1) == test_y).to(genesis.float32).mean().item()))
        spent.append(total)
        schedule.step(accuracies[-1], loss.item())
    return {"way": way, "seed": seed, "accuracies": accuracies, "multiplications": spent, "epochs": epochs}


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for way in ("fixed", "copy", "zero"):
        its = [run for run in runs if run["way"] == way]
        final = np.array([run["accuracies"][-1] for run in its])
        rows.append(
            {
                "way": way,
                "epochs": its[0]["epochs"],
                "multiplications": its[0]["multiplications"][-1],
                "accuracies": [round(value, 4) for value in final.tolist()],
                "mean": round(float(final.mean()), 4),
                "std": round(float(final.std(ddof=1)), 4),
            }
        )
    return rows


def draw(runs: list[dict[str, Any]], path: Path) -> None:
    """Error over computation: the mean of the seeds, and from the best to the worst."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    panel = figure.subplots()
    for way, colour in (("fixed", "black"), ("copy", "#e4572e"), ("zero", "#2a7f62")):
        its = [run for run in runs if run["way"] == way]
        errors = 100 * (1 - np.array([run["accuracies"] for run in its]))
        spent = np.array(its[0]["multiplications"]) / 1e9
        panel.plot(spent, errors.mean(0), "o-", color=colour, markersize=3, label=way)
        panel.fill_between(spent, errors.min(0), errors.max(0), color=colour, alpha=0.12)
    panel.axvline(spent[SMALL_EPOCHS - 1], color="grey", linestyle="--", linewidth=1)
    panel.set_yscale("log")
    panel.set_xlabel("multiplications, 10⁹")
    panel.set_ylabel("held-out error, %")
    panel.grid(alpha=0.3, which="both")
    panel.legend()
    canvas.print_figure(path, format="png", dpi=90)


def main() -> None:
    start = time.perf_counter()
    runs = [run(way, seed) for seed in SEEDS for way in ("fixed", "copy", "zero")]
    result = {
        "machine": f"{platform.processor() or platform.machine()}, CPU",
        "genesis": genesis.__version__,
        "seconds": round(time.perf_counter() - start),
        "summary": summary(runs),
        "runs": runs,
    }
    (HERE / "results" / "grow_digits.json").write_text(json.dumps(result, indent=1) + "\n")
    draw(runs, HERE.parent / "docs" / "images" / "growth-digits.png")
    for row in result["summary"]:
        print(row)


if __name__ == "__main__":
    main()
