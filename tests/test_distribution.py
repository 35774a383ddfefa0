"""What users install: the wheel and the sdist, in an environment of their own, and packages of the same name."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import warnings
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement
from packaging.version import Version

import genesis
from genesis.distribution import NAME, install_command, warn_of_others

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

PROGRAM = """
import pathlib, sys, warnings
warnings.simplefilter("error")
import genesis, genesis.torch
from genesis import models, optim
import genesis.nn.functional as F

assert pathlib.Path(genesis.__file__).is_relative_to(sys.prefix), genesis.__file__
model = models.create("unet", in_channels=1, num_classes=1, width=4, depth=1)
optimizer = optim.SGD(model.parameters(), lr=0.1)
F.mse_loss(model(genesis.ones(1, 1, 8, 8)), genesis.zeros(1, 1, 8, 8)).backward()
optimizer.step()
"""


def built(root: Path, folder: Path) -> Path:
    (wheel,) = WheelBuilder(str(root)).build(directory=str(folder), versions=["standard"])
    return Path(wheel)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the sdist, which is built from the repository: both are complete, or this fails."""
    folder = tmp_path_factory.mktemp("dist")
    (sdist,) = SdistBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (source,) = (folder / "unpacked").iterdir()
    return built(source, folder)


def test_the_name(wheel: Path) -> None:
    assert PROJECT["name"] == NAME == "genesis-dl"
    assert wheel.name == f"genesis_dl-{genesis.__version__}-py3-none-any.whl"
    assert install_command("demo") == "pip install 'genesis-dl[demo]'"


def test_the_wheel_has_every_file(wheel: Path) -> None:
    source = ROOT / "src"
    files = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("genesis/")}
    assert packed == {name for name in files if "__pycache__" not in name and not name.endswith((".so", ".cubin"))}


def test_the_wheel_works_without_the_repository(wheel: Path, tmp_path: Path) -> None:
    """In a new environment. Its dependencies are this one's, by a path on which no editable install counts."""
    folder = tmp_path / "environment"
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, str(wheel)], check=True, capture_output=True, timeout=300)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GENESIS_", "PYTHON"))}
    environment |= {"PYTHONPATH": sysconfig.get_path("purelib"), "GENESIS_CACHE_DIR": str(tmp_path / "cache")}
    for command in ([str(python), "-c", PROGRAM], [str(folder / "bin" / "genesis"), "info"]):
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    assert f"genesis-dl {genesis.__version__}" in " ".join(done.stdout.split())


def test_the_newest_torch_that_is_accepted_is_the_one_tested() -> None:
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    tested = Version(next(line for line in constraints if line.startswith("torch==")).split("==")[1])
    accepted = next(Requirement(line) for line in PROJECT["dependencies"] if line.startswith("torch"))
    assert accepted.specifier.contains(tested)
    assert not accepted.specifier.contains(Version(f"{tested.major}.{tested.minor + 1}"))


def site(folder: Path, name: str, files: list[str]) -> Path:
    """An environment's folder of packages in which a distribution has unpacked these files."""
    for file in files:
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    return folder


OURS = ["genesis/__init__.py", "genesis/tensor.py", "genesis/backends/contract.py"]


def test_alone_nothing_is_said(tmp_path: Path) -> None:
    ours = site(tmp_path / "ours", NAME, OURS)
    site(tmp_path / "clone", NAME, OURS)
    (ours / "genesis" / "__pycache__").mkdir()
    (tmp_path / "empty" / "genesis").mkdir(parents=True)  # a folder of that name, without code
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        search_path = ["", *(str(tmp_path / name) for name in ("ours", "clone", "empty", "missing"))]
        warn_of_others(ours / "genesis", search_path)


@pytest.mark.parametrize("name", ["genesis", "genesis-world", "telephony"])
def test_another_distribution_that_is_hidden(tmp_path: Path, name: str) -> None:
    ours = site(tmp_path / "ours", NAME, OURS)
    theirs = site(tmp_path / "theirs", name, ["genesis/__init__.py", "genesis/protocol.py"])
    message = (
        rf"^{name} 1.0, which also provides a package named 'genesis', is installed in .*theirs and hidden by "
        r"genesis-dl in .*ours/genesis; install the two into separate environments$"
    )
    with pytest.warns(RuntimeWarning, match=message):
        warn_of_others(ours / "genesis", [str(ours), str(theirs)])


def test_another_distribution_in_the_same_folder(tmp_path: Path) -> None:
    ours = site(tmp_path / "ours", NAME, OURS)
    site(ours, "genesis-world", ["genesis/__init__.py", "genesis/engine/scene.py"])
    message = (
        r"^genesis-world 1.0, which also provides a package named 'genesis', overwrote parts of genesis-dl in .*; "
        r"uninstall it, then reinstall genesis-dl$"
    )
    with pytest.warns(RuntimeWarning, match=message):
        warn_of_others(ours / "genesis", [str(ours)])


def test_the_import_looks(tmp_path: Path) -> None:
    theirs = site(tmp_path / "theirs", "genesis-world", ["genesis/__init__.py"])
    path = os.pathsep.join([str(ROOT / "src"), str(theirs)])
    command = [sys.executable, "-W", "error", "-c", "import genesis"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "RuntimeWarning: genesis-world 1.0, which also provides a package named 'genesis'" in done.stderr
