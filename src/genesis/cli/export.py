"""`genesis export MODEL OUT`: write a model as an ONNX file."""

from __future__ import annotations

import argparse
from pathlib import Path

import genesis
from genesis.cli.arguments import positive, read_names
from genesis.errors import describe

HELP = "write a model as an ONNX file, for other runtimes"
TAKES_LESS = "--size"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="a name that models.create() knows: unet, resnet50, …")
    parser.add_argument("out", type=Path, help="the file, usually ending in .onnx")
    parser.add_argument("--weights", type=Path, help="file of genesis train, genesis demo, genesis.save or torchvision")
    parser.add_argument("--classes", type=Path, help="text file with a name per line, of a segmentation network")
    parser.add_argument("--size", type=positive(int), nargs="+", default=[224], help="height and width of the example")
    parser.add_argument("--fixed", action="store_true", help="only for this size, one image at a time; else for any")
    parser.add_argument("--opset", type=int, default=18, help="version of ONNX' operators")
    parser.add_argument("--keep-batch-norm", action="store_true", help="don't fold batch norms into convolutions")
    parser.add_argument(
        "--check", action="store_true", help="compare with ONNX Runtime; without it, done where it is installed"
    )


def run(arguments: argparse.Namespace) -> int:
    if len(arguments.size) > 2:
        shown = " ".join(map(str, arguments.size))
        raise ValueError(describe("export", "size", "height and width, or one number for both", shown))
    model, metadata = _model(arguments)
    channels = next((parameter.shape[1] for parameter in model.parameters() if parameter.ndim == 4), 3)
    height, width = (arguments.size * 2)[:2]
    done = genesis.export.onnx(
        model,
        genesis.randn(1, channels, height, width),
        arguments.out,
        None if arguments.fixed else {0: "batch", 2: "height", 3: "width"},
        opset=arguments.opset,
        fold_batch_norm=not arguments.keep_batch_norm,
        metadata=metadata,
        check=True if arguments.check else None,
    )
    print(f"{done.path}: {', '.join(done.inputs)} → {', '.join(done.outputs)}")
    for name, step in done.multiples.items():
        print(f"{name}: multiples of {step}")
    if done.difference is not None:
        print(f"ONNX Runtime agrees: largest difference {done.difference:.1e} of the largest value")
    return 0


def _model(arguments: argparse.Namespace) -> tuple[genesis.nn.Module, dict[str, object]]:
    """The model with its weights, and what the file should say of it."""
    from genesis import models  # takes its time
    from genesis.segmentation import recipe

    if arguments.weights is None or arguments.model not in recipe.KINDS:
        if arguments.classes is not None:
            raise ValueError(
                describe("export", "classes", "nothing without weights of a segmentation network", arguments.classes)
            )
        return models.create(arguments.model, weights=arguments.weights), {"model": arguments.model}
    classes = None if arguments.classes is None else read_names("export", arguments.classes)
    model, how = recipe.load(arguments.weights, arguments.model, classes)
    said: dict[str, object] = {"model": how.model, "classes": list(how.classes), "resize": how.resize}
    normalization = {"mean": how.mean, "std": how.std}
    return model, said | {name: list(value) for name, value in normalization.items() if value is not None}
