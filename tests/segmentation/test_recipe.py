"""What a weights file says of its network: a closed set of bounded values, that no memory is taken for beforehand."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import genesis
from genesis import models
from genesis.errors import CheckpointError
from genesis.segmentation import recipe
from genesis.segmentation.recipe import Recipe
from tests.fuzz_files import with_header
from tests.segmentation.test_training import DISCS, PLAN, QUIET, Plan, unet

UNET = {"in_channels": 3, "num_classes": 2, "width": 2, "depth": 2}
NOTED = Recipe("unet", UNET, ("a", "b"), (0.5,) * 3, (1.0,) * 3).as_dict()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "weights.safetensors"


def write(path: Path, noted: Any = NOTED, log: Any = None, weights: Any = None) -> None:
    weights = models.create("unet", **UNET).state_dict() if weights is None else weights
    genesis.save({"model": weights, "recipe": noted, "growth": log or {"steps": []}}, path)


def changed(**fields: Any) -> dict[str, Any]:
    return {**NOTED, **fields}


def arguments(**fields: Any) -> dict[str, Any]:
    return changed(arguments={**UNET, **fields})


def test_what_is_right_is_loaded(path: Path) -> None:
    write(path)
    assert recipe.load(path)[1] == Recipe("unet", UNET, ("a", "b"), (0.5,) * 3, (1.0,) * 3)
    write(path, {key: value for key, value in changed(mean=None, std=None).items() if key != "resize"})
    assert recipe.load(path, classes=("x", "y"))[1].classes == ("x", "y")


@pytest.mark.parametrize(("noted", "said"), [
    (None, "expected the fields arguments, classes, mean, model, resize, std, got None"),
    ({}, "expected the fields"),
    ([], "expected the fields"),
    (changed(weights="/etc/passwd"), "expected the fields"),
    (arguments(weights="/etc/passwd"), "expected the arguments in_channels, num_classes, width, depth, plain numbers"),
    (changed(arguments={"num_classes": 2, "aux_loss": False, "weights_backbone": "/etc/passwd"}, model="fcn_resnet50"),
     "expected the arguments num_classes, aux_loss"),
    (changed(model="resnet18"), "expected a model among deeplabv3_resnet50, fcn_resnet50, unet, got 'resnet18'"),
    (changed(model=["unet"]), "expected a model among"),
    (changed(arguments=[1]), "expected the arguments"),
    (arguments(width="16"), "expected the arguments"),
    (arguments(width=True), "expected the arguments"),
    (arguments(width=2.0), "expected the arguments"),
    (arguments(width=0), "expected width from 1 to 1048576, got 0"),
    (arguments(width=-(10**30)), "expected width from 1"),
    (arguments(depth=200_000), "expected depth from 1 to 16, got 200000"),
    (arguments(width=100_000), r"its recipe needs 980,[\d,]+ numbers, and its weights are "),
    (arguments(num_classes=500_000), "expected the names of 500000 classes"),
    (arguments(in_channels=1_000_000), "expected a mean per channel"),
    (changed(classes=("a",)), r"expected the names of 2 classes, got \('a',\)"),
    (changed(classes="ab"), "expected the names of 2 classes"),
    (changed(classes=(1, 2)), "expected the names of 2 classes"),
    (changed(mean=(1.0,)), "expected a mean per channel"),
    (changed(mean=(1.0, 2.0, float("nan"))), "expected a mean per channel"),
    (changed(std=(1.0, 2.0, 0.0)), "expected a std per channel"),
    (changed(resize=-1), "expected a resize from 0 to 16384, got -1"),
    (changed(resize=10**9), "expected a resize from 0 to 16384"),
    (arguments(width=3), "does not fit UNet"),
], ids=str)  # fmt: skip
def test_a_recipe_that_is_none_is_refused_in_a_sentence(noted: Any, said: str, path: Path) -> None:
    write(path, noted)
    with pytest.raises(CheckpointError, match=rf"^{re.escape(str(path))}: (.|\n)*{said}"):
        recipe.load(path)


@pytest.mark.parametrize("weights", [
    {"encoder.0.0.0.weight": genesis.zeros(1_000_000, 3, 0, 0), "head.weight": genesis.zeros(2, 2, 1, 1)},
    {"encoder.0.0.0.weight": genesis.zeros(10, 3, 3, 3), "head.weight": genesis.zeros(1_000_000, 0)},
    {"encoder.0.0.0.weight": genesis.tensor(1.0), "head.weight": genesis.zeros(2, 2, 1, 1)},
    {"encoder.0.0.0.weight": genesis.zeros(4), "head.weight": genesis.zeros(2, 2, 1, 1)},
    {"encoder.0.0.0.weight": 3, "head.weight": genesis.zeros(2, 2, 1, 1)},
    {"head.weight": genesis.ones(2), **{f"encoder.{n}.0.0.weight": genesis.zeros(2, 3, 3, 3) for n in range(60)}},
    {"head.weight": genesis.ones(2)},
])  # fmt: skip
def test_sizes_that_the_shapes_of_weights_pretend(weights: Any, path: Path) -> None:
    genesis.save(weights, path)
    with pytest.raises(CheckpointError, match=re.escape(str(path))):
        recipe.load(path, "unet")


def test_a_network_that_grew_is_found_with_small_inputs(path: Path) -> None:
    """Its log has the inputs of the training; loading runs it on no more than shows the same."""
    plan = Plan(**{**vars(PLAN), "epochs": 4, "grow": True})
    training = unet(plan)
    while not training.is_done:
        training.run_epoch(QUIET)
    state = training.state()
    assert len(state["growth"]["steps"]) == 2
    genesis.save(state, path)
    ran: list[tuple[int, ...]] = []
    forward = models.UNet.forward

    def watched(self: Any, input: genesis.Tensor) -> Any:
        ran.append(input.shape)
        return forward(self, input)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models.UNet, "forward", watched)
        model, _ = recipe.load(path)
    assert set(ran) == {(2, 3, 4, 4)}
    for (name, value), (other, its) in zip(
        model.state_dict().items(), training.model.state_dict().items(), strict=True
    ):
        assert name == other
        assert value.tolist() == its.tolist()
    assert model.eval()(genesis.ones(1, 3, 8, 8)).shape == (1, len(DISCS.classes), 8, 8)


def grown(channels: int) -> dict[str, Any]:
    operation = {"operation": "grow_width", "where": "encoder.0.0.0", "channels": channels, "new": "copy", "noise": 0.0}
    return {"steps": [{"operations": [operation], "example": [[[2, 3, 4096, 4096], "float32"]], "deviation": 0.0}]}


_BOUNDED = """
import resource, sys
from pathlib import Path
from genesis.errors import GenesisError
from genesis.segmentation import recipe
recipe.load(Path(sys.argv[1]))
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 200_000_000, resource.RLIM_INFINITY))
for path in sys.argv[2:]:
    try:
        recipe.load(Path(path))
    except GenesisError as error:
        print(type(error).__name__, "no memory" in str(error), str(error).partition("\\n")[0])
