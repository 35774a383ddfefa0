"""Does a network that grows get as far as one that is large from the start, for no more computation?

    python benchmarks/grow_digits.py

Scikit-learn's digits (1,797 images of 8×8), five seeds, each with its own split (30 % held out), initial weights and
order of the batches. A convolution network with 16 channels after its first layer is trained

- from the start at that width, for 20 epochs;
- from half of it, or from three quarters, for some epochs, then growth.grow_width() with new="copy" or new="zero", then
  as many epochs as the multiplications that are left allow.

All use AdamW, batches of 64 and one cosine for the learning rate. Writes results/grow_digits.json and
docs/images/growth-digits.png.
"""

from __future__ import annotations

import json
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
WAYS = {  # width at the start, epochs at it, and how it grows
    "full width": (16, 20, None),
    "from 12, copy": (12, 10, "copy"),
    "from 12, zero": (12, 10, "zero"),
    "from 8, copy": (8, 12, "copy"),
    "from 8, zero": (8, 12, "zero"),
}
COLOURS = ("black", "#e4572e", "#f2a65a", "#2a7f62", "#8cc5a8")


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
    width, small_epochs, new = WAYS[way]
    model = build(width)
    optimizer = optim.AdamW(model.parameters(), lr=LR, weight_decay=0.01)
    epochs = small_epochs + (EPOCHS * full - small_epochs * macs_of(model)) // full
    per_epoch = -(-len(train_x) // BATCH)
    rates = optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * per_epoch)
    growths = [lambda net: growth.grow_width(net, factor=WIDTH / width, new=new)]
    schedule = growth.Schedule(
        model, optimizer, growths if new else [],
        when=growth.at_epochs(small_epochs), example=train_x[:2], seed=seed,
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
    assert all(event.kind == "grown" for event in schedule.events), schedule.events
    return {"way": way, "seed": seed, "accuracies": accuracies, "multiplications": spent, "epochs": epochs}


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for way in WAYS:
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
    """The mean error of the seeds over computation; a diamond where a network grows."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    panel = figure.subplots()
    for way, colour in zip(WAYS, COLOURS, strict=True):
        its = [run for run in runs if run["way"] == way]
        errors = 100 * (1 - np.array([run["accuracies"] for run in its]))
        spent = np.array(its[0]["multiplications"]) / 1e9
        panel.plot(spent, errors.mean(0), "o-", color=colour, markersize=3, label=way)
        if WAYS[way][2]:
            grown = WAYS[way][1] - 1
            panel.plot(spent[grown], errors.mean(0)[grown], "D", color=colour, markersize=8)
    panel.set_ylim(0.5, 6)
    panel.set_yscale("log")
    panel.set_yticks([0.6, 1, 2, 3, 4, 6], ["0.6", "1", "2", "3", "4", "6"], minor=False)
    panel.minorticks_off()
    panel.set_xlabel("multiplications, 10⁹")
    panel.set_ylabel("held-out error, %")
    panel.grid(alpha=0.3)
    panel.legend()
    canvas.print_figure(path, format="png", dpi=90)


def main() -> None:
    start = time.perf_counter()
    runs = [run(way, seed) for seed in SEEDS for way in WAYS]
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
