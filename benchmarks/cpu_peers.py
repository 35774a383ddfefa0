"""ONNX Runtime and OpenVINO on a network that Genesis exports: further sides of bench_cpu_nets.py."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from typing import Any

import torch
from harness import Side

import genesis.export


def peers(model: Any, input: torch.Tensor, threads: int) -> dict[str, Side]:
    """Those that are installed."""
    sides = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        genesis.export.onnx(model, genesis.from_torch(input), path, check=False)
        if importlib.util.find_spec("onnxruntime"):
            sides["ONNX Runtime"] = _onnxruntime(path, input, threads)
        if importlib.util.find_spec("openvino"):
            sides["OpenVINO"] = _openvino(path, input, threads)
    return sides


def _onnxruntime(path: Path, input: torch.Tensor, threads: int) -> Side:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # it would take the others' cores
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feed = {session.get_inputs()[0].name: input.numpy()}
    return lambda: session.run(None, feed)[0]


def _openvino(path: Path, input: torch.Tensor, threads: int) -> Side:
    import openvino

    core = openvino.Core()
    precision = {"INFERENCE_PRECISION_HINT": "f32"}
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1, **precision}
    compiled = core.compile_model(core.read_model(path), "CPU", settings)
    request, array = compiled.create_infer_request(), input.numpy()

    def run() -> Any:
        request.infer([array], share_inputs=True)
        return request.get_output_tensor(0).data

    return run
