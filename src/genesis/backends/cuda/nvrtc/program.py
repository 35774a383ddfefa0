"""One CUDA C++ source and what it is compiled to, for any architecture: built ahead, from the cache, or now.

Compiled: a cubin built ahead next to the source, if it was built from this very source (store.py has its key); else
the entry of the cache; else NVRTC compiles it and the cache keeps it.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from genesis.backends.cuda.driver import deferred
from genesis.backends.cuda.nvrtc import headers, signature, store
from genesis.backends.cuda.nvrtc.signature import Declaration
from genesis.backends.cuda.nvrtc.store import Entry
from genesis.backends.engine import cache
from genesis.settings import settings

_PRE_INCLUDE = re.compile(r"^(?:--pre-include|-include)[=\n](.*)$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Program:
    """A source with all that decides what it is compiled to: as it lies on the disk when the program is made."""

    name: str
    source: str
    file_name: str  # what the compiler's messages call it
    folder: Path | None  # where its own headers and what was built ahead lie
    options: tuple[str, ...] = ()
    include_dirs: tuple[Path, ...] = ()
    headers: tuple[tuple[str, str | None], ...] = dataclasses.field(init=False)  # name and text; None: not the user's

    def __post_init__(self) -> None:
        first = "".join(f'#include "{name}"\n' for name in _PRE_INCLUDE.findall("\n".join(self.options)))
        here = Path.cwd() if self.folder is None else self.folder  # where the compiler looks, for a string too
        found = headers.included(first + self.source, here, self.include_dirs)
        object.__setattr__(self, "headers", tuple(found.items()))

    @functools.cached_property
    def _found(self) -> tuple[dict[str, Declaration], dict[str, tuple[str, ...]]]:
        texts = [text for _, text in self.headers if text is not None]
        return signature.find([self.source, *texts], self.options)

    @property
    def kernels(self) -> Mapping[str, Declaration]:
        """The kernels that the source declares, and its headers do, by name."""
        return self._found[0]

    @property
    def aliases(self) -> Mapping[str, Sequence[str]]:
        return self._found[1]

    def key(self, expressions: Sequence[str]) -> str:
        """Hash the source, its headers, the options and the functions asked for; not compiler and architecture."""
        parts = [
            self.source,
            Path(self.file_name).name,
            self.options,
            sorted(self._header_parts()),
            sorted(expressions),
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def _header_parts(self) -> list[tuple[str, str]]:
        """Without the folders, which differ from machine to machine."""
        return [(Path(label).name, text or "") for label, text in self.headers]

    def compiled(self, arch: str, expressions: Sequence[str]) -> Entry:
        """The cubin for an architecture ("sm_90").

        Raises: CompileError: the compiler's text; DeviceError: there is no compiler.
        """
        key = (self, arch, tuple(expressions))
        with _lock:
            one_compiles = _locks.setdefault(key, threading.Lock())
        with one_compiles:
            known = _compiled.get(key)
            if known is None:
                known = _compiled[key] = self._built_ahead(arch, expressions) or self._cached(arch, expressions)
        return known

    def ahead_path(self, arch: str) -> Path | None:
        """Path of the cubin that is built ahead for this architecture."""
        return None if self.folder is None else self.folder / f"{Path(self.file_name).stem}.{self.name}.{arch}.cubin"

    def build_ahead(self, arch: str, expressions: Sequence[str], path: Path) -> None:
        """Compile, and write where compiled() looks on the machine that the files are brought to."""
        store.write(path, self.compile(arch, expressions))

    def _built_ahead(self, arch: str, expressions: Sequence[str]) -> Entry | None:
        """For this architecture, or an older one of its generation, whose cubins it runs too."""
        if self.folder is None:
            return None
        for candidate in _runnable(arch):
            path = self.ahead_path(candidate)
            entry = None if path is None else store.read(path)
            if entry is not None and entry.key == self.key(expressions):
                return entry
        return None

    def _cached(self, arch: str, expressions: Sequence[str]) -> Entry:
        from genesis.backends.cuda.driver import nvrtc

        theirs = tuple(sorted(name for name, text in self.headers if text is None))
        key = hashlib.sha256("\n".join([self.key(expressions), arch, nvrtc.identity(theirs)]).encode()).hexdigest()
        path = settings.cache_dir / "kernels" / f"{self.name}-{key[:40]}.cubin"
        entry: Entry | None = None
        try:
            cache.private_folder(path.parent)
            entry = store.read_cached(path)
            if entry is None and deferred.is_deferring():
                asked = (self, arch, tuple(expressions))
                deferred.require(deferred.Request.of(("nvrtc", *asked), Program._cached, *asked))
                entry = store.read_cached(path)
            if entry is None:
                entry = self.compile(arch, expressions)
                store.write_cached(path, entry)
        except OSError as error:  # a folder that cannot be written costs time, not the program
            warnings.warn(f"{self.name}: the compiled kernels could not be kept: {error}", stacklevel=2)
            return entry or self.compile(arch, expressions)
        return entry

    def compile(self, arch: str, expressions: Sequence[str]) -> Entry:
        """Compile now, whatever is there already."""
        from genesis.backends.cuda.driver import nvrtc

        folders = [self.folder, *self.include_dirs] if self.folder is not None else self.include_dirs
        names = [expression for expression in expressions if self._is_mangled(expression)]
        made = nvrtc.compile_cubin(self.source, self.file_name, arch, self.options, list(map(str, folders)), names)
        if made.log:
            warnings.warn(f"{self.name}: {made.log}", stacklevel=2)
        return Entry(made.cubin, made.names, self.key(expressions))

    def _is_mangled(self, expression: str) -> bool:
        declaration = self.kernels.get(base_name(expression))
        return declaration is None or declaration.mangled


_Key = tuple[Program, str, tuple[str, ...]]
_compiled: dict[_Key, Entry] = {}
_locks: dict[_Key, threading.Lock] = {}  # programs compile side by side, each once
_lock = threading.Lock()  # of _locks


def base_name(expression: str) -> str:
    """The kernel's name in a name expression: "scale" of "scale<float>"."""
    return expression.partition("<")[0].strip()


def _runnable(arch: str) -> list[str]:
    """The architectures whose cubins run on this one, itself first: sm_89 runs those of sm_86 and sm_80."""
    number = arch.removeprefix("sm_")
    if not number.isdigit():  # sm_90a: its instructions are there only
        return [arch]
    return [f"sm_{other}" for other in range(int(number), int(number) // 10 * 10 - 1, -1)]
