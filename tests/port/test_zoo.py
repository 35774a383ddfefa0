"""Model files on Genesis by redirected imports alone: small ones of our own, and a share of the packages' if installed.

`python -m tests.port` tries all of the packages'.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.port import comparing, zoo

FILES = Path(__file__).parent / "files"
OWN = {  # file and class: the size of the input
    ("residual_net", "ResidualNet"): (2, 3, 32, 32),
    ("attention_net", "AttentionNet"): (2, 3, 32, 32),
    ("encoder_net", "EncoderNet"): (2, 16),
    ("decoder_net", "DecoderNet"): (2, 10),
    ("diffusion_net", "DiffusionNet"): (2, 3, 17, 16),
}
SHARE = ("torchvision/shufflenetv2", "timm/convnext", "timm/vision_transformer", "timm/resnet")


@pytest.fixture
def on_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(FILES)
    yield
    for module, _ in OWN:
        sys.modules.pop(module, None)


@pytest.mark.parametrize(("module", "name"), OWN)
def test_a_model_file_runs_whole(module: str, name: str, on_path: None) -> None:
    sides = comparing.Sides(module)
    comparing.compare(sides, lambda: getattr(importlib.import_module(module), name)(), OWN[module, name])


@pytest.mark.parametrize("file", SHARE)
@pytest.mark.filterwarnings("ignore")
def test_a_file_of_a_package_runs_whole(file: str) -> None:
    network = next(each for each in zoo.NETWORKS if each.file == file)
    if not network.is_installed:
        pytest.skip(f"{network.module.partition('.')[0]} is not installed")
    comparing.prepare_torchvision()
    comparing.compare(comparing.Sides(*comparing.PACKAGES), network.build, network.size)


def test_a_difference_is_found(on_path: None) -> None:
    seen = []

    def build() -> object:
        net = importlib.import_module("residual_net").ResidualNet()
        seen.append(net)
        if len(seen) == 2:
            net.features.stage0[0].norm1.eps = 0.5
        return net

    with pytest.raises(AssertionError, match="output 0: differs by"):
        comparing.compare(comparing.Sides("residual_net"), build, (2, 3, 32, 32))
