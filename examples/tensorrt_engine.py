"""Build a TensorRT engine of an ONNX file of `genesis export`, run it, and compare it with ONNX Runtime.

    python examples/tensorrt_engine.py model.onnx --batch 1 4 8 --size 224 --fp16

It needs NVIDIA's package tensorrt, a GPU with its driver, PyTorch for CUDA (whose tensors are the engine's inputs and
outputs) and onnxruntime, and says what is missing. The engine is written beside the file, as model.engine; it runs on
this GPU, with this version of TensorRT. Only one input is supported.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

TOLERANCES = {"float32": 1e-3, "float16": 2e-2}  # of the largest value; TensorRT computes float32 in TF32
REPEATS = 50


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="the ONNX file")
    parser.add_argument(
        "--batch", type=int, nargs="+", default=[1], help="images per batch, the engine's limits and best"
    )
    parser.add_argument("--size", type=int, nargs="+", default=[224], help="height and width, or one number for both")
    parser.add_argument("--fp16", action="store_true", help="let TensorRT compute in float16")
    parser.add_argument("--out", type=Path, help="the engine; default: beside the model")
    arguments = parser.parse_args(argv)
    lacking = missing()
    if lacking:
        print("tensorrt_engine: " + "; ".join(lacking), file=sys.stderr)
        return 2
    if not arguments.model.is_file():
        print(f"tensorrt_engine: {arguments.model}: no such file", file=sys.stderr)
        return 2
    out = arguments.out or arguments.model.with_suffix(".engine")
    trt = importlib.import_module("tensorrt")
    shapes = input_shapes(arguments.model, sorted(arguments.batch), (arguments.size * 2)[:2])
    out.write_bytes(build(trt, arguments.model, shapes, arguments.fp16))
    print(f"{out}: for shapes from {shapes[0]} to {shapes[-1]}")
    return compare(trt, arguments.model, out, shapes, TOLERANCES["float16" if arguments.fp16 else "float32"])


def missing() -> list[str]:
    """What this machine lacks, and how to get it."""
    found = []
    for package, how in (
        ("tensorrt", "pip install tensorrt"), ("torch", "pip install torch, built for CUDA"),
        ("onnxruntime", "pip install onnxruntime"),
    ):  # fmt: skip
        if importlib.util.find_spec(package) is None:
            found.append(f"needs the package '{package}': {how}")
    if importlib.util.find_spec("torch") is not None:
        torch = importlib.import_module("torch")
        if not torch.cuda.is_available():
            built = torch.version.cuda is not None
            found.append(
                "needs an NVIDIA GPU and its driver, which PyTorch does not find"
                if built
                else f"needs PyTorch built for CUDA, and an NVIDIA GPU: this is PyTorch {torch.__version__}"
            )
    return found


def input_shapes(model: Path, batches: Sequence[int], size: Sequence[int]) -> list[tuple[int, ...]]:
    """The shape of the input for each batch; sizes that the file fixes stay, and others become multiples it takes."""
    session = importlib.import_module("onnxruntime").InferenceSession(model, providers=["CPUExecutionProvider"])
    inputs = session.get_inputs()
    if len(inputs) != 1:
        raise SystemExit(f"tensorrt_engine: {model}: expected one input, got {len(inputs)}")
    multiples = json.loads(session.get_modelmeta().custom_metadata_map.get("multiples", "{}"))
    shapes = []
    for batch in batches:
        wanted = [batch, *inputs[0].shape[1:2], *size][: len(inputs[0].shape)]
        shape = [
            known if isinstance(known, int) else -(-ask // multiples.get(known, 1)) * multiples.get(known, 1)
            for known, ask in zip(inputs[0].shape, wanted, strict=True)
        ]
        if tuple(shape) not in shapes:
            shapes.append(tuple(shape))
    return shapes


def build(trt: ModuleType, model: Path, shapes: Sequence[tuple[int, ...]], fp16: bool) -> bytes:
    """The engine of a file for inputs from the first shape to the last."""
    logger = trt.Logger(trt.Logger.WARNING)
    builder = trt.Builder(logger)
    explicit = getattr(trt.NetworkDefinitionCreationFlag, "EXPLICIT_BATCH", None)  # gone where nothing else is left
    network = builder.create_network(0 if explicit is None else 1 << int(explicit))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(model)):
        errors = "\n".join(str(parser.get_error(index)) for index in range(parser.num_errors))
        raise SystemExit(f"tensorrt_engine: TensorRT cannot read {model}:\n{errors}")
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    profile.set_shape(network.get_input(0).name, shapes[0], shapes[-1], shapes[-1])
    config.add_optimization_profile(profile)
    if fp16 and not hasattr(trt.BuilderFlag, "FP16"):
        raise SystemExit("tensorrt_engine: this TensorRT computes in the file's dtypes only: leave out --fp16")
    if fp16:
        config.set_flag(trt.BuilderFlag.FP16)
    engine = builder.build_serialized_network(network, config)
    if engine is None:
        raise SystemExit("tensorrt_engine: TensorRT found no engine; its log above says why")
    return bytes(engine)


def compare(trt: ModuleType, model: Path, engine: Path, shapes: Sequence[tuple[int, ...]], tolerance: float) -> int:
    """Print how far the engine is from ONNX Runtime for each shape, and its time; 1 if it is too far."""
    runtime = importlib.import_module("onnxruntime").InferenceSession(model, providers=["CPUExecutionProvider"])
    loaded = trt.Runtime(trt.Logger(trt.Logger.WARNING)).deserialize_cuda_engine(engine.read_bytes())
    context, failed = loaded.create_execution_context(), False
    for shape in shapes:
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        expected = runtime.run(None, {runtime.get_inputs()[0].name: x})
        names = [output.name for output in runtime.get_outputs()]
        found, seconds = run(loaded, context, x, dict(zip(names, expected, strict=True)))
        worst = max(difference(a, b) for a, b in zip(found, expected, strict=True))
        failed |= not worst <= tolerance
        print(f"{shape}: {1e3 * seconds:.2f} ms, largest difference {worst:.1e} of the largest value")
    return int(failed)


def run(engine: Any, context: Any, x: np.ndarray[Any, Any], like: dict[str, Any]) -> tuple[list[Any], float]:
    """The engine's outputs for an input, and the median time of a run; like has the outputs' shapes and dtypes."""
    torch = importlib.import_module("torch")
    stream, name = torch.cuda.Stream(), engine.get_tensor_name(0)
    held = {name: torch.from_numpy(x).cuda()}
    context.set_input_shape(name, x.shape)
    for output, array in like.items():
        held[output] = torch.empty_like(torch.from_numpy(array), device="cuda")
    for each, tensor in held.items():
        context.set_tensor_address(each, tensor.data_ptr())
    torch.cuda.synchronize()
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        context.execute_async_v3(stream.cuda_stream)
        stream.synchronize()
        times.append(time.perf_counter() - begin)
    return [held[output].cpu().numpy() for output in like], float(np.median(times))


def difference(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> float:
    return float(np.abs(found.astype(np.float64) - expected).max() / max(np.abs(expected).max(), 1e-30))


if __name__ == "__main__":
    sys.exit(main())
