"""The distribution that installs this package, and a warning if another one installs a package of the same name.

On the package index, `genesis` is a telephony library and `genesis-world` a physics engine; both are imported as
`genesis`. Installed next to `genesis-dl`, one hides the other or overwrites its files, and later failures do not show
why. So the import checks, in well under a millisecond, and warns.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

NAME = "genesis-dl"
_PACKAGE = Path(__file__).parent
_OURS = Path("backends", "contract.py")  # what no other package of this name has


def install_command(extra: str) -> str:
    """The command that installs an extra.

    Example: >>> from genesis.distribution import install_command
    >>> install_command("cuda")
    "pip install 'genesis-dl[cuda]'"
    """
    return f"pip install '{NAME}[{extra}]'"


def warn_of_others(package: Path = _PACKAGE, search_path: Iterable[str] | None = None) -> None:
    """Warn if another package `genesis` lies in package's folder or elsewhere on search_path (default: sys.path)."""
    folders = [Path(entry) for entry in (sys.path if search_path is None else search_path)]
    if _has_foreign_files(package):
        what = f"overwrote parts of {NAME} in {package}"
        owners = _owners(package)
        advice = f"; uninstall it, then reinstall {NAME}"
    elif hidden := next((folder for folder in folders if _is_another(folder / package.name, package)), None):
        what = f"is installed in {hidden} and hidden by {NAME} in {package}"
        owners = _owners(hidden / package.name)
        advice = "; install the two into separate environments"
    else:
        return
    name = " and ".join(owners) or "another distribution"
    message = f"{name}, which also provides a package named '{package.name}', {what}{advice}"
    warnings.warn(message, RuntimeWarning, stacklevel=3)


def _has_foreign_files(package: Path) -> bool:
    """Whether an installed package's folder holds names that are not on its distribution's list of files."""
    records = package.parent.glob(f"{NAME.replace('-', '_')}-*.dist-info/RECORD")
    record = next(records, None)
    if record is None:  # an editable install or a source tree, into which nobody else unpacks
        return False
    prefix = f"{package.name}/"
    with open(record, encoding="utf-8") as lines:
        ours = {line[len(prefix) :].split("/")[0].split(",")[0] for line in lines if line.startswith(prefix)}
    if len(ours) < 2:  # editable: the list has no files
        return False
    return not ours.issuperset(name for name in os.listdir(package) if name != "__pycache__")


def _is_another(candidate: Path, package: Path) -> bool:
    initial = candidate / "__init__.py"
    return initial.is_file() and not (candidate / _OURS).exists() and not candidate.samefile(package)


def _owners(package: Path) -> list[str]:
    """The names of the distributions beside package that have files in it, without our own."""
    found = set()
    for distribution in metadata.distributions(path=[str(package.parent)]):
        name = distribution.metadata["Name"]
        if name != NAME and any(file.parts[0] == package.name for file in distribution.files or ()):
            found.add(f"{name} {distribution.version}")
    return sorted(found)
