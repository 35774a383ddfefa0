"""Runs mypy --strict and pyright on programs that use Genesis, as it looks to a user who has it installed."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

from tests.docs.examples import ExampleParser, blocks

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
USERS = Path(__file__).parent / "users"
PAGES = (ROOT / "README.md", ROOT / "docs" / "getting-started.md")

MYPY = """
[mypy]
strict = True
mypy_path = {source}
cache_dir = {folder}/cache
show_error_codes = True
pretty = False

[mypy-pages.*]
disallow_untyped_defs = False
disallow_untyped_calls = False
disallow_untyped_decorators = False
allow_redefinition = True
disable_error_code = union-attr

[mypy-genesis.*]
follow_imports = silent

[mypy-cuda.*,cudnn.*,torch.*,triton.*,safetensors.*]
follow_imports = skip
ignore_missing_imports = True
"""

# A page does not say that a gradient is there, which the lines above it have computed.
IN_PAGES = "# pyright: reportOptionalMemberAccess=false\n"


def program_of(page: Path) -> str:
    """The blocks of a page marked `python` as one program, each line at the line that it has on the page."""
    lines: list[str] = []
    for block in blocks(page.read_text(encoding="utf-8")):
        lines += [""] * (block.line - 1 - len(lines))
        lines += _without_prompts(block.source).splitlines()
    return "\n".join(lines) + "\n"


def _without_prompts(source: str) -> str:
    """What a session in a page asks for, without what it answers."""
    if not source.lstrip().startswith(">>> "):
        return source
    lines = [""] * source.count("\n")
    for example in ExampleParser().get_examples(source):
        asked = example.source.splitlines()
        lines[example.lineno : example.lineno + len(asked)] = asked
    return "\n".join(lines)


def write_programs(folder: Path) -> None:
    """The programs that are checked: users/ as they stand, pages/ of what stands on pages."""
    for name in ("users", "pages"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").touch()
    for path in USERS.glob("*.py"):
        (folder / "users" / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    for page in PAGES:
        name = page.stem.lower().replace("-", "_")
        (folder / "pages" / f"{name}.py").write_text(program_of(page) + IN_PAGES, encoding="utf-8")


def run_mypy(folder: Path) -> list[str]:
    """What mypy finds wrong with the programs in folder."""
    config = folder / "mypy.ini"
    config.write_text(MYPY.format(source=SOURCE, folder=folder), encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file", str(config), "users", "pages"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if re.match(r".*\.py:\d+: error:", line)]


def run_pyright(folder: Path) -> list[str]:
    """What pyright finds wrong with them. basedpyright is pyright with its program inside, where pyright loads it."""
    module = "basedpyright" if importlib.util.find_spec("basedpyright") else "pyright"
    config = {
        "include": ["users", "pages"],
        "extraPaths": [str(SOURCE)],
        "typeCheckingMode": "standard",
        "enableTypeIgnoreComments": False,  # those are mypy's
        "reportUnnecessaryTypeIgnoreComment": "error",
        "reportUnusedExpression": "none",  # on pages, an expression shows its value
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(config), encoding="utf-8")
    command = [sys.executable, "-m", module, "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] >= len(list(folder.glob("*/*.py")))
    return [
        f"{Path(each['file']).relative_to(folder.resolve())}:{each['range']['start']['line'] + 1}: {each['message']}"
        for each in report["generalDiagnostics"]
        if each["severity"] == "error"
    ]
