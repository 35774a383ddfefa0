"""A share of the command that compares Genesis, ONNX Runtime and OpenVINO, and that it finds what differs."""

from __future__ import annotations

from pathlib import Path

import pytest

import genesis
from genesis.export import ops_activation, registry
from tests.export import agreement

NAMES = [*agreement.PARTS, *agreement.WITH_MEMORY, *[f"unet-{edit}" for edit in agreement.EDITS], "resnet18-pruned"]
RUNTIMES = [
    pytest.param(name, marks=pytest.mark.skipif(name not in agreement.RUNTIMES, reason=f"{name} is not installed"))
    for name in ("ONNX Runtime", "OpenVINO")
]


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("name", NAMES)
def test_they_agree(name: str, runtime: str, tmp_path: Path) -> None:
    genesis.manual_seed(0)
    found = agreement.differences(agreement.cases()[name], tmp_path, [runtime])
    assert found[runtime] <= agreement.TOLERANCE


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_wrong_translation_is_found(runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def scaled(e: registry.Translation, x: object) -> object:
        return e.op("Mul", ops_activation.silu(e, x), e.number(1 + 1e-4, x.dtype))  # type: ignore[attr-defined,arg-type]

    monkeypatch.setitem(registry._TABLE, "SiLU", scaled)
    found = agreement.differences(agreement.cases()["SwiGLU"], tmp_path, [runtime])
    assert found[runtime] > agreement.TOLERANCE


class _Masks(genesis.nn.Module):
    def forward(self, x: genesis.Tensor) -> genesis.Tensor:
        chosen = genesis.where(x > 0, x < 1, x > -1)
        return chosen.float() + 2 * chosen.masked_fill(x > 0.5, False).masked_fill(x < -0.5, True).float()


@pytest.mark.skipif("ONNX Runtime" not in agreement.RUNTIMES, reason="ONNX Runtime is not installed")
def test_bools_are_chosen_without_a_where_which_onnx_runtime_lacks(tmp_path: Path) -> None:
    x = genesis.tensor([-2.0, -0.75, -0.25, 0.0, 0.25, 0.75, 2.0])
    genesis.export.onnx(_Masks(), (x,), tmp_path / "masks.onnx", check=True)
