"""Layouts of structures read from CUDA C++, against ctypes' own, and the members that Hopper's kernels are given."""

from __future__ import annotations

import ctypes

import pytest

from genesis import dtypes
from genesis.backends.cuda.engine.candidate import FULL
from genesis.backends.cuda.nvrtc import structure
from genesis.backends.cuda.ops.conv.candidates.implicit_gemm.candidate import launch_axes
from genesis.backends.cuda.ops.conv.candidates.wgmma import common as hopper
from genesis.backends.cuda.ops.conv.candidates.wgmma import forward as wgmma
from genesis.backends.cuda.ops.conv.candidates.wgmma import halo_tile as patch
from genesis.backends.cuda.ops.conv.candidates.wgmma import weight_grad as wgmma_weight_grad
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from genesis.backends.cuda.ops.conv_bn_relu import expand_1x1_hopper

SOURCE = """
#define COUNT int
struct Other { int a; };
struct Mixed {  // numbers of all sizes
  bool flag;
  COUNT rows, columns;
  long long offset;
  unsigned char kind;
  double weight;
#if WIDE
  int64_t extra;
#endif
  short last;
};
"""


class Mixed(ctypes.Structure):
    _fields_ = [
        ("flag", ctypes.c_bool),
        ("rows", ctypes.c_int),
        ("columns", ctypes.c_int),
        ("offset", ctypes.c_longlong),
        ("kind", ctypes.c_ubyte),
        ("weight", ctypes.c_double),
        ("last", ctypes.c_short),
    ]


def test_a_structure_lies_as_the_compiler_lays_it_out() -> None:
    found = structure.read("Mixed", SOURCE)
    values = {"flag": True, "rows": -2, "columns": 3, "offset": 2**40, "kind": 200, "weight": 0.25, "last": -7}
    packed = found.pack(**values)
    assert found.num_bytes == len(packed) == ctypes.sizeof(Mixed)
    theirs = Mixed.from_buffer_copy(packed)
    assert {name: getattr(theirs, name) for name in found.members} == values


def test_branches_follow_the_options() -> None:
    assert "extra" in structure.read("Mixed", SOURCE, ["-DWIDE=1"]).members


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("struct Other { int a; };", "struct Mixed: the source has none"),
        ("struct Mixed { int a[3]; };", r"struct Mixed: expected numbers as members, got int a \[ 3 \]"),
        ("struct Mixed { float* a; };", "expected numbers as members, got float"),
        ("struct Mixed { int a; int sum() { return a; } };", "expected numbers as members"),
        ("struct Mixed { Other a; };", "expected numbers as members, got Other a"),
    ],
)
def test_what_is_no_number_is_refused(source: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        structure.read("Mixed", source)


@pytest.mark.parametrize("given", [{"a": 1}, {"a": 1, "b": 2, "c": 3}], ids=["too few", "too many"])
def test_members_are_given_by_name(given: dict[str, float]) -> None:
    with pytest.raises(TypeError, match=r"Pair: expected a, b; missing or unknown: [bc]"):
        structure.Structure("Pair", {"a": "i", "b": "i"}).pack(**given)


def test_hoppers_kernels_are_given_their_members() -> None:
    shapes = ((2, 64, 16, 16), (64, 64, 3, 3), (1, 1), (1, 1))
    forward, input_grad, weight_grad = (
        ConvProblem(direction, *shapes, dtype=dtypes.bfloat16) for direction in (FORWARD, INPUT_GRAD, WEIGHT_GRAD)
    )
    candidate = wgmma.Wgmma(wgmma._SPLIT_SHAPES[1], 1, FULL)
    given = {
        wgmma._SOURCE: [wgmma._geometry(p, candidate, *launch_axes(p)[0])[-1] for p in (forward, input_grad)],
        patch._SOURCE: [patch.HaloTile(patch._SHAPES[0], FULL)._geometry(forward)[-1]],
        wgmma_weight_grad._SOURCE: [
            wgmma_weight_grad._geometry(weight_grad, wgmma_weight_grad._PLAIN_SHAPES[0], 1)[-1]
        ],
    }
    for source, geometries in given.items():
        for geometry in geometries:
            assert len(hopper.geometry(source).pack(**geometry)) == hopper.geometry(source).num_bytes
    expansion = hopper.geometry(expand_1x1_hopper._HEADER)
    assert expansion.members == ("num_rows", "num_inputs", "num_outputs", "vector_bytes", "relu")
    assert hopper.geometry(wgmma._SOURCE).num_bytes == 23 * 4 + 4 + 4 * 8
