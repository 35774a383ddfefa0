"""Compiling, and keeping what was compiled: by content, atomically, for several processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from genesis.backends.cuda.driver import nvrtc
from genesis.backends.cuda.nvrtc import program, store
from genesis.backends.cuda.nvrtc.program import Program
from genesis.backends.cuda.nvrtc.store import Entry
from genesis.errors import CompileError, DeviceError
from genesis.settings import override

SOURCE = '#ifndef VALUE\n#define VALUE 1\n#endif\nextern "C" __global__ void fill(float* x) { x[0] = VALUE; }\n'
PLAIN = 'extern "C" __global__ void fill(float* x) { x[0] = 1; }\n'
ELF = b"\x7fELF"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, on disk and in this process; gives its folder."""
    monkeypatch.setattr(program, "_compiled", {})
    with override(cache_dir=tmp_path / "cache"):
        yield tmp_path / "cache" / "kernels"


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The architectures for which the compiler was asked, one by one."""
    calls: list[str] = []
    original = nvrtc.compile_cubin

    def counted(source: str, file_name: str, arch: str, *rest: object) -> nvrtc.Compiled:
        calls.append(arch)
        return original(source, file_name, arch, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(nvrtc, "compile_cubin", counted)
    return calls


def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process."""
    monkeypatch.setattr(program, "_compiled", {})


def make(source: str = PLAIN, **changes: object) -> Program:
    return Program(**{"name": "test", "source": source, "file_name": "test.cu", "folder": None, **changes})  # type: ignore[arg-type]


def test_a_second_process_finds_it(cache: Path, compilations: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    first = make().compiled("sm_90", ("fill",))
    fresh(monkeypatch)
    second = make().compiled("sm_90", ("fill",))
    assert first == second
    assert first.cubin[:4] == ELF
    assert compilations == ["sm_90"]
    (entry,) = cache.iterdir()
    assert entry.name.startswith("test-")


def test_in_one_process_the_disk_is_read_once(cache: Path, compilations: list[str]) -> None:
    first = make().compiled("sm_90", ("fill",))
    next(cache.iterdir()).unlink()
    assert make().compiled("sm_90", ("fill",)) is first
    assert compilations == ["sm_90"]


def test_threads_compile_side_by_side_and_each_program_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "_locks", {})
    both = threading.Barrier(2)
    compiled: list[str] = []

    def compile(self: Program, arch: str, expressions: Sequence[str]) -> Entry:
        both.wait(10)  # raises where the other program waits for this one
        compiled.append(self.name)
        return Entry(ELF, {}, "")

    monkeypatch.setattr(Program, "compile", compile)
    threads = [
        threading.Thread(target=lambda name: make(name=name).compiled("sm_90", ("fill",)), args=(name,))
        for name in ("first", "second", "first", "second")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(compiled) == ["first", "second"]


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "text"])
def test_a_corrupted_entry_is_compiled_again(
    cache: Path, compilations: list[str], monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    first = make().compiled("sm_90", ("fill",))
    (path,) = cache.iterdir()
    whole = path.read_bytes()
    flipped = whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:]
    path.write_bytes({"cut": whole[:-1], "flipped": flipped, "empty": b"", "text": b"no entry\n{}\n"}[damage])
    fresh(monkeypatch)
    assert make().compiled("sm_90", ("fill",)) == first
    assert len(compilations) == 2
    assert path.read_bytes() == whole


def test_all_that_decides_is_in_the_key(cache: Path, compilations: list[str], tmp_path: Path) -> None:
    header = tmp_path / "value.h"
    header.write_text("#define VALUE 5\n")
    included = f'#include "{header.name}"\n{SOURCE}'
    cubins = {
        make(SOURCE).compiled("sm_90", ("fill",)).cubin,
        make(SOURCE, options=("-DVALUE=2",)).compiled("sm_90", ("fill",)).cubin,
        make(SOURCE.replace("1", "3")).compiled("sm_90", ("fill",)).cubin,
        make(SOURCE).compiled("sm_80", ("fill",)).cubin,
        make(included, include_dirs=(tmp_path,)).compiled("sm_90", ("fill",)).cubin,
    }
    header.write_text("#define VALUE 6\n")
    cubins.add(make(included, include_dirs=(tmp_path,), options=("-DOTHER",)).compiled("sm_90", ("fill",)).cubin)
    assert len(cubins) == len(compilations) == len(list(cache.iterdir())) == 6


