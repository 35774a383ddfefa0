"""Find nuclei and stained regions in tissue: a small U-Net learns from two thirds of one photograph.

    python examples/immunohistochemistry.py                  half a minute on a CPU core
    python examples/immunohistochemistry.py --epochs 1 --steps 2

docs/tutorial-segmentation.md goes through it line by line.
"""

import argparse
import math
from pathlib import Path

import numpy as np
from PIL import Image
from skimage import color, data, filters

import genesis
import genesis.nn.functional as F
from genesis import models, optim

CLASSES = ("background", "nucleus", "stain")
CROP = 128


def photograph():
    """The picture, (3, 512, 512) from 0 to 1, and the class of each pixel."""
    photo = data.immunohistochemistry()
    stains = color.rgb2hed(photo)
    nuclei, brown = stains[..., 0], stains[..., 2]
    labels = np.zeros(photo.shape[:2], dtype=np.int64)
    labels[nuclei > filters.threshold_otsu(nuclei)] = 1
    labels[brown > filters.threshold_otsu(brown)] = 2
    return photo.transpose(2, 0, 1).astype(np.float32) / 255, labels


def random_crops(image, labels, count, generator):
    """Square pieces with their labels, each turned by quarters and perhaps mirrored."""
    crops = []
    for _ in range(count):
        top = generator.integers(image.shape[1] - CROP + 1)
        left = generator.integers(image.shape[2] - CROP + 1)
        window = np.s_[..., top : top + CROP, left : left + CROP]
        piece, classes = image[window], labels[window]
        turns = generator.integers(4)
        piece, classes = np.rot90(piece, turns, axes=(1, 2)), np.rot90(classes, turns)
        if generator.random() < 0.5:
            piece, classes = piece[:, :, ::-1], classes[:, ::-1]
        crops.append((piece, classes))
    pieces, classes = zip(*crops, strict=True)
    return genesis.from_numpy(np.stack(pieces)), genesis.from_numpy(np.stack(classes))


def intersection_over_union(found, labels):
    """Of each class."""
    return [
        ((found == c) & (labels == c)).sum() / max(1, ((found == c) | (labels == c)).sum()) for c in range(len(CLASSES))
    ]


def predict(model, image):
    """The class of each pixel; the image is padded to what the U-Net can halve twice."""
    height, width = image.shape[1:]
    padded = np.pad(image, ((0, 0), (0, -height % 4), (0, -width % 4)), mode="reflect")
    model.eval()
    with genesis.no_grad():
        logits = model(genesis.from_numpy(padded[None]))
    return logits.argmax(1).numpy()[0, :height, :width]


def main(epochs, steps, out):
    genesis.manual_seed(0)
    generator = np.random.default_rng(0)

    image, labels = photograph()
    boundary = image.shape[2] * 2 // 3
    mean, deviation = image[..., :boundary].mean(axis=(1, 2)), image[..., :boundary].std(axis=(1, 2))
    image = (image - mean[:, None, None]) / deviation[:, None, None]
    seen, seen_labels = image[..., :boundary], labels[:, :boundary]
    held_out, held_out_labels = image[..., boundary:], labels[:, boundary:]

    model = models.unet(in_channels=3, num_classes=len(CLASSES), width=8)
    optimizer = optim.AdamW(model.parameters(), lr=0.01)
    schedule = optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=epochs * steps)

    for epoch in range(epochs):
        model.train()
        losses = []
        for _ in range(steps):
            pieces, classes = random_crops(seen, seen_labels, 8, generator)
            loss = F.cross_entropy(model(pieces), classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        found = predict(model, held_out)
        scores = intersection_over_union(found, held_out_labels)
        each = "  ".join(f"{name} {score:.2f}" for name, score in zip(CLASSES, scores, strict=True))
        print(f"epoch {epoch + 1}/{epochs}  loss {math.fsum(losses) / steps:.3f}  held-out IoU: {each}", flush=True)

    colours = np.array([[255, 255, 255], [60, 80, 200], [150, 80, 30]], dtype=np.uint8)
    out.mkdir(parents=True, exist_ok=True)
    side_by_side = np.concatenate([colours[held_out_labels], colours[found]], axis=1)
    Image.fromarray(side_by_side).save(out / "held_out.png")
    genesis.save(model, out / "unet.safetensors")
    print(f"labels and what was found, side by side: {out / 'held_out.png'}")
    return sum(scores) / len(scores)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path("runs/immunohistochemistry"))
    arguments = parser.parse_args()
    main(arguments.epochs, arguments.steps, arguments.out)
