"""Plan where the results of a run go, before it begins: no two in one place, none in that of a user's file."""

from __future__ import annotations

import itertools
import os
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from genesis.errors import describe
from genesis.segmentation import seals


class Outputs(NamedTuple):
    """The files of one picture."""

    mask: Path
    overlay: Path
    report: Path


def plan(
    pictures: Sequence[Path], folder: Path, overwrite: bool = False, also_read: Iterable[Path] = ()
) -> list[Outputs]:
    """The files of each picture.

    What is there may be replaced if an earlier run wrote it for the same picture and nobody changed it since.

    Args:
        overwrite: replace any other file too, but none that is read.
        also_read: files that the run reads beside the pictures.
    Raises: ValueError: results would take the place of other files, which the message names. OSError: the folder is no
        folder, or nothing can be written there.
    """
    _check_folder(folder)
    found = [
        Outputs(folder / f"{name}_mask.png", folder / f"{name}_overlay.png", folder / f"{name}.json")
        for name in names(pictures)
    ]
    refused = list(_refused(pictures, found, overwrite, {*pictures, *also_read}))
    if refused:
        target, reason = refused[0]
        more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
        raise ValueError(
            describe("segment", "out", "a folder where results replace no other file", f"{target}, {reason}{more}")
        )
    return found


def names(paths: Sequence[Path]) -> list[str]:
    """A name for the results of each picture: its stem; the whole name, and a number, where several share that.

    Names that differ in case alone, or in how an accent is written, are the same to some file systems, and here.
    """
    counts = Counter(_key(path.stem) for path in paths)
    taken = {stem for stem, count in counts.items() if count == 1}
    numbers: Counter[str] = Counter()  # how far each name that several want has been counted
    found = []
    for path in paths:
        name = path.stem
        if counts[_key(name)] > 1:
            base = path.name.replace(".", "_")
            for number in itertools.count(numbers[_key(base)] + 1):
                name = base if number == 1 else f"{base}_{number}"
                if _key(name) not in taken:
                    break
            numbers[_key(base)] = number
            taken.add(_key(name))
        found.append(name)
    return found


def _refused(
    pictures: Sequence[Path], planned: Sequence[Outputs], overwrite: bool, read: set[Path]
) -> Iterator[tuple[Path, str]]:
    """The outputs that may not be written, and why."""
    places = {os.path.realpath(path) for path in read}
    files = {identity for path in read if (identity := _identity(path)) is not None}
    given: dict[str, Path] = {}
    for source, outputs in zip(pictures, planned, strict=True):
        for target in outputs:
            place = os.path.realpath(target)
            other = given.setdefault(_key(place), target)
            if place in places or _identity(target) in files:
                yield target, "which this run reads"
            elif other != target:
                yield target, f"which leads to where {other} does"
            elif os.path.lexists(target) and (reason := _why_not(target, source, overwrite)):
                yield target, reason


def _why_not(target: Path, source: Path, overwrite: bool) -> str:
    """Why what is there may not be replaced; nothing if it may."""
    if not target.is_file():
        return "which is no regular file"
    if overwrite:
        return ""
    seal = seals.find(target)
    if seal is None:
        return "which genesis segment did not write; --overwrite replaces it"
    if not seal.is_intact:
        return "which was changed after genesis segment wrote it; --overwrite replaces it"
    if os.path.realpath(seal.source) != os.path.realpath(source):
        return f"which is the result of {seal.source}; --overwrite replaces it"
    return ""


def _check_folder(folder: Path) -> None:
    """The folder, or that in which it will be made, must be one that can be written into."""
    there = next((path for path in (folder, *folder.absolute().parents) if os.path.lexists(path)), folder)
    if not there.is_dir():
        raise NotADirectoryError(20, "Not a folder", str(there))
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(13, "Permission denied", str(there))


def _key(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