def test_a_changed_header_compiles_again(
    cache: Path, compilations: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "value.h").write_text("#define VALUE 5\n")
    first = make(f'#include "value.h"\n{SOURCE}', folder=tmp_path).compiled("sm_90", ("fill",))
    (tmp_path / "value.h").write_text("#define VALUE 6\n")
    fresh(monkeypatch)
    second = make(f'#include "value.h"\n{SOURCE}', folder=tmp_path).compiled("sm_90", ("fill",))
    assert first.cubin != second.cubin
    assert len(compilations) == 2


@pytest.mark.parametrize("how", ["beside", "include_dirs", "absolute", "current folder", "option"])
def test_a_header_that_is_changed_in_a_running_process_is_noticed(
    how: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = tmp_path / "value.h"
    name = {"absolute": f'"{header}"', "include_dirs": "<value.h>"}.get(how, '"value.h"')
    source = SOURCE if how == "option" else f"#include {name}\n{SOURCE}"
    changes: Any = {
        "beside": {"folder": tmp_path},
        "include_dirs": {"include_dirs": (tmp_path,)},
        "option": {"options": (f"--pre-include={header}",)},
    }.get(how, {})
    monkeypatch.chdir(tmp_path if how == "current folder" else Path("/"))
    cubins = []
    for value in (5, 6):
        header.write_text(f"#define VALUE {value}\n")
        cubins.append(make(source, **changes).compiled("sm_90", ("fill",)).cubin)
    assert cubins[0] != cubins[1]


def test_another_compiler_compiles_again(cache: Path, compilations: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    make().compiled("sm_90", ("fill",))
    fresh(monkeypatch)
    monkeypatch.setattr(nvrtc, "identity", lambda headers: "a newer one")
    make().compiled("sm_90", ("fill",))
    assert len(compilations) == 2


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh(monkeypatch)
    (tmp_path / "file").write_text("in the way")
    with override(cache_dir=tmp_path / "file"), pytest.warns(UserWarning, match="test: the compiled kernels could not"):
        assert make().compiled("sm_90", ("fill",)).cubin[:4] == ELF


def test_a_failed_write_leaves_the_entry_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "entry"
    store.write(path, Entry(b"first", {}, "key"))
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        store.write(path, Entry(b"second", {}, "key"))
    assert store.read(path) == Entry(b"first", {}, "key")
    assert list(tmp_path.iterdir()) == [path]


PROCESS = """
import sys
from genesis.backends.cuda.nvrtc.program import Program
made = Program("test", sys.argv[1], "test.cu", None).compiled("sm_90", ("fill",))
print(made.cubin[:4])
"""


def test_two_processes_at_once(tmp_path: Path) -> None:
    environment = {**os.environ, "GENESIS_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", PROCESS, PLAIN]
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate()[0].strip() for process in running] == ["b'\\x7fELF'"] * 2
    (path,) = (tmp_path / "kernels").iterdir()
    entry = store.read(path)
    assert entry is not None
    assert entry.cubin[:4] == ELF


# --- built ahead ------------------------------------------------------------------------------------------------------


def test_built_ahead_needs_no_compiler(cache: Path, compilations: list[str], tmp_path: Path) -> None:
    ahead = make(folder=tmp_path)
    path = ahead.ahead_path("sm_80")
    assert path == tmp_path / "test.test.sm_80.cubin"
    ahead.build_ahead("sm_80", ("fill",), path)
    assert make(folder=tmp_path).compiled("sm_80", ("fill",)).cubin[:4] == ELF
    assert make(folder=tmp_path).compiled("sm_86", ("fill",)).cubin[:4] == ELF  # runs what sm_80 runs
    assert compilations == ["sm_80"]
    make(folder=tmp_path).compiled("sm_90", ("fill",))  # another generation
    make(PLAIN + "// changed since", folder=tmp_path).compiled("sm_80", ("fill",))
    assert compilations == ["sm_80", "sm_90", "sm_80"]
    assert make(folder=tmp_path).compiled("sm_90a", ("fill",)).cubin[:4] == ELF
    assert compilations[3:] == ["sm_90a"]


# --- the compiler -----------------------------------------------------------------------------------------------------


SIXTEEN_BITS = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
extern "C" __global__ void fill(__half* x, __nv_bfloat16* y) {}
"""
STANDARD = """
#include <cuda_runtime.h>
#include <cassert>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
extern "C" __global__ void fill(float* x, std::int64_t n) {
    assert(n);
    printf("%d", INT_MAX);
    x[n] = sqrtf(FLT_MAX) + INFINITY;
}
"""
INTEGERS = 'extern "C" __global__ void fill(const uint8_t* x, int64_t n, size_t m) {}'  # known without a header
TENSOR_CORES = """
#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void fill(const __half* x) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> a;
    wmma::load_matrix_sync(a, x, 16);
}
"""


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("source", [SIXTEEN_BITS, STANDARD, INTEGERS, TENSOR_CORES], ids=range(4))
def test_headers_are_found(source: str, arch: str) -> None:
    assert nvrtc.compile_cubin(source, "test.cu", arch, (), (), ()).cubin[:4] == ELF


def test_cub_is_found(cache: Path) -> None:
    source = """
