"""Export random networks, compare with ONNX Runtime: `python -m tests.export.fuzz [FIRST [COUNT]]`.

Some grow, are pruned or fused before. ONNX Runtime must agree to 1e-5 of the largest value on the example and, where
sizes vary, on two others, and on one that the export has not seen; so must what genesis.load_onnx() makes of the file.
An export of varying sizes may be refused; the same network of one size may not. A failure
prints the command that repeats it.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import genesis
from genesis import export, growth, nn
from genesis.errors import GrowthError
from genesis.export import checking
from genesis.tensor import Tensor
from tests.export.fuzz_models import Drawn, draw

TOLERANCE = 1e-5  # relative, of float32


class Outcome(NamedTuple):
    failure: str  # "" if there is none
    refused: str  # why the export of varying sizes was refused
    difference: float
    edits: tuple[str, ...]


def main() -> int:
    first, count = (int(x) for x in (*sys.argv[1:], *("0", "200")[len(sys.argv) - 1 :]))
    bad, refused, worst = 0, 0, 0.0
    edits = collections.Counter[str]()
    logging.getLogger("genesis").setLevel(logging.CRITICAL)  # growth says what it cannot edit
    for seed in range(first, first + count):
        found = case(seed)
        worst = max(worst, found.difference)
        edits.update(found.edits)
        if found.refused:
            refused += 1
            print(f"refused of varying sizes: {seed}: {found.refused}", flush=True)
        if found.failure:
            bad += 1
            print(f"python -m tests.export.fuzz {seed} 1  # {found.failure}", flush=True)
    print(f"{count} networks: {bad} failed; the largest difference {worst:.1e}; refused of varying sizes: {refused}")
    print(", ".join(f"{name}: {number}" for name, number in edits.items()))
    return bad != 0


def case(seed: int) -> Outcome:
    rng = random.Random(seed)
    drawn = draw(rng)
    model = drawn.model.eval()
    edits = tuple(name for name in EDITS if rng.random() < 0.3 and EDITS[name](drawn, rng))
    options = {"opset": rng.choice((18, 18, 20, 22)), "fold_batch_norm": rng.random() < 0.7}
    with tempfile.TemporaryDirectory() as folder:
        path, refused = Path(folder) / "model.onnx", ""
        try:
            try:
                done = export.onnx(model, drawn.example, path, drawn.dynamic or None, check=True, **options)
            except export.NotExportableError as error:
                if not drawn.dynamic:
                    raise
                refused = " ".join(str(error).split())
                done = export.onnx(model, drawn.example, path, check=True, **options)
            worst = max(done.difference or 0.0, *_differences(drawn, done, is_fixed=bool(refused)))
        except Exception as error:
            names = [getattr(part, "name", type(part).__name__) for part in model.children()]
            return Outcome(f"{names} {edits} {type(error).__name__}: {error}", refused, 0.0, edits)
    assert done.difference is not None
    return Outcome("" if worst <= TOLERANCE else f"differs by {worst:.2g}", refused, worst, edits)


def _differences(drawn: Drawn, done: export.Exported, is_fixed: bool) -> tuple[float, float]:
    """How far the file is from the network, in ONNX Runtime and in Genesis, on sizes that the export has not seen."""
    x = drawn.example if is_fixed else _of_other_sizes(drawn, done.multiples)
    with genesis.no_grad():
        expected, loaded = drawn.model(x).numpy(), genesis.load_onnx(done.path)(x)
    assert isinstance(loaded, Tensor)
    (found,) = checking.run(done.path, {done.inputs[0]: x})
    if found.shape != expected.shape or loaded.shape != expected.shape:
        raise ValueError(f"shapes {found.shape} and {loaded.shape} for {expected.shape} of {x.shape}")
    return tuple(checking.relative_difference(each, expected) for each in (found, loaded.numpy()))  # type: ignore[return-value]


def _of_other_sizes(drawn: Drawn, multiples: dict[str, int]) -> Tensor:
    steps = {"batch": 1, "height": 9, "width": 6, "length": 4}
    shape = [
        size + steps[drawn.dynamic[dim]] * multiples.get(drawn.dynamic[dim], 1) if dim in drawn.dynamic else size
        for dim, size in enumerate(drawn.example.shape)
    ]
    return genesis.randn(*shape) if drawn.example.dtype.is_floating_point else genesis.randint(0, 11, tuple(shape))


# --- what happens to a network before ---------------------------------------------------------------------------------


def _resized(edit: Callable[..., object], drawn: Drawn, rng: random.Random, factor: float) -> bool:
    """Whether the channels of some layer could be edited; growth leaves a network that it does not understand alone."""
    names = [name for name, module in drawn.model.named_modules() if type(module) in (nn.Conv2d, nn.Linear)]
    for name in rng.sample(names, len(names)):
        with contextlib.suppress(GrowthError):
            edit(drawn.model, name, factor=factor, example=drawn.example)
            return True
    return False


def _fuse(drawn: Drawn, rng: random.Random) -> bool:
    genesis.fuse(drawn.model, drawn.example)
    return True


EDITS: dict[str, Callable[[Drawn, random.Random], bool]] = {
    "grow": lambda drawn, rng: _resized(growth.grow_width, drawn, rng, 1.5),
    "prune": lambda drawn, rng: _resized(growth.prune_width, drawn, rng, 0.6),
    "fuse": _fuse,
}


if __name__ == "__main__":
    sys.exit(main())
