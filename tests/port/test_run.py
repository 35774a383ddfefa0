"""genesis run: scripts and modules run as under python, with their processes, tracebacks and exit codes."""

from __future__ import annotations

import multiprocessing.spawn
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from genesis import cli
from genesis.port import run_module, run_script


@pytest.fixture
def own_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a run changes of its process is undone."""
    for name in ("path", "argv", "meta_path"):
        monkeypatch.setattr(sys, name, list(getattr(sys, name)))
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setattr(multiprocessing.spawn, "get_preparation_data", multiprocessing.spawn.get_preparation_data)
    main = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = main
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


SCRIPT = """
import sys
import torch
from beside import double
if __name__ == "__main__":
    print(torch.nn.Linear.__module__, sys.argv[1:], double(torch.ones(1)).item())
    if "fail" in sys.argv:
        raise ValueError("from the script")
    if "leave" in sys.argv:
        sys.exit(7)
"""


@pytest.mark.parametrize(
    ("arguments", "code", "shown"),
    [
        (["--epochs", "3"], 0, "['--epochs', '3'] 2.0"),
        (["-h", "--also", "unheard_of"], 0, "['-h'] 2.0"),
        (["--", "--also", "x"], 0, "['--also', 'x'] 2.0"),
        (["fail"], 1, "['fail'] 2.0"),
        (["leave"], 7, "['leave'] 2.0"),
    ],
)
@pytest.mark.usefixtures("own_process")
def test_a_script_runs(
    arguments: list[str], code: int, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "beside.py").write_text(
        "import torch\ndef double(x: torch.Tensor):\n    return 2 * x\n", encoding="utf-8"
    )
    try:
        returned: object = cli.main(["run", str(path), *arguments])
    except SystemExit as error:
        returned = error.code
    captured = capsys.readouterr()
    assert captured.out == f"genesis.nn.modules.linear {shown}\n", captured.err
    assert returned == code
    if code == 1:
        assert captured.err.splitlines()[1].strip().startswith(f'File "{path}", line 8')
        assert captured.err.endswith("ValueError: from the script\n")


def test_a_script_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.py"):
        run_script(tmp_path / "none.py")
    (tmp_path / "some.py").touch()
    with pytest.raises(ValueError, match="run: argument 'also': expected packages that are not imported yet, got"):
        run_script(tmp_path / "some.py", also=["pytest"])


# --- genesis run -m ---------------------------------------------------------------------------------------------------

NET = """
import torch
class Net(torch.nn.Linear):
    pass
"""
TRAIN = """
import pickle, sys
import torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset
from .net import Net

class Data(Dataset):
    def __len__(self):
        return 2
    def __getitem__(self, index):
        return torch.full((2,), index * 1.0), Net.__base__.__module__, __name__

def child(rank, queue, shared):
    import torch
    shared += rank + 1
    queue.put((rank, Net(2, 2)(torch.ones(1, 2)).shape, type(torch.ones(1)).__module__))

if __name__ == "__main__":
    print(__package__, __spec__.name, sys.argv[1:], pickle.loads(pickle.dumps(Net(2, 2)))(torch.ones(1, 2)).shape)
    for method in ("fork", "spawn"):
        loader = DataLoader(Data(), batch_size=2, num_workers=1, multiprocessing_context=method)
        for x, bases, names in loader:
            print(x.sum().item(), type(x).__module__, bases[0], names[0])
    queue = mp.get_context("spawn").SimpleQueue()
    shared = torch.zeros(2).share_memory_()
    mp.spawn(child, (queue, shared), nprocs=1)
    print(*queue.get(), shared.tolist())
    sys.exit("leaving")
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "their_package"
    folder.mkdir()
    for name, text in (("__init__", ""), ("net", NET), ("train", TRAIN), ("broken", "import torch\ndef (:\n")):
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return folder


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "genesis", "run", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_module_runs_with_its_processes(package: Path) -> None:
    done = run("-m", "their_package.train", "-m", "--epochs", "3")
    assert done.stdout.splitlines() == [
        "their_package their_package.train ['-m', '--epochs', '3'] (1, 2)",
        "2.0 genesis.tensor genesis.nn.modules.linear __main__",
        "2.0 genesis.tensor genesis.nn.modules.linear __mp_main__",
        "0 (1, 2) genesis.tensor [1.0, 1.0]",
    ], done.stderr
    assert done.stderr.endswith("leaving\n")
    assert done.returncode == 1


@pytest.mark.usefixtures("own_process")
@pytest.mark.filterwarnings("ignore::ImportWarning")  # Python's own
def test_a_relative_import_in_a_script_says_how(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", str(package / "train.py")]) == 1
    said = capsys.readouterr().err
    assert said.splitlines()[1].strip() == f'File "{package / "train.py"}", line 6, in <module>'
    assert said.endswith(
        "ImportError: attempted relative import with no known parent package\n"
        "A module of a package runs by its name: genesis run -m PACKAGE.MODULE\n"
    )


@pytest.mark.usefixtures("own_process")
def test_the_scripts_own_hook_gets_its_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "hooked.py"
    path.write_text(
        "import sys\ndef hook(kind, error, trace):\n    print(kind.__name__, error, trace.tb_lineno)\n"
        "sys.excepthook = hook\nraise KeyError(3)\n",
        encoding="utf-8",
    )
    assert cli.main(["run", str(path)]) == 1
    assert capsys.readouterr() == ("KeyError 3 5\n", "")


@pytest.mark.usefixtures("own_process")
def test_a_script_that_is_no_python(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", str(package / "broken.py")]) == 1
    assert capsys.readouterr().err.splitlines()[0].strip() == f'File "{package / "broken.py"}", line 2'


@pytest.mark.parametrize(
    ("module", "error", "message"),
    [
        ("torch.hub", ValueError, "run: argument '-m': expected packages that use torch, got 'torch'"),
        ("pytest", ValueError, "run: argument '-m': expected packages that are not imported yet, got 'pytest'"),
        (".train", ValueError, "run: argument '-m': expected packages that use torch, got ''"),
        ("no_such_package.x", ImportError, r"run: argument '-m': expected a module .*, got 'no_such_package\.x'"),
        ("their_package", ImportError, r"a package with __main__\.py, got 'their_package'"),
        ("their_package.none", ImportError, r"a package with __main__\.py, got 'their_package\.none'"),
    ],
)
@pytest.mark.usefixtures("package", "own_process")
def test_modules_that_cannot_run(module: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        run_module(module)


def test_something_must_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run"]) == 2
    assert capsys.readouterr().err.endswith("genesis run: expected a script, or -m and a module\n")


@pytest.mark.usefixtures("own_process")
def test_packages_that_run_whole_use_genesis_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torchvision", "other_vision"):
        (tmp_path / "site-packages" / name).mkdir(parents=True)
        source = "import torch\nlayer = torch.nn.Linear(2, 2)\n"
        (tmp_path / "site-packages" / name / "__init__.py").write_text(source, encoding="utf-8")
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    path = tmp_path / "script.py"
    path.write_text("import torchvision, other_vision\n", encoding="utf-8")
    run_script(path)
    found = vars(sys.modules["__main__"])
    assert type(found["torchvision"].layer).__module__.startswith("genesis.")
    assert type(found["other_vision"].layer).__module__.startswith("torch.")
