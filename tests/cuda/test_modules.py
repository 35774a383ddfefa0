"""load() and load_inline(): modules, their kernels, and what is wrong with a call."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis.errors import CompileError, DeviceError, DTypeError, ShapeError
from genesis.settings import override

SOURCE = """
#include <cuda_fp16.h>
extern "C" __global__ void vector_add(const float* a, const float* b, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = a[i] + b[i];
}
template <typename T> __global__ void scale(T* x, T factor, int64_t n) {}
__global__ void __launch_bounds__(128) bounded(const float4* x, __half small, bool flag) {}
struct Pair { int a, b; };
__global__ void take(Pair pair) {}
"""


@pytest.fixture(scope="module")
def module() -> genesis.cuda.Module:
    return genesis.cuda.load_inline("test_modules", SOURCE)


# --- modules ----------------------------------------------------------------------------------------------------------


def test_kernels_by_name(module: genesis.cuda.Module) -> None:
    assert module.functions == ["vector_add", "bounded", "take"]  # a template is compiled when it is asked for
    assert "vector_add" in dir(module)
    assert copy.copy(module).vector_add is module.vector_add
    assert repr(module.vector_add) == "<kernel vector_add(const float* a, const float* b, float* out, int n)>"
    assert module["vector_add"] is module.vector_add
    assert module["scale< float >"] is module["scale<float>"]
    assert repr(module).startswith("<genesis.cuda module test_modules: vector_add, bounded, take")


def test_templates_named_at_once() -> None:
    module = genesis.cuda.load_inline("test_modules", SOURCE, functions=["scale<float>", "scale<double>", "vector_add"])
    assert module.functions == ["scale<float>", "scale<double>", "vector_add"]
    assert [cubin[:4] for arch in ("sm_80", "sm_90") for cubin in module.cubins(arch)] == [b"\x7fELF"] * 2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "vector_sub",
            "test_modules: argument 'name': expected one of the kernels .*, got vector_sub; did you mean vector",
        ),
        ("scale", "expected scale<T>, with its template's arguments, got scale"),
        ("vector_add<int>", "expected vector_add, no template, got vector_add<int>"),
    ],
)
def test_an_unknown_kernel(module: genesis.cuda.Module, name: str, message: str) -> None:
    with pytest.raises(AttributeError, match=message):
        getattr(module, name)
    with pytest.raises(KeyError, match=message):
        module[name]
    with pytest.raises(ValueError, match=message.replace("'name'", "'functions'")):
        genesis.cuda.load_inline("test_modules", SOURCE, functions=[name])


def test_a_syntax_error_shows_file_line_and_caret(tmp_path: Path) -> None:
    path = tmp_path / "broken.cu"
    path.write_text("// first line\n__global__ void f(float* x) {\n    x[0] = y;\n}\n")
    with pytest.raises(CompileError) as error:
        genesis.cuda.load("broken", path)
    assert f'{path}(3): error: identifier "y" is undefined\n      x[0] = y;\n             ^' in str(error.value)


def test_several_inline_sources_keep_their_lines() -> None:
    with pytest.raises(CompileError, match=r'two_1.cu\(2\): error: identifier "wrong" is undefined'):
        genesis.cuda.load_inline("two", ["__device__ int one;\n", "\n__global__ void f() { one = wrong; }"])


def test_files_with_headers(tmp_path: Path) -> None:
    (tmp_path / "shared.cuh").write_text("#pragma once\n__device__ int twice(int x) { return x * FACTOR; }\n")
    for name in ("a", "b"):
        (tmp_path / f"{name}.cu").write_text(
            f'#include "shared.cuh"\nextern "C" __global__ void {name}(int* x) {{ x[0] = twice(x[0]); }}\n'
        )
    module = genesis.cuda.load("files", [tmp_path / "a.cu", str(tmp_path / "b.cu")], options=["-DFACTOR=2"])
    assert module.functions == ["a", "b"]
    assert len(module.cubins("sm_80")) == 2
    with pytest.raises(CompileError, match=r'shared.cuh\(2\): error: identifier "FACTOR" is undefined'):
        genesis.cuda.load("files", tmp_path / "a.cu")


def test_kernels_in_a_header(tmp_path: Path) -> None:
    (tmp_path / "kernels.cuh").write_text('extern "C" __global__ void inside(int* x) {}\n')
    module = genesis.cuda.load_inline("outside", "#include <kernels.cuh>\n", include_dirs=[tmp_path])
    assert module.functions == ["inside"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "a/b"}, "load_inline: argument 'name': expected letters, digits, '_', '-' and '.', got 'a/b'"),
        ({"options": "-lineinfo"}, "argument 'options': expected a list of strings, got '-lineinfo'"),
        ({"options": ["-lineinfo", 3]}, "argument 'options': expected a list of strings, got '-lineinfo', int"),
        ({"functions": "vector_add"}, "refused: argument 'functions': expected a list of strings, got 'vector_add'"),
        ({"cuda_sources": b"x"}, "argument 'cuda_sources': expected a list of strings, got bytes"),
        ({"cuda_sources": None}, "argument 'cuda_sources': expected a list of strings, got NoneType"),
        ({"name": None}, "argument 'name': expected letters, .*, got None"),
        ({"options": ["-Ifolder"]}, "argument 'options': expected include_dirs= for this, got '-Ifolder'"),
        ({"options": ["-arch=sm_80"]}, "argument 'options': expected no architecture"),
        ({"include_dirs": ["nowhere"]}, "argument 'include_dirs': expected folders that exist, got .*nowhere"),
    ],
)
def test_what_load_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        genesis.cuda.load_inline(**{"name": "refused", "cuda_sources": SOURCE, **changes})


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.cu"):
        genesis.cuda.load("nowhere", tmp_path / "nowhere.cu")


def test_without_gpu_and_compiler_a_module_still_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise DeviceError("no compiler")

    monkeypatch.setattr("genesis.backends.cuda.nvrtc.program.Program.compiled", missing)
    with override(cuda="off"):
        assert genesis.cuda.load_inline("test_modules", SOURCE).functions[0] == "vector_add"


# --- calls: what is refused, before anything is launched --------------------------------------------------------------


@pytest.fixture
def tensors(simulated: None) -> dict[str, Any]:
    x = genesis.ones(6, device="cuda")
    return {
        "x": x,
        "out": genesis.empty(6, device="cuda"),
        "double": x.double(),
        "cpu": genesis.ones(6),
        "turned": genesis.ones(2, 3, device="cuda").t(),
        "elsewhere": genesis.ones(6, device="cuda:1"),
        "part": genesis.ones(7, device="cuda")[1:],
        "torch": torch.ones(6),
    }


WHOLE = r"\(const float\* a, const float\* b, float\* out, int n\)"


@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        ("x x out", DTypeError, f"vector_add: expected 4 arguments {WHOLE}, got 3: 'n' missing"),
        ("x", DTypeError, "got 1: 'b', 'out', 'n' missing"),
        ("x x out 6 6", DTypeError, f"expected 4 arguments {WHOLE}, got 5: 1 too many"),
        ("double x out 6", DTypeError, r"argument 'a': expected a float32 tensor \(const float\* a\), got float64"),
        ("x cpu out 6", DeviceError, "argument 'b': expected a tensor on a CUDA device, got one on the CPU"),
        ("x torch out 6", DeviceError, "argument 'b': expected a tensor on a CUDA device, got one on the CPU"),
        ("x 3 out 6", DTypeError, r"argument 'b': expected a tensor \(const float\* b\), got int 3"),
        ("x x turned 6", ShapeError, r"argument 'out': expected a contiguous tensor .*, got strides \(1, 3\)"),
        ("x elsewhere out 6", DeviceError, "vector_add: expected all tensors on one device, got cuda:0 and cuda:1"),
        ("x x out x", DTypeError, r"argument 'n': expected a number \(int n\), got a Tensor"),
        ("x x out 2.5", DTypeError, r"argument 'n': expected an integer \(int n\), got 2.5"),
        ("x x out 2147483648", ValueError, "argument 'n': expected a number from -2147483648 to 2147483647"),
    ],
)
def test_wrong_arguments(
    module: genesis.cuda.Module, tensors: dict[str, Any], args: str, error: type[Exception], message: str
) -> None:
    given = [tensors[word] if word in tensors else float(word) if "." in word else int(word) for word in args.split()]
    with pytest.raises(error, match=message):
        module.vector_add(*given)


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        ({"grid": -1}, r"vector_add: argument 'grid': expected 1 to 3 integers from 0 to 2147483647, .*, got -1"),
        ({"grid": (1, 70000)}, r"argument 'grid': .* 65535, 65535, got \(1, 70000\)"),
        ({"grid": [1, 1, 1, 1]}, r"argument 'grid': expected 1 to 3 integers"),
        ({"grid": "many"}, "argument 'grid': .* got 'many'"),
        ({"grid": 1.5}, "argument 'grid': .* got 1.5"),
        ({"grid": lambda *args: None}, r"argument 'grid': expected 1 to 3 integers .* got \(\)"),
        ({"grid": lambda *args: (args[3], -1)}, r"argument 'grid': .* got \(6, -1\)"),
        ({"block": 0}, "argument 'block': expected 1 to 3 integers from 1 to 1024, 1024, 64, got 0"),
        ({"block": (1, 1, 65)}, "argument 'block': expected 1 to 3 integers"),
        ({"block": (32, 33)}, r"argument 'block': expected at most 1024 threads, got 1056: \(32, 33\)"),
        ({"shared": -1}, "argument 'shared': expected a number of bytes, at least 0, got -1"),
    ],
)
def test_wrong_launches(
    module: genesis.cuda.Module, tensors: dict[str, Any], launch: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        module.vector_add(tensors["x"], tensors["x"], tensors["out"], 6, **launch)


def test_a_kernel_is_asked_for_by_its_name(module: genesis.cuda.Module) -> None:
    with pytest.raises(TypeError, match="test_modules: argument 'name': expected the name of a kernel, got 0"):
        module[0]  # type: ignore[index]


def test_numbers_at_the_edges(module: genesis.cuda.Module, tensors: dict[str, Any]) -> None:
    for small, flag in ((float("inf"), np.True_), (float("nan"), 1), (np.float16(-65504), False)):
        with pytest.raises(DeviceError, match="needs a GPU"):  # the checks have let it pass
            module.bounded(tensors["x"], small, flag)
    with pytest.raises(ValueError, match="'small': expected a number that a float holds"):
        module.bounded(tensors["x"], 10**400, True)
    with pytest.raises(ValueError, match=r"'flag': expected a number from 0 to 1 \(bool flag\), got 2"):
        module.bounded(tensors["x"], 1.0, 2)


def test_vectors_halves_and_bounds(module: genesis.cuda.Module, tensors: dict[str, Any]) -> None:
    with pytest.raises(ShapeError, match=r"'x': expected an address divisible by 16 \(const float4\* x\), got 0x"):
        module.bounded(tensors["part"], 1.0, True)
    with pytest.raises(ValueError, match="'small': expected at most 65504"):
        module.bounded(tensors["x"], 1e6, True)
    with pytest.raises(DTypeError, match="'small': expected a number"):
        module.bounded(tensors["x"], "x", True)
    with pytest.raises(ValueError, match="'flag': expected a number from 0 to 1"):
        module.bounded(tensors["x"], 1.0, 2)
    with pytest.raises(ValueError, match=r"at most 128 threads \(its launch bounds, or its registers\), got 256: 256"):
        module.bounded(tensors["x"], 1.0, True, block=256)


def test_a_struct_is_refused_with_the_reason(module: genesis.cuda.Module) -> None:
    with pytest.raises(
        DTypeError, match="take: parameter 'Pair pair' cannot be given from Python: the type Pair: a struct"
    ):
        module.take(3)


def test_a_signature_that_is_not_known_is_refused() -> None:
    module = genesis.cuda.load_inline(
        "either",
        """
        #if __CUDA_ARCH__ >= 1000
        extern "C" __global__ void f(double x) {}
        #else
        extern "C" __global__ void f(float x) {}
        #endif
        """,
    )
    with pytest.raises(
        DTypeError, match=r"f: its source declares the parameters \(double x\) or \(float x\), and which"
    ):
        module.f(1.0)


def test_the_simulated_device_says_that_it_cannot(module: genesis.cuda.Module, tensors: dict[str, Any]) -> None:
    for args in [("x", "x"), ("x", None)]:
        a, b = (tensors.get(name) if name else None for name in args)
        with pytest.raises(DeviceError, match=r"vector_add: CUDA C\+\+ needs a GPU; the simulated device runs Triton"):
            module.vector_add(a, b, tensors["out"], np.int32(6))
    with pytest.raises(DeviceError, match="needs a GPU"):
        module.vector_add(tensors["turned"], tensors["x"], tensors["out"], 6, strided=True)


def test_an_empty_tensor_launches_nothing(module: genesis.cuda.Module, simulated: None) -> None:
    x = genesis.empty(0, device="cuda")
    module.vector_add(x, x, x, 0)
    module.vector_add(x, x, x, 0, grid=[0])


def test_arrays_of_the_host_are_refused(module: genesis.cuda.Module) -> None:
    class Array:
        def __dlpack__(self, **_: Any) -> Any: ...
        def __dlpack_device__(self) -> tuple[int, int]:
            return 7, 0  # Vulkan

    with override(cuda="simulated"), pytest.raises(DeviceError, match="argument 'a': expected a tensor on a CUDA dev"):
        module.vector_add(Array(), Array(), Array(), 1)
