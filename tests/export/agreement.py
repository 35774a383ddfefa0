"""Genesis, ONNX Runtime and OpenVINO on every model: `python -m tests.export.agreement [CASE …]`.

Arguments are cases, or beginnings of their names. Each model of genesis.models is exported as it is, with its norms
kept, fused, grown and pruned, and with them the parts of transformers. The runtimes must agree with Genesis to 1e-5 of
the largest value, on the example and on a size that the export has not seen; onnx.checker must pass. OpenVINO and onnx
are no dependencies: without them, the rest is compared.
"""

from __future__ import annotations

import importlib.util
import logging
import random
import sys
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

import genesis
from genesis import export, growth, models, nn
from genesis.export import checking, tracing
from genesis.export.converting import elements
from genesis.tensor import Tensor
from tests.export.fuzz_models import multihead, rotary_attention, varied

TOLERANCE = 1e-5  # relative, of float32
IMAGE = {0: "batch", 2: "height", 3: "width"}
TOKENS = {0: "batch", 1: "length"}
Inputs = tuple[Tensor, ...]


class Case(NamedTuple):
    """A model, its example, inputs of a size that the export does not see, and what varies.

    Attributes:
        make: the model, from the example.
        options: of export.onnx.
    """

    make: Callable[[Tensor], nn.Module]
    example: Inputs
    unseen: Inputs
    dynamic: Any
    options: dict[str, Any]


def cases() -> dict[str, Case]:
    """By name, such as resnet18-pruned."""
    found = {f"{model}-{edit}": _of_images(model, edit) for model in models.names() for edit in EDITS}
    return found | {name: _of_sequences(make, 1) for name, make in PARTS.items()} | {
        name: _of_sequences(make, 2) for name, make in WITH_MEMORY.items()
    }  # fmt: skip


def _of_images(name: str, edit: str) -> Case:
    channels = 1 if name == "unet" else 3
    small = {"in_channels": 1, "num_classes": 2, "width": 8} if name == "unet" else {}

    def make(example: Tensor) -> nn.Module:
        model = varied(models.create(name, **small), random.Random(0)).eval()
        EDITS[edit](model, example)
        return model

    sizes = ((2, channels, 32, 32), (3, channels, 64, 96))
    example, unseen = (genesis.randn(*size) for size in sizes)
    return Case(make, (example,), (unseen,), IMAGE, {"fold_batch_norm": edit != "norms kept"})


def _of_sequences(make: Callable[[], nn.Module], num_inputs: int) -> Case:
    example = tuple(genesis.randn(2, 6, 16) for _ in range(num_inputs))
    unseen = tuple(genesis.randn(3, 11, 16) for _ in range(num_inputs))
    dynamic = TOKENS if num_inputs == 1 else {"src": TOKENS, "tgt": TOKENS}
    return Case(lambda _: varied(make(), random.Random(0)).eval(), example, unseen, dynamic, {})


EDITS: dict[str, Callable[[nn.Module, Tensor], object]] = {
    "plain": lambda model, example: None,
    "norms kept": lambda model, example: None,
    "fused": lambda model, example: genesis.fuse(model, example),
    "grown": lambda model, example: growth.grow_width(model, factor=1.25, example=example),
    "pruned": lambda model, example: growth.prune_width(model, factor=0.6, example=example),
}


class Pair(nn.Module):
    """A layer that sees a memory beside its input."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.layer(tgt, src)  # type: ignore[no-any-return]


def _layer(kind: Callable[..., nn.Module], **options: Any) -> nn.Module:
    return kind(16, 2, 32, batch_first=True, **options)


PARTS: dict[str, Callable[[], nn.Module]] = {
    "rotary attention": lambda: rotary_attention(random.Random(0), 16, 2),
    "causal rotary attention": lambda: rotary_attention(random.Random(2), 16, 2),
    "multi-head attention": lambda: multihead(random.Random(0), 16, 4),
    "SwiGLU": lambda: nn.FeedForwardSwiGLU(16),
    "RMS norm": lambda: nn.RMSNorm(16),
    "layer norm": lambda: nn.LayerNorm(16),
    "encoder layer": lambda: _layer(nn.TransformerEncoderLayer),
    "encoder layer, norm first, gelu": lambda: _layer(nn.TransformerEncoderLayer, norm_first=True, activation="gelu"),
    "encoder": lambda: nn.TransformerEncoder(_layer(nn.TransformerEncoderLayer), 2),
}
WITH_MEMORY: dict[str, Callable[[], nn.Module]] = {
    "decoder layer": lambda: Pair(_layer(nn.TransformerDecoderLayer)),
    "decoder": lambda: Pair(nn.TransformerDecoder(_layer(nn.TransformerDecoderLayer), 2)),
    "transformer": lambda: nn.Transformer(16, 2, 1, 1, 32, batch_first=True),
}


# --- runtimes ---------------------------------------------------------------------------------------------------------


def run_openvino(path: Path, inputs: dict[str, Tensor]) -> list[Any]:
    """The outputs of a file by OpenVINO on the CPU, in float32."""
    import openvino

    precise = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    compiled = openvino.Core().compile_model(path, "CPU", precise)
    known = {name for port in compiled.inputs for name in port.names}
    found = compiled({name: elements(tensor, tensor.dtype) for name, tensor in inputs.items() if name in known})
    return [found[index] for index in range(len(compiled.outputs))]


RUNTIMES: dict[str, Callable[[Path, dict[str, Tensor]], list[Any]]] = {"ONNX Runtime": checking.run}
if importlib.util.find_spec("openvino"):
    RUNTIMES["OpenVINO"] = run_openvino


def differences(case: Case, folder: Path, runtimes: Collection[str] = ()) -> dict[str, float]:
    """How far these runtimes (default: all that are installed) are from Genesis."""
    model, path = case.make(case.example[0]), folder / "model.onnx"
    done = export.onnx(model, case.example, path, case.dynamic, check=False, **case.options)
    if importlib.util.find_spec("onnx"):
        import onnx

        onnx.checker.check_model(path, full_check=True)
    worst = dict.fromkeys(runtimes or RUNTIMES, 0.0)
    for inputs in (case.example, case.unseen):
        with genesis.no_grad():
            expected = list(tracing.named_tensors(model(*inputs)).values())
        for name in worst:
            found = RUNTIMES[name](path, dict(zip(done.inputs, inputs, strict=True)))
            for actual, wanted in zip(found, expected, strict=True):
                assert actual.shape == wanted.shape, f"{name}: {actual.shape} for {wanted.shape}"
                worst[name] = max(worst[name], checking.relative_difference(actual, wanted.numpy()))
    return worst


def main(names: list[str]) -> int:
    logging.getLogger("genesis").setLevel(logging.ERROR)
    genesis.manual_seed(0)
    chosen = {name: case for name, case in cases().items() if not names or name.startswith(tuple(names))}
    bad = 0
    for name, case in chosen.items():
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = differences(case, Path(folder))
            except Exception as error:
                bad += 1
                print(f"{name:<36}{type(error).__name__}: {error}", flush=True)
                continue
        bad += max(found.values()) > TOLERANCE
        print(f"{name:<36}{'  '.join(f'{runtime} {worst:.1e}' for runtime, worst in found.items())}", flush=True)
    print(f"{len(chosen)} cases in {' and '.join(RUNTIMES)}: {bad} differ or failed")
    return bad != 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
