"""Every file of examples/kernels compiles for sm_80 and sm_90 without a GPU, and on one computes what it should."""

from __future__ import annotations

import importlib
import runpy
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from skimage import data

import genesis
from genesis.errors import DeviceError
from genesis.settings import override
from tests.docs.examples import run_markdown

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "kernels"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))


def load(name: str) -> ModuleType:
    return importlib.import_module(f"examples.kernels.{name}")


def test_all_six_are_there() -> None:
    assert NAMES == ["conv2d_naive", "conv2d_tiled", "conv_bn_relu", "sharpen", "softmax", "vector_add"]
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert all(f"[{name}.py]({name}.py)" in page for name in NAMES)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("name", NAMES)
def test_it_compiles(name: str, arch: str) -> None:
    (cubin,) = load(name).module.cubins(arch)
    assert cubin[:4] == b"\x7fELF"


@pytest.mark.parametrize("page", ["kernels.md"])
def test_the_kernels_of_a_page_compile(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    modules: list[genesis.cuda.Module] = []
    original = genesis.cuda.load_inline

    def recorded(*args: Any, **options: Any) -> genesis.cuda.Module:
        modules.append(original(*args, **options))
        return modules[-1]

    monkeypatch.setattr(genesis.cuda, "load_inline", recorded)
    assert run_markdown(FOLDER.parents[1] / "docs" / page) == ""
    assert [module.name for module in modules] == ["adding", "squares"]
    cubins = [cubin for module in modules for arch in ("sm_80", "sm_90") for cubin in module.cubins(arch)]
    assert [cubin[:4] for cubin in cubins] == [b"\x7fELF"] * 4


@pytest.mark.parametrize("name", NAMES)
def test_without_a_gpu_it_says_so(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with override(cuda="off"):
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    assert capsys.readouterr().out.startswith(f"{name}: compiled, but there is no NVIDIA GPU to run it on")


@pytest.mark.parametrize("name", NAMES)
def test_on_the_simulated_device_it_says_so_too(name: str) -> None:
    with override(cuda="simulated"), pytest.raises(DeviceError, match=r"CUDA C\+\+ needs a GPU; the simulated device"):
        load(name).check()


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_it_matches_pytorch(name: str) -> None:
    load(name).check()


def test_the_sharpened_photograph(tmp_path: Path) -> None:
    """The picture, and that the reference sharpens: edges get steeper, the mean stays."""
    path = tmp_path / "picture.png"
    load("sharpen").write_picture("cpu", str(path))
    picture = np.asarray(Image.open(path)).astype(float)
    width = data.astronaut().shape[1]
    before, after = picture[:, :width], picture[:, width:]
    assert (before == data.astronaut()).all()
    assert np.abs(np.diff(after, axis=1)).mean() > 1.3 * np.abs(np.diff(before, axis=1)).mean()
    assert abs(after.mean() - before.mean()) < 1


@pytest.mark.parametrize("stride", [1, 2])
def test_the_reference_of_conv_bn_relu(stride: int) -> None:
    """What the kernels' gradient is: that of PyTorch's three ops."""
    given = [torch.randn(2, 3, 6, 5), torch.randn(4, 3, 3, 3), torch.rand(4) + 0.5, torch.randn(4)]
    theirs = [tensor.double().requires_grad_() for tensor in given]
    z = torch.nn.functional.conv2d(*theirs[:2], stride=stride, padding=1)
    expected = torch.nn.functional.batch_norm(z, None, None, *theirs[2:], training=True).relu()
    expected.square().sum().backward()
    ours = [genesis.from_torch(tensor.detach()).requires_grad_() for tensor in theirs]
    y = load("conv_bn_relu").conv_bn_relu(*ours, stride, 1)
    y.square().sum().backward()
    for found, wanted in zip([y, *[x.grad for x in ours]], [expected, *[x.grad for x in theirs]], strict=True):
        torch.testing.assert_close(found.to_torch(), wanted.detach(), rtol=1e-9, atol=1e-9)