#include <cub/warp/warp_reduce.cuh>
extern "C" __global__ void sum(const float* x, float* y) {
    using Reduce = cub::WarpReduce<float>;
    __shared__ Reduce::TempStorage storage;
    float total = Reduce(storage).Sum(x[threadIdx.x]);
    if (threadIdx.x == 0) y[0] = total;
}"""
    assert nvrtc.compile_cubin(source, "test.cu", "sm_90", (), (), ()).cubin[:4] == ELF


def test_a_syntax_error_is_shown_as_the_compiler_gave_it() -> None:
    with pytest.raises(CompileError) as error:
        nvrtc.compile_cubin("\n__global__ void f(float* x) { x[0] = missing; }", "mine.cu", "sm_90", (), (), ())
    assert str(error.value).startswith(
        "mine.cu does not compile for sm_90:\n"
        'mine.cu(2): error: identifier "missing" is undefined\n'
        "  __global__ void f(float* x) { x[0] = missing; }\n"
        "                                       ^\n"
    )


@pytest.mark.parametrize(
    ("header", "hint"),
    [
        ("mine.h", "folders with headers can be given as include_dirs"),
        ("cub/nowhere.cuh", "cub/nowhere.cuh comes with the package nvidia-cuda-cccl"),
        ("cuda_nowhere.h", "cuda_nowhere.h comes with the package nvidia-cuda-runtime"),
    ],
)
def test_a_missing_header(header: str, hint: str) -> None:
    with pytest.raises(CompileError, match="source file") as error:
        nvrtc.compile_cubin(f"#include <{header}>\n", "mine.cu", "sm_90", (), (), ())
    assert f'mine.cu(1): catastrophic error: cannot open source file "{header}"' in str(error.value)
    assert hint in str(error.value)


@pytest.mark.parametrize(
    ("arch", "options", "problem"),
    [("sm_999", (), "gpu-architecture"), ("sm_90", ("--no-such-flag",), "unrecognized option --no-such-flag")],
)
def test_what_the_compiler_does_not_know(arch: str, options: tuple[str, ...], problem: str) -> None:
    with pytest.raises(CompileError, match=problem):
        nvrtc.compile_cubin(PLAIN, "mine.cu", arch, options, (), ())


def test_an_empty_log_leaves_pythons_own_bytes_alone() -> None:
    """bytes of length 1 are shared by the whole process; the compiler's log of nothing is a single zero."""
    nvrtc.compile_cubin(PLAIN, "mine.cu", "sm_90", (), (), ())
    assert [bytes([code])[0] for code in range(256)] == list(range(256))


def test_warnings_are_shown(cache: Path) -> None:
    with pytest.warns(UserWarning, match='test: test.cu.1.: warning.*"unused" was declared but never referenced'):
        make('extern "C" __global__ void fill(float* x) { int unused; }').compiled("sm_90", ("fill",))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(PLAIN).compiled("sm_90", ("fill",))


def test_the_language_can_be_chosen() -> None:
    source = "template <typename T> concept Any = true;\n" + PLAIN
    with pytest.raises(CompileError, match="concept"):
        nvrtc.compile_cubin(source, "mine.cu", "sm_90", (), (), ())
    assert nvrtc.compile_cubin(source, "mine.cu", "sm_90", ("--std=c++20",), (), ()).cubin[:4] == ELF


def test_without_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    nvrtc._library.cache_clear()
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", None)
    monkeypatch.delattr("cuda.bindings.nvrtc", raising=False)
    try:
        with pytest.raises(DeviceError, match=r"NVRTC, .* is not installed .*; pip install 'genesis-dl\[cuda\]'"):
            nvrtc.compile_cubin(PLAIN, "mine.cu", "sm_90", (), (), ())
    finally:
        nvrtc._library.cache_clear()
