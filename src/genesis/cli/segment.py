"""`genesis segment`: which class each pixel of your pictures belongs to, as masks, overlays and areas."""

from __future__ import annotations

import argparse
import glob
import sys
import time
from pathlib import Path

from genesis.cli.arguments import from_zero, read_names
from genesis.cli.exit_codes import PARTLY_FAILED
from genesis.errors import GenesisError, describe
from genesis.segmentation import pictures, recipe, report
from genesis.segmentation.progress import counter
from genesis.segmentation.segmenter import LARGEST, OVERLAP, PRECISIONS, Segmenter, for_inference

HELP = "find the classes in pictures: a label mask, an overlay and the areas for each"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="picture, folder of pictures, or quoted glob")
    parser.add_argument("--model", choices=sorted(recipe.KINDS), help="needed for weights that name no model")
    parser.add_argument(
        "--weights", type=Path, required=True, help="file of genesis train, genesis demo or torchvision"
    )
    parser.add_argument("--classes", type=Path, help="text file with a name per line")
    parser.add_argument("--out", type=Path, default=Path("runs/segment"), help="folder for the results")
    parser.add_argument("--device", default="cpu", help="where to compute: cpu, cuda, cuda:1")
    parser.add_argument("--precision", choices=tuple(PRECISIONS), default="float32", help="of weights and activations")
    parser.add_argument(
        "--resize", type=from_zero(int), help="shorter side of what the network sees, 0: as it is; default: model's"
    )
    parser.add_argument(
        "--tile", type=from_zero(int), default=LARGEST, help="cut larger pictures into tiles of this size, 0: never"
    )
    parser.add_argument("--overlap", type=from_zero(int), default=OVERLAP, help="of neighbouring tiles")


def run(arguments: argparse.Namespace) -> int:
    paths = find(arguments.images)
    classes = None if arguments.classes is None else read_names("segment", arguments.classes)
    model, how = recipe.load(arguments.weights, arguments.model, classes)
    options = {name: getattr(arguments, name) for name in ("tile", "overlap", "resize")}
    segmenter = for_inference(model, how, arguments.device, arguments.precision, **options)
    failures, num_pixels, start = 0, 0, time.perf_counter()
    with counter("pictures", len(paths)) as progress:
        for path, name in zip(paths, report.names(paths), strict=True):
            try:
                num_pixels += _segment(segmenter, path, name, arguments.out)
            except (GenesisError, OSError, ValueError) as error:
                failures += 1
                print(f"genesis segment: {' '.join(str(error).split())}", file=sys.stderr)
            progress.advance(path.name)
    seconds, done = time.perf_counter() - start, len(paths) - failures
    rate = f"{done / seconds:.2f} pictures/s, {num_pixels / seconds / 1e6:.2f} megapixels/s"
    print(f"{done} of {len(paths)} pictures in {seconds:.1f} s ({rate}); results in {arguments.out}")
    return PARTLY_FAILED if failures else 0


def _segment(segmenter: Segmenter, path: Path, name: str, folder: Path) -> int:
    """Write the results of a picture; how many pixels it had."""
    picture = pictures.read(path)
    if picture.note:
        print(f"genesis segment: {path}: {picture.note}", file=sys.stderr)
    labels = segmenter.labels(picture.image)
    report.write(folder, name, path, picture, labels, segmenter.recipe.classes)
    return labels.size


def find(arguments: list[str]) -> list[Path]:
    """The pictures meant: files as they are named, those in folders, and those that match a pattern; each once.

    Raises: ValueError: a folder or a pattern without pictures.
    """
    found: list[Path] = []
    for argument in arguments:
        path = Path(argument)
        if path.is_dir():
            matches = sorted(file for file in path.iterdir() if file.suffix.lower() in pictures.ENDINGS)
            expected = f"a folder with pictures ({', '.join(pictures.ENDINGS)})"
        elif glob.has_magic(argument) and not path.exists():
            matches = [Path(match) for match in sorted(glob.glob(argument, recursive=True)) if Path(match).is_file()]
            expected = "a pattern that matches files"
        else:
            matches, expected = [path], ""
        if not matches:
            raise ValueError(describe("segment", "IMAGE", expected, argument))
        found += matches
    return list(dict.fromkeys(found))
