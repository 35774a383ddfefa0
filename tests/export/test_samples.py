"""Each op of the functional layer: PyTorch's samples, exported, give in ONNX Runtime what they give in Genesis."""

from __future__ import annotations

import pytest

from tests.conformance import opinfo, surface
from tests.conformance.harness import find
from tests.export import samples

# Names whose samples are all refused, and a word of the reason; of others, some may be.
REFUSED = {
    "masked_select": "shape depends on values|reads values",
    "logspace": "reads values",
    "nextafter": "no translation",
    "unique": "shape depends on values",
    "unique_consecutive": "shape depends on values",
} | dict.fromkeys(
    ("linalg.cond", "linalg.lstsq", "matrix_exp", "frexp", *(surface.ON_CPU_ONLY - {"imag", "istft", "view_as_real"})),
    "no translation",
)
SOME_REFUSED = {
    "narrow": "reads values",
    "linalg.vander": "no translation",
    "scatter_reduce": "no translation",
    "index_reduce": "no translation",
    "__getitem__": "shape depends on values",
    "index_put": "shape depends on values",
    "nonzero": "shape depends on values",
    "nn.functional.batch_norm": "running statistics",
    "nn.functional.instance_norm": "running statistics|no translation",
    "nn.functional.one_hot": "reads values",
    "nn.functional.embedding_bag": "reads values",
    "nn.functional.dropout": "random",
    "nn.functional.dropout2d": "random",
} | REFUSED
# ONNX Runtime's results in bfloat16 have no NumPy dtype; it has no Erf and no Sinh in float64.
NO_KERNEL = {"bfloat16", "igamma", "igammac", "special.erfcx", "special.log_ndtr"}
NO_SAMPLES = {  # with floating operands, among the small ones that are not empty
    "imag", "istft", "view_as_real",
    "gcd", "lcm", "linalg.cholesky_ex", "linalg.eigh", "linalg.eigvalsh", "linalg.inv_ex", "linalg.lu_solve",
    "linalg.matrix_rank", "linalg.pinv", "linalg.qr", "linalg.solve_ex", "linalg.svd", "linalg.svdvals",
    "lu_solve", "pinverse", "qr", "svd", "triangular_solve",
    "__rand__", "__ror__", "__rxor__", "bincount", "bitwise_left_shift", "bitwise_right_shift", "broadcast_shapes",
    "cat", "cholesky", "nn.functional.ctc_loss", "nn.functional.fractional_max_pool2d",
    "linalg.cholesky", "linalg.inv", "linalg.multi_dot", "linalg.solve", "linalg.solve_triangular",
    "nn.functional.bilinear", "scalar_tensor", "slice_scatter", "tril_indices", "triu_indices",
    "unravel_index", "nn.functional.multi_head_attention_forward",
    *(name for name in opinfo.NAMES if name.startswith("signal.windows.")),
}  # fmt: skip
NAMES = sorted(
    name for name in opinfo.NAMES if name not in samples.NOT_EXPORTED and name in opinfo.OPS and find(name) is not None
)


@pytest.mark.filterwarnings(*opinfo.ITS_WARNINGS)
@pytest.mark.parametrize("name", NAMES)
def test_samples(name: str) -> None:
    seen = []
    for sample, outcome in samples.outcomes(name, most=2):
        seen.append(outcome.said)
        if outcome.said == "refused":
            expected = SOME_REFUSED.get(name, "nothing").split("|")
            assert any(word in outcome.text for word in expected), (sample, outcome.text)
        elif outcome.said == "no kernel":
            assert name in NO_KERNEL, (sample, outcome.text)
        else:
            assert outcome.said == "equal", (sample, outcome.text)
    assert seen or name in NO_SAMPLES
    assert name not in REFUSED or set(seen) == {"refused"}
