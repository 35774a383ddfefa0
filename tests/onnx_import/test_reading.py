"""Files that are damaged, hostile, or of ops that Genesis does not import: one clear error, and no memory for them."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import genesis
from genesis import export, nn
from genesis.errors import CheckpointError, GenesisError
from genesis.onnx_import.registry import NotImportableError
from tests.onnx_import.files import normal, write

onnx = pytest.importorskip("onnx", reason="onnx, which the extra 'export' brings, is not installed")
TensorProto, helper = onnx.TensorProto, onnx.helper
X = {"x": normal(2, 3)}
ADD = helper.make_node("Add", ["x", "w"], ["y"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "m.onnx"


def changed(path: Path, change: Any) -> Path:
    """A file of x + w whose protocol buffer was changed."""
    model = onnx.load(write(path, [ADD], X, ["y"], {"w": normal(3)}), load_external_data=False)
    change(model)
    path.write_bytes(model.SerializeToString())
    return path


def refused(path: Path, said: str, error: type[Exception] = CheckpointError) -> None:
    with pytest.raises(error, match=said) as raised:
        genesis.load_onnx(path)
    assert str(path) in str(raised.value)
    assert len(str(raised.value)) < 500


# --- ops --------------------------------------------------------------------------------------------------------------


def test_all_unknown_ops_are_named_with_their_nodes(path: Path) -> None:
    nodes = [
        helper.make_node("LRN", ["x"], ["a"], name="/stem/lrn", size=3), helper.make_node("Det", ["a"], ["b"]),
        helper.make_node("Gelu", ["b"], ["c"], domain="com.microsoft", name="gelu"),
        helper.make_node("Relu", ["c"], ["d"]),
        *[helper.make_node("Hardmax", [name], [f"{name}{i}"], name=f"h{i}") for i, name in enumerate("abcdab")],
    ]  # fmt: skip
    write(path, nodes, X, ["d"])
    said = r"Det \(node 1\); Hardmax \(h0, h1, h2, h3 and 2 more\); LRN \(/stem/lrn\); com.microsoft.Gelu \(gelu\)"
    refused(path, f"ops that Genesis does not import: {said}", NotImportableError)


@pytest.mark.parametrize(
    ("node", "said"),
    [
        (helper.make_node("Resize", ["x", "", "s"], ["y"], antialias=1), "Resize with antialias=1 is not supported"),
        (helper.make_node("Trilu", ["x"], ["y", "z"]), "Trilu with 2 results"),
        (helper.make_node("MaxPool", ["x"], ["y"]), "MaxPool with kernel_shape=None of 2 dimensions"),
        (helper.make_node("Cast", ["x"], ["y"], to=8), "Cast with to=8"),
        (helper.make_node("Concat", ["x", "x"], ["y"], axis="1"), "Concat with axis='1'"),
    ],
)
def test_unknown_options_are_refused_with_the_node(node: Any, said: str, path: Path) -> None:
    outputs = list(node.output)
    model = genesis.load_onnx(write(path, [node], X, outputs, {"s": np.array([1, 2], np.float32)}))
    with pytest.raises(NotImportableError, match=said) as raised:
        model(genesis.tensor(X["x"]))
    assert raised.value.__notes__ == [f"in node 'node 0' ({node.op_type}) of an ONNX file"]


def test_control_flow_is_refused(path: Path) -> None:
    body = helper.make_graph([helper.make_node("Identity", ["x"], ["z"])], "body", [], [])
    node = helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    refused(write(path, [node], X, ["y"], {"c": np.array(True)}), r"If \(node 0\)", NotImportableError)
    node = helper.make_node("Relu", ["x"], ["y"], body=body)
    refused(write(path, [node], X, ["y"]), "expected numbers, text or a tensor")


@pytest.mark.parametrize("opset", [9, 10, 99])
def test_opsets(opset: int, path: Path) -> None:
    refused(write(path, [ADD], X, ["y"], {"w": normal(3)}, opset), f"expected operators of opset 11 to 26, got {opset}")


# --- graphs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ([helper.make_node("Relu", ["nothing"], ["y"])], "nothing before it makes its input 'nothing'"),
        ([helper.make_node("Relu", ["b"], ["y"]), helper.make_node("Relu", ["y"], ["b"])], "nothing before it makes"),
        ([helper.make_node("Relu", ["y"], ["y"])], "nothing before it makes|damaged|not an ONNX file"),
        ([helper.make_node("Relu", ["x"], ["a"])], "nothing makes the output 'y'"),
        ([helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["y"])], "another value|not an ONNX"),
        ([helper.make_node("Relu", ["x"], ["x"]), helper.make_node("Neg", ["x"], ["y"])], "another value|not an ONNX"),
        ([helper.make_node("Relu", ["x"], [""])], "expected a name of its result"),
        ([helper.make_node("Constant", [], ["y"])], "expected a tensor or numbers"),
    ],
)
def test_damaged_graphs(nodes: list[Any], said: str, path: Path) -> None:
    refused(write(path, nodes, X, ["y"]), said)


def test_a_graph_of_nothing(path: Path) -> None:
    path.write_bytes(b"")
    refused(path, "not an ONNX file of a network")
    path.write_bytes(b"PK\x03\x04 no model at all")
    refused(path, "not an ONNX file")
    with pytest.raises(FileNotFoundError, match=r"none\.onnx"):
        genesis.load_onnx(path.with_name("none.onnx"))


def test_a_pipe_is_not_read(path: Path) -> None:
    os.mkfifo(path)
    refused(path, "expected a regular file")


# --- weights ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dims", "said"),
    [
        ((2**40, 2**20), "expected the elements of shape"), ((4,), "expected the elements of shape"),
        ((-3,), "expected sizes from 0"), ((2**62, 4), "expected the elements of shape"), ((), "the elements of shape"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("raw", [True, False])
def test_shapes_beyond_the_bytes(dims: tuple[int, ...], said: str, raw: bool, path: Path) -> None:
    def change(model: Any) -> None:
        tensor = model.graph.initializer[0]
        if not raw:
            tensor.ClearField("raw_data")
            tensor.float_data.extend([1.0, 2.0, 3.0])
        del tensor.dims[:]
        tensor.dims.extend(dims)

    refused(changed(path, change), said)


@pytest.mark.parametrize("kind", [TensorProto.STRING, TensorProto.COMPLEX64, TensorProto.FLOAT8E5M2, 77])
def test_elements_of_other_kinds(kind: int, path: Path) -> None:
    def change(model: Any) -> None:
        model.graph.initializer[0].data_type = kind

    refused(changed(path, change), "expected elements among FLOAT|not an ONNX file|damaged")


def external(path: Path, location: str, **options: int) -> Path:
    def change(model: Any) -> None:
        tensor = model.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in {"location": location, **options}.items():
            tensor.external_data.add(key=key, value=str(value))

    return changed(path, change)


def test_weights_beside_the_file(path: Path) -> None:
    weights = normal(5)
    (path.parent / "inner").mkdir()
    (path.parent / "inner" / "w.bin").write_bytes(weights.tobytes())
    model = genesis.load_onnx(external(path, "inner/w.bin", offset=8, length=12))
    found = model(genesis.zeros(2, 3)).detach().numpy()
    np.testing.assert_array_equal(found, np.broadcast_to(weights[2:], (2, 3)))
    (path.parent / "inner" / "w.bin").unlink()  # nothing of it is read later
    assert np.array_equal(model(genesis.zeros(2, 3)).detach().numpy(), found)


@pytest.mark.parametrize(
    ("location", "options", "said"),
    [
        ("../secret.bin", {}, "expected weights in the model's folder, got '../secret.bin'"),
        ("inner/../../secret.bin", {}, "expected weights in the model's folder"),
        ("link.bin", {}, "expected weights in the model's folder"),
        ("linked/secret.bin", {}, "expected weights in the model's folder"),
        ("w.bin", {"offset": 4}, "expected 12 bytes in 'w.bin', got 12 bytes from 4 of 12"),
        ("w.bin", {"length": 8}, "expected 12 bytes in 'w.bin', got 8 bytes from 0 of 12"),
        ("w.bin", {"offset": -4, "length": 12}, "got 12 bytes from -4 of 12|damaged|not an ONNX file"),
        ("inner", {}, "expected a regular file"),
        ("pipe", {}, "expected a regular file"),
        ("", {}, "expected a regular file|damaged|not an ONNX file"),
    ],
)
def test_weights_elsewhere_are_not_read(location: str, options: dict[str, int], said: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "inner").mkdir(parents=True)
    secret = tmp_path / "secret.bin"
    secret.write_bytes(normal(3).tobytes())
    (folder / "w.bin").write_bytes(normal(3).tobytes())
    (folder / "link.bin").symlink_to(secret)
    (folder / "linked").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe")
    refused(external(folder / "m.onnx", location, **options), said)
    refused(external(folder / "m.onnx", str(secret)), "expected weights in the model's folder")
    with pytest.raises(FileNotFoundError):
        genesis.load_onnx(external(folder / "m.onnx", "none.bin"))


# --- what a run allocates ---------------------------------------------------------------------------------------------

HUGE = np.array([2**40], np.int64)


@pytest.mark.parametrize(
    ("node", "weights"),
    [
        (helper.make_node("ConstantOfShape", ["n"], ["y"]), {"n": HUGE}),
        (helper.make_node("ConstantOfShape", ["n"], ["y"]), {"n": np.full(3, 2**21)}),
        (
            helper.make_node("Range", ["zero", "n", "one"], ["y"]),
            {"zero": np.array(0), "n": HUGE[0], "one": np.array(1)},
        ),
        (helper.make_node("Range", ["zero", "n", "zero"], ["y"]), {"zero": np.array(0), "n": HUGE[0]}),
        (helper.make_node("Tile", ["x", "n"], ["y"]), {"n": np.array([2**20, 2**20])}),
        (helper.make_node("Expand", ["x", "n"], ["y"]), {"n": np.array([2**40, 1, 1])}),
        (helper.make_node("Pad", ["x", "n"], ["y"]), {"n": np.array([2**40, 0, 0, 0])}),
        (helper.make_node("OneHot", ["i", "n", "v"], ["y"]), {"i": np.arange(99), "n": HUGE, "v": np.zeros(2)}),
    ],
    ids=lambda value: getattr(value, "op_type", ""),
)
def test_numbers_of_a_file_allocate_nothing_huge(node: Any, weights: dict[str, Any], path: Path) -> None:
    operands = ["y", "y"] if node.op_type == "OneHot" else ["x", "y"]
    use = helper.make_node("Add", operands, ["z"])
    model = genesis.load_onnx(write(path, [node, use], X, ["z"], weights))
    with pytest.raises(ValueError, match="expected at most"):
        model(genesis.tensor(X["x"]))


# --- any bytes --------------------------------------------------------------------------------------------------------


def test_bytes_that_were_changed(path: Path) -> None:
    """A file with wrong bytes gives a network or one of Genesis' errors, whatever they are."""
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
    export.onnx(model, genesis.randn(1, 1, 4, 4), path, [0], check=False)
    whole, rng = path.read_bytes(), random.Random(0)
    outcomes = set()
    for _ in range(400):
        damaged = bytearray(whole[: rng.choice((len(whole), rng.randrange(len(whole))))])
        for _ in range(rng.randint(1, 6)):
            if damaged:
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged)
        try:
            genesis.load_onnx(path)
            outcomes.add("loaded")
        except (GenesisError, OSError) as error:
            outcomes.add("refused" if str(path.parent) in str(error) else str(error))
    assert outcomes == {"loaded", "refused"}
