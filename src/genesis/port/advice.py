"""Advice on what to use instead of a name of PyTorch's that Genesis lacks. The longest prefix wins."""

from __future__ import annotations

ADVICE = {
    "torch": "see docs/pytorch-names.md for what there is, or write it with the functions that are there",
    "torch.Tensor": "see docs/pytorch-names.md for the methods that there are",
    "torch._C": "it is internal to PyTorch; use the public function, or remove the call",
    "torch._dynamo": "Genesis runs eagerly; genesis.compile records a whole step, so remove the call",
    "torch._inductor": "Genesis runs eagerly; genesis.compile records a whole step, so remove the call",
    "torch.ao": "Genesis has no quantization; export to ONNX with genesis.export.onnx and quantize there",
    "torch.complex": "Genesis has no complex tensors; keep real and imaginary parts apart",
    "torch.export": "use genesis.export.onnx(model, example, path)",
    "torch.func": "Genesis has no function transforms; use genesis.autograd.grad, or a loop",
    "torch.fx": "Genesis has no symbolic tracing; genesis.export.onnx records a run",
    "torch.jit": "Genesis does not script models; genesis.compile records and replays a step",
    "torch.library": "write the op with genesis.cuda.op",
    "torch.onnx": "use genesis.export.onnx(model, example, path)",
    "torch.ops": "it runs on PyTorch's tensors; write the op with Genesis' functions or genesis.cuda.op",
    "torch.sparse": "Genesis has no sparse tensors; use dense ones",
    "torch.vmap": "Genesis has no function transforms; write a batch dimension or a loop",
    "torch.nn.Conv3d": "Genesis has no three-dimensional layers yet",
    "torch.nn.DataParallel": "use one process per GPU",
    "torch.nn.Lazy": "Genesis has no layers that learn their sizes from the first input; give them",
    "torch.optim.SparseAdam": "Genesis has no sparse gradients; use Adam",
}
for _name in ("complex32", "complex64", "complex128", "fft", "polar", "view_as_complex", "view_as_real"):
    ADVICE[f"torch.{_name}"] = ADVICE["torch.complex"]
for _name in ("BatchNorm3d", "MaxPool3d", "AvgPool3d", "ConvTranspose3d", "InstanceNorm3d", "AdaptiveAvgPool3d"):
    ADVICE[f"torch.nn.{_name}"] = ADVICE["torch.nn.Conv3d"]
for _name in ("Linear", "Conv1d", "Conv2d", "ConvTranspose1d", "ConvTranspose2d", "BatchNorm1d", "BatchNorm2d"):
    ADVICE[f"torch.nn.Lazy{_name}"] = ADVICE["torch.nn.Lazy"]
for _name in ("conv3d", "conv_transpose3d", "max_pool3d", "avg_pool3d", "adaptive_avg_pool3d"):
    ADVICE[f"torch.nn.functional.{_name}"] = ADVICE["torch.nn.Conv3d"]


def advice_for(name: str) -> str:
    """The advice on a dotted name of PyTorch's.

    Example:
        >>> from genesis.port.advice import advice_for
        >>> advice_for("torch.jit.script")
        'Genesis does not script models; genesis.compile records and replays a step'
    """
    while name not in ADVICE:
        name = name.rpartition(".")[0] or "torch"
    return ADVICE[name]
