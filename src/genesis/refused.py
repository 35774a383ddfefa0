"""Names of PyTorch's that Genesis refuses on purpose: sparse, masked and quantized tensors, and transforms."""

from __future__ import annotations

HALF_COMPLEX = "Genesis has no complex numbers of 16-bit parts; use complex64"
SPARSE = "Genesis has no sparse tensors; use dense ones"
QUANTIZED = "Genesis has no quantization; export to ONNX with genesis.export.onnx and quantize there"
MASKED = "Genesis has no masked tensors; keep a tensor and a bool mask, as masked_fill and where take them"
TRANSFORMS = "Genesis has no function transforms; use genesis.autograd.grad, or a loop"
VMAP = "Genesis has no function transforms; write a batch dimension or a loop"

_NAMES = {
    HALF_COMPLEX: "chalf complex32",
    SPARSE: (
        "sparse sparse_coo sparse_csr sparse_coo_tensor sparse_csr_tensor sparse_csc_tensor sparse_bsr_tensor "
        "sparse_bsc_tensor sparse_compressed_tensor"
    ),
    QUANTIZED: (
        "ao dequantize qint8 qint32 quint8 quint4x2 quantization quantize_per_tensor quantize_per_channel "
        "quantize_per_tensor_dynamic per_channel_affine per_tensor_affine"
    ),
    MASKED: "masked",
    TRANSFORMS: "func",
    VMAP: "vmap",
}
REFUSED = {name: why for why, names in _NAMES.items() for name in names.split()}  # of the top level