"""


def test_no_file_takes_memory_that_it_does_not_hold(tmp_path: Path) -> None:
    """In a process of 200 MB more than it has; one file's log wants 2·10⁵ channels, one's recipe 360 GB."""
    paths = [tmp_path / f"{number}.safetensors" for number in range(5)]
    write(paths[0])
    write(paths[1], arguments(width=100_000))
    write(paths[2], log=grown(200_000))
    write(paths[3], log={"steps": [{**grown(4)["steps"][0], "example": [[[2**14, 2**14, 9], "float32"]]}]})
    write(paths[4], log=grown(3))
    run = subprocess.run([sys.executable, "-c", _BOUNDED, *paths], capture_output=True, text=True)
    lines = [line.split(" ", 2) for line in run.stdout.splitlines()]
    assert [(kind, no_memory) for kind, no_memory, _ in lines] == [("CheckpointError", "False")] * 4, run
    for (_, _, said), path in zip(lines, paths[1:], strict=True):
        assert said.startswith(f"{path}: ")


@pytest.mark.parametrize("part", ["growth", "growth schedule", "model", "optimizer", "step", "history"])
@pytest.mark.parametrize("value", [None, 3, [], {}, [{}], {"steps": [{}]}, "x"], ids=repr)
def test_a_damaged_checkpoint_of_a_training(part: str, value: Any) -> None:
    state = {**unet().state(), part: value}
    if (part, value) in (("step", 3), ("history", []), ("history", {}), ("growth schedule", {})):
        return  # it has none of it
    with pytest.raises(CheckpointError, match=r"^here: "):
        unet().load_state(state, "here")


def test_any_change_of_a_recipe_is_loaded_or_refused(path: Path) -> None:
    """Changes of the fields one by one, by values of all kinds."""
    write(path, log=grown(3))
    whole = path.read_bytes()
    values: list[Any] = [None, True, -1, 0, 10**12, 1e400, "", "x", [], {}, [None], {"a": 1}, [[2**40], "float32"]]
    generator = np.random.default_rng(0)

    def change(header: dict[str, Any]) -> dict[str, Any]:
        tree = json.loads(header["__metadata__"]["genesis.tree"])
        nodes = [(node, key) for node in walk(tree) for key in (node if isinstance(node, dict) else range(len(node)))]
        node, key = nodes[generator.integers(len(nodes))]
        node[key] = values[generator.integers(len(values))]
        return {**header, "__metadata__": {**header["__metadata__"], "genesis.tree": json.dumps(tree)}}

    refused = 0
    for _ in range(150):
        path.write_bytes(with_header(whole, change))
        try:
            recipe.load(path)
        except ValueError as error:
            refused += 1
            if str(path) not in str(error):
                raise
    assert refused > 100


def walk(value: Any) -> Any:
    if isinstance(value, dict | list) and value:
        yield value
        for item in value.values() if isinstance(value, dict) else value:
            yield from walk(item)
