"""load() and load_inline(): CUDA C++ to kernels that are called like functions."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from genesis.autograd.modes import Constant
from genesis.backends.cuda import driver
from genesis.backends.cuda.nvrtc.program import Program, base_name
from genesis.cuda.kernel import Kernel
from genesis.errors import DeviceError, describe

_ANY_ARCH = "sm_90"  # where there is no GPU, sources are compiled for this one, so that their errors show
_REFUSED = {  # flags, and what is there instead
    "-I": "include_dirs= for this",
    "--include-path": "include_dirs= for this",
    "-arch": "no architecture: it is the device's",
    "--gpu-architecture": "no architecture: it is the device's",
}


class Module(Constant):
    """Kernels that were compiled together: `module.vector_add(…)`, `module["scale<float>"](…)`. Made by
    `genesis.cuda.load_inline`.

    A template is compiled for the arguments in brackets when it is first asked for, unless load() was told them.
    """

    def __init__(self, name: str, programs: Sequence[Program], functions: Sequence[str] | None) -> None:
        self.name = name
        self._programs = programs
        self._kernels: dict[str, Kernel] = {}
        self._units: list[tuple[Program, tuple[str, ...]]] = []  # what is compiled together
        wanted = self._declared()
        if functions is not None:
            wanted = [(self._owner(each, "functions"), each) for each in _texts(name, "functions", functions)]
        for program in programs:
            expressions = tuple(expression for owner, expression in wanted if owner is program)
            self._units.append((program, expressions))
            for expression in expressions:
                self._kernels[_plain(expression)] = Kernel(program, expressions, expression)
        self._compile_now()

    @property
    def functions(self) -> list[str]:
        """The names of its kernels; those of templates as they were asked for.

        Example:
            >>> genesis.cuda.load_inline("none", 'extern "C" __global__ void nothing() {}').functions
            ['nothing']
        """
        return [kernel.name for kernel in self._kernels.values()]

    def __getattr__(self, name: str) -> Kernel:
        if name.startswith("__") or "_kernels" not in vars(self):  # Python's own questions, as of copy()
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(error.args[0]) from None

    def __getitem__(self, name: str) -> Kernel:
        """The kernel of this name, or a template with its arguments: module["scale<float, 4>"]."""
        if not isinstance(name, str):
            raise TypeError(describe(self.name, "name", "the name of a kernel", repr(name)))
        kernel = self._kernels.get(_plain(name))
        if kernel is None:
            try:
                owner = self._owner(name, "name")
            except ValueError as error:
                raise KeyError(str(error)) from None
            kernel = self._kernels[_plain(name)] = Kernel(owner, (name,), name)
        return kernel

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.functions]

    def __repr__(self) -> str:
        return f"<genesis.cuda module {self.name}: {', '.join(self.functions) or 'no kernels'}>"

    def cubins(self, arch: str) -> list[bytes]:
        """Compile for an architecture; takes no GPU.

        Args:
            arch: such as "sm_80".
        Returns: one cubin per source.
        Raises: CompileError: the compiler's text.

        Example:
            >>> module = genesis.cuda.load_inline("none", 'extern "C" __global__ void nothing() {}')
            >>> [cubin[1:4] for cubin in module.cubins("sm_80")]
            [b'ELF']
        """
        return [program.compiled(arch, expressions).cubin for program, expressions in self._units]

    def build_ahead(self, arch: str) -> list[Path]:
        """Write the cubins for an architecture next to the sources, where load() finds them without a compiler.

        Args:
            arch: such as "sm_80".
        Returns: the files.
        Raises: ValueError: a module of load_inline(), which has no files. CompileError: the compiler's text.

        Example:
            >>> import pathlib, tempfile
            >>> source = pathlib.Path(tempfile.mkdtemp(), "nothing.cu")
            >>> written = source.write_text('extern "C" __global__ void nothing() {}')
            >>> [path.suffix for path in genesis.cuda.load("nothing", source).build_ahead("sm_80")]
            ['.cubin']
        """
        paths = []
        for program, expressions in self._units:
            path = program.ahead_path(arch)
            if path is None:
                raise ValueError(describe("build_ahead", "self", "a module of load(), which has files", repr(self)))
            program.build_ahead(arch, expressions, path)
            paths.append(path)
        return paths

    def _declared(self) -> list[tuple[Program, str]]:
        """Every kernel that needs no template arguments."""
        return [
            (program, name)
            for program in self._programs
            for name, declaration in program.kernels.items()
            if declaration.template is None
        ]

    def _owner(self, expression: str, argument: str) -> Program:
        """The program that declares a kernel."""
        name = base_name(expression)
        for program in self._programs:
            found = program.kernels.get(name)
            if found is not None and (found.template is None) == ("<" not in expression):
                return program
            if found is not None:
                names = ", ".join(parameter for parameter, _ in found.template or ())
                expected = (
                    f"{name}<{names}>, with its template's arguments" if found.template else f"{name}, no template"
                )
                raise ValueError(describe(self.name, argument, expected, expression))
        known = [name for program in self._programs for name in program.kernels]
        close = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        expected = f"one of the kernels {', '.join(known) or '(there are none)'}"
        raise ValueError(describe(self.name, argument, expected, f"{expression}{hint}"))

    def _compile_now(self) -> None:
        """Compile, so that errors show here, also on a machine that has the compiler but no GPU."""
        try:
            arch = f"sm_{driver.get().properties(_current_device()).compute_capability}"
            real = driver.get().name != "simulated"
        except DeviceError:
            arch, real = _ANY_ARCH, False
        try:
            self.cubins(arch)
        except DeviceError:  # no compiler
            if real:
                raise


def load_inline(
    name: str,
    cuda_sources: str | Sequence[str],
    functions: Sequence[str] | None = None,
    options: Sequence[str] = (),
    include_dirs: Sequence[str | os.PathLike[str]] = (),
) -> Module:
    """Compile CUDA C++ from a string.

    Compiled once: the cache on disk (GENESIS_CACHE_DIR) knows the source, the headers that it includes, the options,
    the architecture and the compiler.

    Args:
        name: of the module, for messages and the cache.
        cuda_sources: the source, or several, which are compiled as one.
        functions: kernels to compile; templates with their arguments, "scale<float>". By default every kernel that is
            no template.
        options: flags of NVRTC: "--use_fast_math", "-DTILE=16", "-lineinfo".
        include_dirs: folders with your headers. cuda_fp16.h, mma.h and CUB are found without.
    Returns: a module with a callable per kernel.
    Raises: CompileError: the compiler's text: file, line, the source line and the place in it;
        ValueError: functions names a kernel that is not there.

    Example:
        >>> module = genesis.cuda.load_inline("doubling", '''
        ... extern "C" __global__ void twice(const float* x, float* y, int n) {
        ...     int i = blockIdx.x * blockDim.x + threadIdx.x;
        ...     if (i < n) y[i] = 2 * x[i];
        ... }''')
        >>> module.twice
        <kernel twice(const float* x, float* y, int n)>
    """
    sources = [cuda_sources] if isinstance(cuda_sources, str) else _texts("load_inline", "cuda_sources", cuda_sources)
    file_name = f"{_checked_name('load_inline', name)}.cu"
    if len(sources) > 1:  # each keeps its own line numbers
        sources = [f'#line 1 "{name}_{index}.cu"\n{source}' for index, source in enumerate(sources)]
    flags, folders = _checked("load_inline", options, include_dirs)
    return Module(name, [Program(name, "\n".join(sources), file_name, None, flags, folders)], functions)


def load(
    name: str,
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    functions: Sequence[str] | None = None,
    options: Sequence[str] = (),
    include_dirs: Sequence[str | os.PathLike[str]] = (),
) -> Module:
    """Compile CUDA C++ from files.

    Each file is compiled by itself; what they share stands in headers, which are looked for beside the file first. A
    cubin that `genesis kernels build` left beside a source is taken without compiling, if it was made of this source.

    Args:
        name, functions, options, include_dirs: as in `genesis.cuda.load_inline`.
        sources: a file, or several.
    Returns: a module with a callable per kernel.
    Raises: FileNotFoundError: there is no such file. CompileError, ValueError: as load_inline.

    Example:
        >>> import pathlib, tempfile
        >>> source = pathlib.Path(tempfile.mkdtemp(), "copy.cu")
        >>> text = 'extern "C" __global__ void copy(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }'
        >>> written = source.write_text(text)
        >>> genesis.cuda.load("copying", source).copy
        <kernel copy(const float* x, float* y)>
    """
    paths = [Path(path) for path in ([sources] if isinstance(sources, str | os.PathLike) else sources)]
    flags, folders = _checked("load", options, include_dirs)
    _checked_name("load", name)
    programs = [
        Program(name, path.read_text(encoding="utf-8"), str(path), path.resolve().parent, flags, folders)
        for path in paths
    ]
    return Module(name, programs, functions)


def _checked_name(op: str, name: str) -> str:
    if not isinstance(name, str) or not re.fullmatch(r"\w[\w.-]*", name):
        raise ValueError(describe(op, "name", "letters, digits, '_', '-' and '.'", repr(name)))
    return name


def _texts(op: str, argument: str, given: object) -> list[str]:
    """A list of strings, checked."""
    listed = list(given) if isinstance(given, list | tuple) else [given]
    texts = [each for each in listed if isinstance(each, str)]
    if not isinstance(given, list | tuple) or len(texts) < len(listed):
        kinds = ", ".join(repr(each) if isinstance(each, str) else type(each).__name__ for each in listed)
        raise ValueError(describe(op, argument, "a list of strings", kinds))
    return texts


def _checked(
    op: str, options: object, include_dirs: Sequence[str | os.PathLike[str]]
) -> tuple[tuple[str, ...], tuple[Path, ...]]:
    if isinstance(include_dirs, str):
        raise ValueError(describe(op, "include_dirs", "a list of strings", repr(include_dirs)))
    flags = _texts(op, "options", options)
    for option in flags:
        for flag, instead in _REFUSED.items():
            if option.startswith(flag):
                raise ValueError(describe(op, "options", instead, repr(option)))
    folders = tuple(Path(folder).resolve() for folder in include_dirs)
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(describe(op, "include_dirs", "folders that exist", folder))
    return tuple(flags), folders


def _plain(expression: str) -> str:
    return "".join(expression.split())


def _current_device() -> int:
    from genesis.cuda.device import current_device

    return current_device()
