"""Advice on what to use instead of a name of PyTorch's that Genesis lacks. The longest prefix wins."""

from __future__ import annotations

from genesis.refused import REFUSED, SPARSE

ADVICE = {
    "torch": "see docs/pytorch-names.md for what there is, or write it with the functions that are there",
    "torch.Tensor": "see docs/pytorch-names.md for the methods that there are",
    "torch._C": "it is internal to PyTorch; use the public function, or remove the call",
    "torch._dynamo": "Genesis runs eagerly; genesis.compile records a whole step, so remove the call",
    "torch._inductor": "Genesis runs eagerly; genesis.compile records a whole step, so remove the call",
    "torch.export": "use genesis.export.onnx(model, example, path)",
    "torch.fx": "Genesis has no symbolic tracing; genesis.export.onnx records a run",
    "torch.jit": "Genesis does not script models; genesis.compile records and replays a step",
    "torch.library": "write the op with genesis.cuda.op",
    "torch.onnx": "use genesis.export.onnx(model, example, path)",
    "torch.ops": "it runs on PyTorch's tensors; write the op with Genesis' functions or genesis.cuda.op",
    "torch.nn.Conv3d": "Genesis has no three-dimensional layers yet",
    "torch.optim.SparseAdam": "Genesis has no sparse gradients; use Adam",
}
ADVICE.update({f"torch.{_name}": why for _name, why in REFUSED.items()})
for _name in ("coalesce", "is_coalesced", "sparse_mask", "to_dense", "to_sparse", "to_sparse_csr"):
    ADVICE[f"torch.Tensor.{_name}"] = SPARSE
for _name in ("BatchNorm3d", "MaxPool3d", "AvgPool3d", "ConvTranspose3d", "InstanceNorm3d", "AdaptiveAvgPool3d"):
    ADVICE[f"torch.nn.{_name}"] = ADVICE["torch.nn.Conv3d"]
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
