"""NVRTC: CUDA C++ to a cubin for any architecture, with no GPU, no nvcc and no C++ compiler.

The compiler and NVIDIA's headers come from wheels (or an installed toolkit); cuda-pathfinder finds both.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Callable, Sequence
from importlib import metadata
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple, TypeVar, overload

from genesis.backends.cuda.driver.standard_headers import HEADERS
from genesis.distribution import install_command
from genesis.errors import CompileError, DeviceError

if TYPE_CHECKING:
    from cuda.bindings.nvrtc import nvrtcProgram, nvrtcResult

T = TypeVar("T")
U = TypeVar("U")

_INSTALL = install_command("cuda")
_WHEELS = (  # where a header that was not found comes from
    (re.compile(r"mma\.h|crt/"), "nvidia-cuda-crt"),
    (re.compile(r"(cub|thrust|cuda|nv)/"), "nvidia-cuda-cccl"),
    (re.compile(r"cuda\w*\.h|cooperative_groups|vector_types"), "nvidia-cuda-runtime"),
)
_VERSION_FILES = ("cuda.h", "cuda_fp16.h", "mma.h", "cuda/std/__cccl/version.h")


class Compiled(NamedTuple):
    """The result of compiling one source."""

    cubin: bytes
    names: dict[str, str]  # name expression → the name of the function in the cubin
    log: str  # warnings


def compile_cubin(
    source: str, file_name: str, arch: str, options: Sequence[str], include_dirs: Sequence[str], names: Sequence[str]
) -> Compiled:
    """Compile one source for one architecture.

    Args:
        file_name: what errors call the source.
        arch: "sm_90".
        options: flags of NVRTC, such as "--use_fast_math" and "-DTILE=16".
        include_dirs: the user's folders; those with NVIDIA's headers are searched after them.
        names: name expressions, "scale<float>", of functions whose names C++ mangles.
    Raises: CompileError: with the compiler's own text: file, line, the source line, the place in it.
    """
    nvrtc = _library()
    flags = [f"--gpu-architecture={arch}", *([] if _names_standard(options) else ["--std=c++17"])]
    flags += ["--pre-include=stdint.h", *options, *[f"-I{folder}" for folder in (*include_dirs, *header_dirs())]]
    program = _check(
        nvrtc.nvrtcCreateProgram(
            source.encode(),
            file_name.encode(),
            len(HEADERS),
            [text.encode() for text in HEADERS.values()],
            [name.encode() for name in HEADERS],
        )
    )
    try:
        for name in names:
            _check(nvrtc.nvrtcAddNameExpression(program, name.encode()))
        (result,) = nvrtc.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])
        log = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).decode(errors="replace")
        log = log.rstrip("\0\n ")
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(_explained(file_name, arch, log or _describe(result)))
        cubin = _text(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
        lowered = {name: _check(nvrtc.nvrtcGetLoweredName(program, name.encode())).decode() for name in names}
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return Compiled(cubin, lowered, log)


@functools.cache
def header_dirs() -> tuple[str, ...]:
    """The folders with cuda_fp16.h, mma.h, and CUB."""
    runtime = _find_headers("cudart")
    folders = [runtime, _find_headers("cccl")]
    if runtime is None or not os.path.exists(os.path.join(runtime, "crt")):  # mma.h reads crt/mma.h
        folders.append(_find_headers("nvcc"))
    return tuple(dict.fromkeys(folder for folder in folders if folder is not None))


@functools.cache
def _find_headers(library: str) -> str | None:
    """Quick where pip has installed them; else pathfinder looks for a toolkit, in a tenth of a second."""
    try:
        from cuda import pathfinder

        return pathfinder.find_nvidia_header_directory(library)
    except (ImportError, RuntimeError):  # RuntimeError: a pathfinder that does not know this library
        return None


@functools.cache
def identity(headers: tuple[str, ...]) -> str:
    """Changes with the compiler, and with NVIDIA's headers if these are included.

    Neither loads the compiler nor looks for more than it must: a process that finds all in its cache starts at once.
    """
    digest = hashlib.sha256(_compiler_version().encode())
    needed = [name for name in headers if name not in HEADERS]
    runtime = _find_headers("cudart") if needed else None
    folders: tuple[str, ...] = () if runtime is None else (runtime,)
    if any(not os.path.exists(os.path.join(runtime or "", name)) for name in needed):
        folders = header_dirs()
    for folder in folders:
        for name in _VERSION_FILES:
            try:
                with open(os.path.join(folder, name), "rb") as file:
                    digest.update(file.read(1 << 16))
            except OSError:
                digest.update(b"absent")
    return digest.hexdigest()


def _compiler_version() -> str:
    for package in ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu13"):
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return str(_check(_library().nvrtcVersion()))


@functools.cache
def _library() -> ModuleType:
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError, OSError) as error:
        raise DeviceError(f"cuda: NVRTC, the compiler of CUDA C++, is not installed ({error}); {_INSTALL}") from error
    return nvrtc


def _names_standard(options: Sequence[str]) -> bool:
    return any(option.lstrip("-").startswith("std") for option in options)


def _text(
    ask_size: Callable[[nvrtcProgram], tuple[nvrtcResult, int]],
    fetch: Callable[[nvrtcProgram, bytearray], tuple[nvrtcResult]],
    program: nvrtcProgram,
) -> bytes:
    text = bytearray(_check(ask_size(program)))  # written into: bytes of length 1 are shared by all of Python
    _check(fetch(program, text))
    return bytes(text)


def _explained(file_name: str, arch: str, log: str) -> str:
    """The compiler's text, and what the user can do where that is known."""
    hint = ""
    missing = re.search(r'(?:could not|cannot) open source file "([^"]+)"', log)
    if missing:
        wheel = next((wheel for pattern, wheel in _WHEELS if pattern.match(missing[1])), None)
        hint = "\nfolders with headers can be given as include_dirs"
        if wheel is not None:
            hint = f"\n{missing[1]} comes with the package {wheel}: {_INSTALL}"
    return f"{file_name} does not compile for {arch}:\n{log}{hint}"


@overload
def _check(result: tuple[nvrtcResult]) -> tuple[()]: ...
@overload
def _check(result: tuple[nvrtcResult, T]) -> T: ...
@overload
def _check(result: tuple[nvrtcResult, T, U]) -> tuple[T, U]: ...
def _check(result: tuple[object, ...]) -> object:
    status: nvrtcResult = result[0]
    if int(status) != 0:
        raise CompileError(f"NVRTC: {_describe(status)}")
    return result[1] if len(result) == 2 else result[1:]


def _describe(result: nvrtcResult) -> str:
    return str(_library().nvrtcGetErrorString(result)[1].decode())
