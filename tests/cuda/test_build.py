"""Kernels compiled ahead: the command, the build hook, and a wheel that is loaded without the compiler."""

from __future__ import annotations

import importlib
import tomllib
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder
from hatchling.plugin.manager import PluginManager

import genesis
from genesis.backends.cuda.driver import nvrtc
from genesis.backends.cuda.nvrtc import program
from genesis.cli import main
from genesis.cli.exit_codes import FAILED
from genesis.cuda.build import build
from genesis.settings import override

PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "package"
version = "1.0"

[tool.hatch.build.targets.wheel]
packages = ["src/package"]

[tool.hatch.build.targets.wheel.hooks.custom]
path = "hook.py"

[tool.genesis.kernels]
architectures = ["sm_80", "sm_90"]

[[tool.genesis.kernels.modules]]
name = "package"
sources = ["src/package/scale.cu", "src/package/fill.cu"]
functions = ["scale<float>", "fill"]
options = ["-DVALUE=3"]
"""
SCALE = "template <typename T> __global__ void scale(T* x) { x[0] *= VALUE; }\n"
FILL = '#include "value.cuh"\nextern "C" __global__ void fill(float* x) { x[0] = VALUE; }\n'


@pytest.fixture
def project(tmp_path: Path) -> Path:
    package = tmp_path / "project" / "src" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "scale.cu").write_text(SCALE)
    (package / "fill.cu").write_text(FILL)
    (package / "value.cuh").write_text("#pragma once\n")
    root = tmp_path / "project"
    (root / "pyproject.toml").write_text(PYPROJECT)
    (root / "hook.py").write_text("from genesis.cuda.hatch import KernelBuildHook\n")
    (root / ".gitignore").write_text("*.cubin\n")
    return root


CUBINS = [f"{stem}.package.{arch}.cubin" for stem in ("fill", "scale") for arch in ("sm_80", "sm_90")]


def test_the_command(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", "build", str(project)]) == 0
    package = project / "src" / "package"
    assert sorted(path.name for path in package.glob("*.cubin")) == CUBINS
    assert f"{package / CUBINS[0]} (" in capsys.readouterr().out
    assert main(["kernels", "build", str(project), "--arch", "sm_75"]) == 0
    assert (package / "fill.package.sm_75.cubin").exists()


def test_a_wheel_is_loaded_without_the_compiler(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (wheel,) = WheelBuilder(str(project)).build(directory=str(tmp_path / "dist"), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "site")
    assert sorted(name for name in names if name.endswith(".cubin")) == [f"package/{name}" for name in CUBINS]
    package = tmp_path / "site" / "package"
    monkeypatch.setattr(program, "_compiled", {})
    compiler = nvrtc.compile_cubin
    monkeypatch.setattr(nvrtc, "compile_cubin", None)
    with override(cuda="off", cache_dir=tmp_path / "cache"):  # loading compiles for sm_90 where there is no GPU
        module = genesis.cuda.load(
            "package", [package / "scale.cu", package / "fill.cu"], ["scale<float>", "fill"], ["-DVALUE=3"]
        )
        assert [cubin[:4] for arch in ("sm_80", "sm_89") for cubin in module.cubins(arch)] == [b"\x7fELF"] * 4
        monkeypatch.setattr(nvrtc, "compile_cubin", compiler)
        assert not (tmp_path / "cache").exists()
        module.cubins("sm_75")  # for another architecture, NVRTC
        assert len(list((tmp_path / "cache" / "kernels").iterdir())) == 2


def test_hatchling_knows_the_hook_by_name() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["hatch"] == {"genesis-kernels": "genesis.cuda.hatch"}
    plugins = PluginManager()
    plugins.manager.register(importlib.import_module("genesis.cuda.hatch"))
    assert plugins.build_hook.get("genesis-kernels").__name__ == "KernelBuildHook"


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('architectures = ["sm_80", "sm_90"]', "", "'architectures': expected at least one, such as sm_90, got none"),
        ('"sm_80", "sm_90"', '"compute_80"', "'architectures': expected names such as sm_90, got compute_80"),
        (
            'name = "package"\nsources',
            "sources",
            "takes functions, include_dirs, name, options, sources; missing: name",
        ),
        ("options =", "flags =", "takes functions, include_dirs, name, options, sources; unknown: flags"),
        ("tool.genesis.kernels", "tool.other", r"expected \[\[tool.genesis.kernels.modules\]\] with name and sources"),
    ],
)
def test_what_pyproject_lacks(project: Path, before: str, after: str, message: str) -> None:
    path = project / "pyproject.toml"
    path.write_text(path.read_text().replace(before, after))
    with pytest.raises(ValueError, match=message):
        list(build(project))


def test_a_source_that_does_not_compile(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "src" / "package" / "fill.cu").write_text(FILL.replace("VALUE", "OTHER"))
    assert main(["kernels", "build", str(project)]) == FAILED
    shown = capsys.readouterr().err
    assert 'fill.cu(2): error: identifier "OTHER" is undefined\n' in shown
    assert '\n  extern "C" __global__ void fill(float* x) { x[0] = OTHER; }\n' in shown
    assert main(["kernels", "build", str(project / "src")]) == FAILED
    assert "pyproject.toml" in capsys.readouterr().err


def test_only_files_can_be_built_ahead() -> None:
    module = genesis.cuda.load_inline("inline", 'extern "C" __global__ void f() {}')
    with pytest.raises(ValueError, match="build_ahead: argument 'self': expected a module of load"):
        module.build_ahead("sm_90")
