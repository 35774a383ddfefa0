"""Networks of torchvision, timm and others through PyTorch's exporter and load_onnx: `python -m tests.onnx_import.zoo`.

Arguments are networks, or beginnings of their names. The exporter of traces is used, and with --programs the one of
torch.export, which needs onnxscript. Genesis must agree with PyTorch to 1e-5 of the largest value, for two batches.
"""

from __future__ import annotations

import argparse
import copy
import sys
import tempfile
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

import genesis
from genesis.export import checking
from genesis.onnx_import.registry import NotImportableError
from tests.torch.zoo_networks import MOST_PARAMETERS, Network, networks

TOLERANCE = 1e-5
CHANNELS = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="networks, or beginnings of their names; default: all")
    parser.add_argument("--programs", action="store_true", help="export by torch.export")
    arguments = parser.parse_args()
    verdicts: dict[str, int] = {}
    for network in networks():
        if not arguments.names or network.name.startswith(tuple(arguments.names)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                verdict, detail = check(network, arguments.programs)
            verdicts[verdict] = verdicts.get(verdict, 0) + 1
            print(f"{network.name:<44}{verdict:<14}{detail}", flush=True)
    print(", ".join(f"{number} {verdict}" for verdict, number in verdicts.items()))
    return any(verdict in verdicts for verdict in ("differs", "failed"))


def check(network: Network, programs: bool) -> tuple[str, str]:
    """The verdict: right, refused, differs, failed, not exported, too large, or chaotic: it amplifies rounding."""
    torch.manual_seed(0)
    model = _varied(network.build()).eval()
    if sum(parameter.numel() for parameter in model.parameters()) > MOST_PARAMETERS:
        return "too large", ""
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        path, x = Path(folder) / "m.onnx", torch.randn(2, CHANNELS, network.size, network.size)
        try:
            _export(model, x, path, programs)
        except Exception as error:
            return "not exported", str(error).strip().partition("\n")[0][:100]
        try:
            loaded = genesis.load_onnx(path)
            worst = max(_difference(loaded, model, batch) for batch in (x, x[:1]))
        except NotImportableError as error:
            return "refused", str(error)[:200]
        except Exception as error:
            return "failed", f"{type(error).__name__}: {error}"[:200]
        if worst > TOLERANCE and _own_rounding(model, x) > TOLERANCE / 2:
            return "chaotic", f"{worst:.1e}, but PyTorch's float32 is {_own_rounding(model, x):.1e} from its float64"
    return "right" if worst <= TOLERANCE else "differs", f"{worst:.1e}"


def _varied(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d) and module.running_mean is not None and module.running_var is not None:
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    return model


def _export(model: nn.Module, x: Tensor, path: Path, programs: bool) -> None:
    if programs:
        batch = torch.export.Dim("batch", min=1, max=64)
        torch.onnx.export(model, (x,), path, dynamic_shapes=({0: batch},), external_data=False, verbose=False)
    else:
        sizes = {"x": {0: "batch"}}
        torch.onnx.export(model, (x,), path, dynamo=False, input_names=["x"], dynamic_axes=sizes)


def _own_rounding(model: nn.Module, x: Tensor) -> float:
    """How far PyTorch's float32 is from its float64."""
    single, double = model(x), copy.deepcopy(model).double()(x.double())
    pairs = zip(*[list(each.values()) if isinstance(each, dict) else [each] for each in (single, double)], strict=True)
    return max(checking.relative_difference(a.numpy(), b.numpy()) for a, b in pairs)


def _difference(loaded: nn.Module, model: nn.Module, x: Tensor) -> float:
    with genesis.no_grad():
        found = loaded(genesis.from_torch(x))
    theirs = model(x)
    expected = list(theirs.values()) if isinstance(theirs, dict) else [theirs]
    ours = list(found.values()) if isinstance(found, dict) else [found]
    pairs = zip(ours, expected, strict=True)
    return max(checking.relative_difference(a.numpy(), b.numpy()) for a, b in pairs)


if __name__ == "__main__":
    sys.exit(main())
