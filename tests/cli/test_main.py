"""The command line as a whole: help, versions, errors, and `genesis info`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import genesis
from genesis import cli
from genesis.backends.cuda import driver
from genesis.cli import info, train
from genesis.errors import OutOfMemoryError
from genesis.settings import override


def test_without_a_command_it_shows_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    for name in cli.COMMANDS:
        assert f"\n    {name} " in captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["segmnt"], "invalid choice: 'segmnt'"),
        (["demo", "--epochs", "0"], "argument --epochs: expected a number above 0, got 0"),
        (["demo", "--width", "99999999999999999999"], "argument --width: expected at most 2147483647, got 9999"),
        (["demo", "--lr", "inf"], "argument --lr: expected at most 1.79"),
        (["demo", "--lr", "fast"], "argument --lr: invalid float value: 'fast'"),
    ],
)
def test_a_slip_on_the_command_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        cli.main(arguments)
    assert message in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"genesis {genesis.__version__}\n"


def test_python_m_genesis_starts_without_torch() -> None:
    code = (
        "import sys; from genesis.cli import main; code = main(['info']); print('torch' in sys.modules); sys.exit(code)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "False"
    run = subprocess.run([sys.executable, "-m", "genesis", "--version"], capture_output=True, text=True, check=True)
    assert run.stdout == f"genesis {genesis.__version__}\n"


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("one\n  two"), "genesis info: one two\n"),
        (ValueError("info: argument 'x': wrong"), "genesis info: argument 'x': wrong\n"),
        (
            ValueError(
                "Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
                "  File \"worker.py\", line 351\nValueError: argument 'image': got a.png: cut\n"
            ),
            "genesis info: argument 'image': got a.png: cut\n",
        ),
        (OSError(), "genesis info: OSError\n"),
        (FileNotFoundError(2, "No such file or directory", "a.png"), "genesis info: a.png: No such file or directory"),
        (ModuleNotFoundError("No", name="skimage"), "genesis info: needs the package 'skimage'; install"),
        (
            ModuleNotFoundError("No", name="triton.language"),
            "genesis info: needs the package 'triton.language'; install",
        ),
    ],
)
def test_an_error_is_one_line(
    error: Exception, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(arguments: object) -> int:
        raise error

    monkeypatch.setattr(info, "run", fail)
    assert cli.main(["info"]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(message)
    assert captured.err.count("\n") == 1
    if isinstance(error, ModuleNotFoundError):
        assert ("[cuda]" in captured.err) == (error.name != "skimage") != ("[demo]" in captured.err)
    with override(debug=1):
        assert cli.main(["info"]) == 2
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_a_fault_of_genesis_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arguments: object) -> int:
        raise AssertionError("an invariant")

    monkeypatch.setattr(info, "run", fail)
    with pytest.raises(AssertionError, match="an invariant"):
        cli.main(["info"])


@pytest.mark.parametrize("error", [
    MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: 9"),
    RuntimeError("Storage size calculation overflowed with sizes=[2, 3, 999999936, 999999936]"),
    RuntimeError("Caught _ArrayMemoryError in DataLoader worker process 0.\nOriginal Traceback"),
    OutOfMemoryError("cuda:0: out of memory: asked for 9 GB"),
])  # fmt: skip
def test_no_memory_is_one_line_that_says_what_to_do(
    error: Exception, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(arguments: object) -> int:
        raise error

    for command in (info, train):
        monkeypatch.setattr(command, "run", fail)
    device = isinstance(error, OutOfMemoryError)
    said = "cuda:0: out of memory: asked for 9 GB" if device else "not enough memory"
    assert cli.main(["info"]) == 2
    assert capsys.readouterr().err == f"genesis info: {said}\n"
    assert cli.main(["train", "coins"]) == 2
    advice = "try a smaller --crop, --batch-size or --width"
    assert capsys.readouterr().err == f"genesis train: {said}; {advice}\n"


def test_bench_without_memory(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "unet", "--batch", "999999999"]) == 2
    assert capsys.readouterr().err.startswith("genesis bench: not enough memory; try a smaller")


def test_a_fault_that_only_sounds_like_memory_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arguments: object) -> int:
        raise RuntimeError("something else")

    monkeypatch.setattr(info, "run", fail)
    with pytest.raises(RuntimeError, match="something else"):
        cli.main(["info"])


def test_names_that_are_no_text_are_printed(tmp_path: Path) -> None:
    code = (
        "import os, sys; from genesis import cli; from genesis.cli import info;"
        "info.run = lambda arguments: print(os.fsdecode(b'caf\\xe9')) or 0; sys.exit(cli.main(['info']))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "caf\\udce9\n", "")


def test_ctrl_c(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(arguments: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(info, "run", interrupt)
    assert cli.main(["info"]) == 130
    assert capsys.readouterr().err == "genesis info: interrupted\n"


# --- info ------------------------------------------------------------------------------------------------------------


def test_info(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans" / "conv").write_bytes(bytes(1_500_000))
    with override(cache_dir=tmp_path, cuda="off"):
        assert cli.main(["info"]) == 0
    rows = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert rows["genesis-dl"] == genesis.__version__
    assert rows["python"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")
    assert rows["cpu"].startswith(info.processor())
    assert rows["cuda"] == "not available: switched off by GENESIS_CUDA=off"
    assert rows["precision"].startswith("highest")
    assert rows["convolution"] == "no CUDA device; genesis tune --device cpu tunes the processor"
    assert rows["cache"] == f"{tmp_path} (1 files, 1.5 MB)"
    assert (rows["GENESIS_CUDA"], rows["GENESIS_CHECK"]) == ("off", "not set")
    assert set(info.PACKAGES) < set(rows)


def test_info_names_the_devices() -> None:
    with override(cuda="simulated"):
        found = info.devices()
    assert found["cuda"] == "simulated (sm_90, 8.6 GB), simulated (sm_90, 8.6 GB)"
    assert found["cuda driver"].startswith("none: on host memory")


def test_info_says_what_is_not_installed_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_drivers", {})
    for choice, module, said in (
        ("auto", "cuda.bindings", "NVIDIA's bindings are"),
        ("simulated", "triton", "Triton is"),
    ):
        with monkeypatch.context() as patch, override(cuda=choice):
            patch.setitem(sys.modules, module, None)
            patch.delitem(sys.modules, "genesis.backends.cuda.driver.cuda_driver", raising=False)
            found = info.devices()
        assert "cuda driver" not in found
        assert found["cuda"].startswith(f"not available: {said} not installed (")
        assert "[cuda]" in found["cuda"]


def test_info_names_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(info, "PACKAGES", ("numpy", "no-such-package"))
    assert info.versions()["no-such-package"] == "not installed"


def test_a_cache_that_is_not_there_yet(tmp_path: Path) -> None:
    assert info.cache(tmp_path / "none") == f"{tmp_path / 'none'} (0 files, 0.0 MB)"


def test_help_names_defaults_that_say_something(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["train", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "Train a segmentation network on a folder of pictures and masks." in shown
    assert "number of epochs (default: 20)" in shown
    assert "(default: --no-grow)" not in shown
    assert "default: None" not in shown
    assert "default: False" not in shown
