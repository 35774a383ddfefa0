"""`genesis segment`: masks, overlays and areas of the classes in pictures."""

from __future__ import annotations

import argparse
import glob
import os
import sys
import time
from pathlib import Path

from genesis.cli.arguments import add_max_megapixels, from_zero, read_names
from genesis.cli.exit_codes import INTERRUPTED, PARTLY_FAILED
from genesis.errors import GenesisError, describe, is_out_of_memory
from genesis.segmentation import onnx_file, outputs, pictures, recipe, report, seals
from genesis.segmentation.progress import counter
from genesis.segmentation.segmenter import LARGEST, OVERLAP, PRECISIONS, Segmenter, for_inference

HELP = "find the classes in pictures: a label mask, an overlay and the areas for each"
TAKES_LESS = "--tile or --resize"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="picture, folder of pictures, or quoted glob")
    kinds = ", ".join(sorted(recipe.KINDS))
    model = f"{kinds}: required if the weights don't name one; or an ONNX file of genesis export, instead of weights"
    parser.add_argument("--model", type=_model_name, metavar="MODEL", help=model)
    parser.add_argument("--weights", type=Path, help="file of genesis train, genesis demo or torchvision")
    parser.add_argument("--classes", type=Path, help="text file with a name per line")
    parser.add_argument("--out", type=Path, default=Path("runs/segment"), help="folder for the results")
    overwrite = "also replace files that are not results of the same pictures; input files are never replaced"
    parser.add_argument("--overwrite", action="store_true", help=overwrite)
    parser.add_argument("--device", default="cpu", help="where to compute: cpu, cuda, cuda:1")
    parser.add_argument("--precision", choices=tuple(PRECISIONS), default="float32", help="of weights and activations")
    parser.add_argument(
        "--resize", type=from_zero(int), help="shorter side of the network's input, 0: keep the size; default: model's"
    )
    parser.add_argument(
        "--tile", type=from_zero(int), default=LARGEST, help="cut larger pictures into tiles of this size, 0: never"
    )
    add_max_megapixels(parser)
    parser.add_argument("--overlap", type=from_zero(int), default=OVERLAP, help="pixels shared by neighbouring tiles")


def run(arguments: argparse.Namespace) -> int:
    paths = find(arguments.images)
    file = Path(arguments.model) if is_onnx_file(arguments.model) else None
    read = [path for path in (arguments.weights, arguments.classes, file) if path is not None]
    planned = outputs.plan(paths, arguments.out, arguments.overwrite, also_read=read)
    segmenter = _segmenter(arguments, file)
    done, num_pixels, start = 0, 0, time.perf_counter()
    is_interrupted = False
    try:
        with counter("pictures", len(paths)) as progress:
            for path, places in zip(paths, planned, strict=True):
                try:
                    num_pixels += _segment(segmenter, path, places, arguments.max_megapixels)
                    done += 1
                except Exception as error:
                    if not (isinstance(error, GenesisError | OSError | ValueError) or is_out_of_memory(error)):
                        raise
                    _say(path, _reason(error))
                progress.advance(path.name)
    except KeyboardInterrupt:  # wherever it comes, between two pictures too
        is_interrupted = True
    seconds = time.perf_counter() - start
    rate = f"{done / seconds:.2f} pictures/s, {num_pixels / seconds / 1e6:.2f} megapixels/s"
    said = f"{done} of {len(paths)} pictures in {seconds:.1f} s ({rate}); results in {arguments.out}"
    print(f"interrupted after {said}" if is_interrupted else said)
    if is_interrupted:
        return INTERRUPTED
    return PARTLY_FAILED if done < len(paths) else 0


def _segmenter(arguments: argparse.Namespace, file: Path | None) -> Segmenter:
    classes = None if arguments.classes is None else read_names("segment", arguments.classes)
    options = {name: getattr(arguments, name) for name in ("tile", "overlap", "resize")}
    if file is None:
        if arguments.weights is None:
            raise ValueError(describe("segment", "weights", "a file, or an ONNX file as --model", "none"))
        model, how = recipe.load(arguments.weights, arguments.model, classes)
        return for_inference(model, how, arguments.device, arguments.precision, **options)
    if arguments.weights is not None:
        raise ValueError(describe("segment", "weights", f"nothing, as {file} has its own", arguments.weights))
    if arguments.precision != "float32":
        raise ValueError(describe("segment", "precision", "float32, which ONNX files are in", arguments.precision))
    model, how = onnx_file.load(file, classes, arguments.device)
    return Segmenter(model, how, **options)


def is_onnx_file(model: str | None) -> bool:
    return model is not None and model.lower().endswith(".onnx")


def _model_name(text: str) -> str:
    if text not in recipe.KINDS and not is_onnx_file(text):
        expected = f"one of {', '.join(sorted(recipe.KINDS))}, or a file that ends in .onnx"
        raise argparse.ArgumentTypeError(f"expected {expected}, got {text}")
    return text


def _segment(segmenter: Segmenter, path: Path, places: outputs.Outputs, most_megapixels: float) -> int:
    """Write the results of a picture; return its number of pixels."""
    picture = pictures.read(path, most_megapixels=most_megapixels)
    labels = segmenter.labels(picture)
    note = "; ".join(part for part in (picture.note, segmenter.note(picture)) if part)
    report.write(places, path, picture, labels, segmenter.recipe.classes, note)
    if note:
        _say(path, note)
    return labels.size


def _say(path: Path, text: str) -> None:
    text = " ".join(text.split())
    print(f"genesis segment: {text}" if str(path) in text else f"genesis segment: {path}: {text}", file=sys.stderr)


def _reason(error: BaseException) -> str:
    """The reason why a picture failed, without the frames that hold its memory."""
    if is_out_of_memory(error):
        return f"not enough memory for it; try a smaller {TAKES_LESS}"
    return str(error) or type(error).__name__


def find(arguments: list[str]) -> list[Path]:
    """Collect the pictures: named files, those in folders, and those that match a pattern; each once.

    Results of earlier runs are skipped unless named.

    Raises: ValueError: a folder or a pattern without pictures.
    """
    found: list[Path] = []
    for argument in arguments:
        path = Path(argument)
        if path.is_dir():
            matches = sorted(file for file in path.iterdir() if file.suffix.lower() in pictures.ENDINGS)
            matches, expected = _no_results(matches), f"a folder with pictures ({', '.join(pictures.ENDINGS)})"
        elif glob.has_magic(argument) and not path.exists():
            matches = [Path(match) for match in sorted(glob.glob(argument, recursive=True)) if Path(match).is_file()]
            matches, expected = _no_results(matches), "a pattern that matches files"
        else:
            matches, expected = [path], ""
        if not matches:
            raise ValueError(describe("segment", "IMAGE", expected, argument))
        found += matches
    once: dict[str, Path] = {}
    for path in found:
        once.setdefault(os.path.abspath(path), path)
    return list(once.values())


def _no_results(paths: list[Path]) -> list[Path]:
    return [path for path in paths if not seals.is_result(path)]
