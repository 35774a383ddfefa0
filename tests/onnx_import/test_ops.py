"""Each op that load_onnx knows gives what ONNX Runtime gives, with its options, on tensors and on the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from genesis.onnx_import import registry
from tests.onnx_import.files import both, write

RNG = np.random.default_rng(0)


def draw(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def ints(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


X, IMAGE, ROW = draw(2, 3, 4), draw(2, 4, 7, 6), draw(2, 4, 9)
POSITIVE, BOOLS, WHOLE = np.abs(X) + 0.5, X > 0, RNG.integers(-7, 8, (2, 3, 4))
NONE = None
PADS = [1, 0, 2, 1]
SQUARE = {"kernel_shape": [3, 3]}

# op, operands (those after the first are constants; None: left out), attributes.
Case = tuple[str, list[Any], dict[str, Any]]
CASES: list[Case] = [
    *[(op, [X], {}) for op in (
        "Relu", "Sigmoid", "Tanh", "Softplus", "Mish", "Erf", "HardSwish", "Abs", "Neg", "Exp", "Floor", "Ceil",
        "Round", "Sign", "Sin", "Cos", "IsNaN", "IsInf", "Identity", "Softsign", "LeakyRelu", "Elu", "Selu",
        "HardSigmoid", "Dropout", "Shape", "Size", "Flatten", "Transpose", "LogSoftmax", "Softmax", "ReduceSum",
        "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare",
        "ReduceLogSumExp", "ArgMax", "ArgMin", "LpNormalization", "Tan", "Atan", "Sinh", "Cosh", "Asinh",
    )],
    *[(op, [POSITIVE], {}) for op in ("Log", "Sqrt", "Reciprocal")],
    *[(op, [np.tanh(X)], {}) for op in ("Asin", "Acos", "Atanh")], ("Acosh", [POSITIVE + 1], {}),
    ("BitwiseNot", [WHOLE], {}), *[(op, [WHOLE, ints(3)], {}) for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")],
    *[(op, [X, draw(3, 1)], {}) for op in (
        "Add", "Sub", "Mul", "Div", "Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Max", "Min", "Sum",
        "PRelu",
    )],
    *[(op, [X, draw(4), draw(2, 1, 1)], {}) for op in ("Max", "Min", "Sum")],
    *[(op, [WHOLE, ints(3, -2, 4, -1)], {}) for op in ("Add", "Sub", "Mul", "Div", "Mod", "Equal", "Greater", "Max")],
    *[(op, [BOOLS, ~BOOLS[0]], {}) for op in ("And", "Or", "Xor")],
    ("Mod", [X, draw(4)], {"fmod": 1}), ("Mod", [WHOLE, ints(3)], {"fmod": 1}), ("Not", [BOOLS], {}),
    ("Pow", [POSITIVE, np.float32(1.5)], {}), ("Pow", [X, ints(2)], {}), ("Where", [BOOLS, X, draw(4)], {}),
    ("IsInf", [np.array([1, np.inf, -np.inf], np.float32)], {"detect_negative": 0}),
    ("LeakyRelu", [X], {"alpha": 0.2}), ("Elu", [X], {"alpha": 0.5}), ("HardSigmoid", [X], {"alpha": 0.3}),
    ("HardSigmoid", [X], {"alpha": 1 / 6}), ("Selu", [X], {"alpha": 1.5, "gamma": 1.1}),
    ("Clip", [X, np.float32(-0.5), np.float32(0.7)], {}), ("Clip", [X, NONE, np.float32(0.1)], {}),
    ("Clip", [X * 9, np.float32(0), np.float32(6)], {}), ("Clip", [X], {}),
    ("Softmax", [X], {"axis": 1}), ("LogSoftmax", [X], {"axis": -2}),
    ("Cast", [X], {"to": 7}), ("Cast", [X], {"to": 11}), ("Cast", [WHOLE], {"to": 9}), ("CastLike", [X, ints(1)], {}),
    # --- dense
    ("Conv", [IMAGE, draw(5, 4, 3, 3), draw(5)], {}), ("Conv", [IMAGE, draw(4, 2, 3, 2)], {"group": 2}),
    ("Conv", [IMAGE, draw(5, 4, 3, 3)], {"pads": PADS, "strides": [2, 1], "dilations": [1, 2]}),
    ("Conv", [IMAGE, draw(5, 4, 3, 2)], {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ("Conv", [IMAGE, draw(5, 4, 2, 3)], {"auto_pad": "SAME_LOWER"}), ("Conv", [ROW, draw(3, 4, 3)], {"pads": [1, 0]}),
    ("Conv", [IMAGE, draw(5, 4, 3, 3)], {"auto_pad": "VALID"}),
    ("ConvTranspose", [IMAGE, draw(4, 5, 3, 3), draw(5)], {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ("ConvTranspose", [IMAGE, draw(4, 2, 3, 3)], {"group": 2, "pads": PADS, "strides": [2, 3]}),
    ("ConvTranspose", [IMAGE, draw(4, 2, 3, 3)], {"pads": PADS, "output_padding": [0, 1], "strides": [2, 3]}),
    ("ConvTranspose", [IMAGE, draw(4, 2, 2, 2)], {"strides": [2, 2], "output_padding": [1, 1]}),
    ("ConvTranspose", [ROW, draw(4, 2, 3)], {"dilations": [2]}),
    ("MatMul", [X, draw(4, 5)], {}), ("MatMul", [X, draw(2, 4, 3)], {}),
    ("Gemm", [X[0], draw(4, 5), draw(5)], {}), ("Gemm", [X[0], draw(5, 4), draw(5)], {"transB": 1}),
    ("Gemm", [X[0], draw(5, 3), draw(1, 5)], {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}),
    ("Gemm", [X[0], draw(4, 5)], {}), ("Einsum", [X, draw(2, 4, 5)], {"equation": "nij,njk->nik"}),
    ("BatchNormalization", [IMAGE, draw(4), draw(4), draw(4), POSITIVE[0, 0]], {"epsilon": 1e-3}),
    ("InstanceNormalization", [IMAGE, draw(4), draw(4)], {}),
    ("LayerNormalization", [X, draw(4), draw(4)], {}), ("LayerNormalization", [X, draw(3, 4)], {"axis": 1}),
    ("LpNormalization", [X], {"axis": 1, "p": 1}),
    # --- windows
    ("MaxPool", [IMAGE], SQUARE), ("MaxPool", [IMAGE], SQUARE | {"pads": PADS, "strides": [2, 2]}),
    ("MaxPool", [IMAGE], SQUARE | {"strides": [2, 2], "ceil_mode": 1}), ("MaxPool", [ROW], {"kernel_shape": [2]}),
    ("MaxPool", [IMAGE], SQUARE | {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ("MaxPool", [IMAGE], SQUARE | {"dilations": [2, 1]}),
    ("AveragePool", [IMAGE], SQUARE), ("AveragePool", [IMAGE], SQUARE | {"pads": [1, 1, 1, 1]}),
    ("AveragePool", [IMAGE], SQUARE | {"pads": [1, 1, 1, 1], "count_include_pad": 1, "strides": [2, 2]}),
    ("AveragePool", [IMAGE], SQUARE | {"pads": PADS}),
    ("AveragePool", [IMAGE], SQUARE | {"pads": PADS, "count_include_pad": 1}),
    ("AveragePool", [IMAGE], SQUARE | {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    ("AveragePool", [ROW], {"kernel_shape": [3], "strides": [2]}),
    ("GlobalAveragePool", [IMAGE], {}), ("GlobalAveragePool", [ROW], {}), ("GlobalMaxPool", [IMAGE], {}),
    # --- reductions
    *[(op, [X, ints(-1, 0)], {"keepdims": 0}) for op in (
        "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare",
        "ReduceLogSumExp",
    )],
    ("ReduceSum", [X], {"noop_with_empty_axes": 1}), ("ArgMax", [X], {"axis": 2, "keepdims": 0}),
    ("CumSum", [X, ints(1)], {}), ("CumSum", [X, ints(-1)], {"reverse": 1}), ("CumSum", [X, ints(1)], {"exclusive": 1}),
    ("TopK", [X, ints(2)], {}), ("TopK", [X, ints(1)], {"axis": 1, "largest": 0}),
    # --- shapes
    ("Shape", [X], {"start": 1, "end": -1}), ("Reshape", [X, ints(0, -1)], {}), ("Reshape", [X, ints(4, 6)], {}),
    ("Flatten", [X], {"axis": 0}), ("Flatten", [X], {"axis": -1}), ("Transpose", [X], {"perm": [1, 2, 0]}),
    ("Squeeze", [X[:, :1], ints(1)], {}), ("Squeeze", [X[:, :1]], {}), ("Unsqueeze", [X, ints(0, -1)], {}),
    ("Expand", [X[:, :1], ints(3, 1)], {}), ("Tile", [X, ints(1, 2, 3)], {}), ("Size", [X], {}),
    ("ConstantOfShape", [ints(2, 3)], {}), ("OneHot", [WHOLE % 5, ints(5), draw(2)], {"axis": 1}),
    ("OneHot", [WHOLE, ints(8), draw(2)], {}), ("Range", [ints(2)[0], ints(9)[0], ints(3)[0]], {}),
    # --- parts
    ("Concat", [X, draw(2, 2, 4)], {"axis": 1}), ("Split", [X, ints(1, 3)], {"axis": 2}),
    ("Slice", [X, ints(1), ints(3)], {}), ("Slice", [X, ints(-3, 0), ints(2**62, -1), ints(2, 1), ints(2, 1)], {}),
    ("Slice", [X, ints(-1), ints(-(2**62)), ints(2), ints(-1)], {}),
    ("Slice", [X, ints(3), ints(0), ints(2), ints(-2)], {}),
    ("Slice", [X, ints(2), ints(1), ints(2)], {}),
    ("Gather", [X, ints(0, -1)], {"axis": 1}), ("Gather", [X[0], WHOLE % 3], {}),
    ("Gather", [X, ints(1)[0]], {"axis": 2}),
    ("GatherElements", [X, WHOLE % 3], {"axis": 1}), ("GatherND", [X, np.array([[0, 1], [1, 2]])], {}),
    ("ScatterElements", [X, WHOLE[:, :1] % 3 - 1, draw(2, 1, 4)], {"axis": 1, "reduction": "add"}),
    ("ScatterElements", [X, ints(2, 0).reshape(2, 1, 1), draw(2, 1, 1)], {"axis": 1}),
    ("ScatterND", [X, np.array([[0, 1], [1, 2]]), draw(2, 4)], {}),
    ("ScatterND", [X, np.array([[0, 1], [0, 1]]), draw(2, 4)], {"reduction": "add"}),
    ("Trilu", [X], {}), ("Trilu", [X, ints(-1)[0]], {"upper": 0}),
    ("Pad", [X, ints(0, 1, 2, 0, 0, 1)], {}), ("Pad", [X, ints(0, 1, 2, 0, 0, 1), np.float32(2)], {}),
    ("Pad", [X, ints(0, 0, -1, 0, 0, 1)], {}),
    ("Pad", [IMAGE, ints(1, 2, 2, 0), NONE, ints(2, 3)], {"mode": "reflect"}),
    ("Pad", [IMAGE, ints(0, 0, 1, 2, 0, 0, 3, 0)], {"mode": "edge"}), ("Pad", [X, ints(0, 0, 0, 0, 0, 0)], {}),
    ("DepthToSpace", [IMAGE], {"blocksize": 2}), ("DepthToSpace", [IMAGE], {"blocksize": 2, "mode": "CRD"}),
    ("SpaceToDepth", [IMAGE[:, :, :6]], {"blocksize": 2}),
]  # fmt: skip

NEWER: list[tuple[int, Case]] = [
    (20, ("Gelu", [X], {})), (20, ("Gelu", [X], {"approximate": "tanh"})),
    (21, ("GroupNormalization", [IMAGE, draw(4), draw(4)], {"num_groups": 2})),
    (23, ("RMSNormalization", [X, draw(4)], {})),
    (11, ("Softmax", [X], {"axis": 1})), (11, ("Softmax", [X], {})), (11, ("LogSoftmax", [X], {"axis": 1})),
    (11, ("Squeeze", [X[:, :1]], {"axes": [1]})), (11, ("Unsqueeze", [X], {"axes": [0, 2]})),
    (11, ("ReduceSum", [X], {"axes": [1], "keepdims": 0})), (11, ("ReduceMean", [X], {"axes": [-1]})),
    (11, ("Split", [X], {"axis": 2, "split": [1, 3]})), (13, ("Split", [X], {"axis": 2})),
    (18, ("Split", [X], {"axis": 2, "num_outputs": 2})), (11, ("Pad", [X, ints(0, 1, 2, 0, 0, 1)], {})),
]  # fmt: skip

RESIZES = [
    {"mode": mode, "coordinate_transformation_mode": positions, **more}
    for mode, positions, more in [
        *[("nearest", positions, {"nearest_mode": rounding})
          for positions in ("half_pixel", "asymmetric", "pytorch_half_pixel")
          for rounding in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")],
        *[(mode, positions, {}) for mode in ("linear", "cubic")
          for positions in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")],
        ("cubic", "half_pixel", {"cubic_coeff_a": -0.5}), ("nearest", "align_corners", {"nearest_mode": "floor"}),
    ]
]  # fmt: skip


POOLS_WITH_INDICES = [
    (IMAGE, SQUARE | {"strides": [2, 2], "pads": [1, 1, 1, 1]}), (IMAGE, SQUARE | {"strides": [2, 2], "ceil_mode": 1}),
    (ROW, {"kernel_shape": [2], "strides": [2]}),
]  # fmt: skip


def compared(path: Path, case: Case, opset: int, constants: bool) -> None:
    from onnx import helper

    op, operands, attributes = case
    names = [f"x{i}" if operand is not None else "" for i, operand in enumerate(operands)]
    arrays = {name: np.asarray(operand) for name, operand in zip(names, operands, strict=True) if name}
    first = [names[0]] if constants else list(arrays)
    count = {"TopK": 2, "Split": 2}.get(op, 1)
    outputs = [f"y{i}" for i in range(count)]
    node = helper.make_node(op, names, outputs, **attributes)
    inputs, weights = ({n: a for n, a in arrays.items() if (n in first) is given} for given in (True, False))
    for ours, theirs in both(write(path, [node], inputs, outputs, weights, opset), inputs):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("constants", [True, False], ids=["constants", "inputs"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_ops(case: Case, constants: bool, tmp_path: Path) -> None:
    compared(tmp_path / "m.onnx", case, 18, constants)


@pytest.mark.parametrize(
    ("opset", "case"), NEWER, ids=lambda value: value[0] if isinstance(value, tuple) else str(value)
)
def test_ops_of_other_versions(opset: int, case: Case, tmp_path: Path) -> None:
    compared(tmp_path / "m.onnx", case, opset, True)


@pytest.mark.parametrize("options", RESIZES, ids=lambda options: "-".join(map(str, options.values())))
def test_resize(options: dict[str, Any], tmp_path: Path) -> None:
    down = (5, 5) if options["coordinate_transformation_mode"] == "asymmetric" else (4, 4)  # without ties
    for sizes, scales in (
        (ints(2, 4, 12, 9), NONE), (ints(2, 4, *down), NONE), (NONE, np.array([1, 1, 2, 2], np.float32)),
        (NONE, np.array([1, 1, 0.6, 1.7], np.float32)), (ints(2, 4, 1, 6), NONE),
    ):  # fmt: skip
        compared(tmp_path / "m.onnx", ("Resize", [IMAGE, NONE, scales, sizes], options), 18, True)


@pytest.mark.parametrize(("x", "attributes"), POOLS_WITH_INDICES)
def test_indices_of_a_max_pool(x: Any, attributes: dict[str, Any], tmp_path: Path) -> None:
    from onnx import helper

    node = helper.make_node("MaxPool", ["x"], ["y", "indices"], **attributes)
    for ours, theirs in both(write(tmp_path / "m.onnx", [node], {"x": x}, ["y", "indices"]), {"x": x}):
        np.testing.assert_array_equal(ours, theirs)


def test_every_op_of_the_table_is_compared() -> None:
    tried = {case[0] for case in CASES} | {case[0] for _, case in NEWER} | {"Resize", "Swish"}
    assert set(registry.names()) == tried
