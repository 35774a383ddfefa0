"""The build hook for hatchling: compiles a project's kernels ahead and puts the cubins into its wheel.

    [build-system]
    requires = ["hatchling", "genesis-dl[cuda]"]
    build-backend = "hatchling.build"

    [tool.hatch.build.targets.wheel.hooks.genesis-kernels]

and the kernels in [tool.genesis.kernels], see build.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.plugin import hookimpl

from genesis.cuda.build import build


class BuildData(TypedDict):
    """The part of hatchling's data that the hook extends."""

    artifacts: list[str]


class KernelBuildHook(BuildHookInterface):
    """hatchling's name for it is "genesis-kernels"."""

    PLUGIN_NAME = "genesis-kernels"

    def initialize(self, version: str, build_data: BuildData) -> None:
        """Before the wheel is put together. Cubins are ignored by version control, so they are named one by one."""
        root = Path(self.root)
        for path in build(root):
            build_data["artifacts"].append(f"/{path.relative_to(root.resolve()).as_posix()}")
            self.app.display_info(f"genesis: compiled {path.name}")


@hookimpl
def hatch_register_build_hook() -> type[KernelBuildHook]:
    return KernelBuildHook
