"""`genesis bench`."""

from __future__ import annotations

import re

import pytest
import torch

import genesis
from genesis import cli
from genesis.cli import bench
from genesis.settings import override

QUICK = ["--batch", "2", "--size", "16", "--rounds", "2", "--seconds", "60"]


def rows(text: str) -> dict[str, tuple[float, float, float, int]]:
    """(median, fastest, images per second, calls) by kind of run."""
    found = re.findall(r"^(\S.*?) +([\d.]+) ms +([\d.]+) ms +([\d.,]+) +(\d+)$", text, re.MULTILINE)
    return {kind: (float(a), float(b), float(rate.replace(",", "")), int(n)) for kind, a, b, rate, n in found}


def test_every_kind_of_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "unet", *QUICK]) == 0
    text = capsys.readouterr().out
    assert text.startswith("unet on (2, 1, 16, 16) float32, ")
    measured = rows(text)
    assert list(measured) == ["inference", "inference, compiled", "training step"]
    for median, fastest, rate, calls in measured.values():
        assert 0 < fastest <= median
        assert rate == pytest.approx(2e3 / median, rel=0.01, abs=0.06)
        assert calls == 2


def test_a_model_with_several_outputs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "fcn_resnet50", "--size", "16", "24", "--rounds", "1", "--only", "training"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("fcn_resnet50 on (1, 3, 16, 24) float32, ")
    assert list(rows(text)) == ["training step"]


def test_on_cuda(capsys: pytest.CaptureFixture[str]) -> None:
    with override(cuda="simulated"):
        assert (
            cli.main(
                [
                    "bench",
                    "unet",
                    "--size",
                    "16",
                    "--rounds",
                    "1",
                    "--device",
                    "cuda",
                    "--only",
                    "inference",
                    "compiled",
                ]
            )
            == 0
        )
        assert list(rows(capsys.readouterr().out)) == ["inference"]
        assert cli.main(["bench", "unet", "--device", "cuda", "--only", "compiled"]) == 2
    assert "bench: argument 'only': expected a kind that exists on CUDA, got compiled" in capsys.readouterr().err


def test_what_finds_no_room_is_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def infer(model: object, images: object) -> bench.Run:
        def run() -> object:
            return torch.empty(2**60, dtype=torch.uint8)

        return run

    monkeypatch.setitem(bench._KINDS, "inference", infer)
    assert cli.main(["bench", "unet", *QUICK, "--only", "inference"]) == 2
    said = capsys.readouterr().err
    assert said == "genesis bench: not enough memory; try a smaller --batch or --size\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["unett"], "models.create: argument 'name': expected one of {}, got 'unett'; did you mean unet?"),
        (["nope"], "models.create: argument 'name': expected one of {}, got 'nope'\n"),
        (["unet", "--size", "1", "2", "3"], "'size': expected height and width, or one number for both, got 1 2 3"),
        (
            ["unet", "--batch", "2147483647", "--size", "99999"],
            "'batch': expected images that fit into memory, got 2",
        ),
        (["unet", "--batch", "99999999", "--size", "9996"], "not enough memory"),
        (["unet", "--channels", "3"], "expected 1 channels"),
        (["unet", "--device", "gpu"], "'gpu'"),
    ],
)
def test_a_slip(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", *arguments]) == 2
    said = capsys.readouterr().err
    assert message.format(", ".join(genesis.models.names())) in said
    assert said.count("\n") == 1
