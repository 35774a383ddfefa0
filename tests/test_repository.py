"""What holds for the repository as a whole: sizes, words, versions, and documents that agree with the code."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import genesis
from genesis.settings import Settings

ROOT = Path(__file__).resolve().parents[1]
CODE = sorted(path for folder in ("src", "tests", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py"))
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

MAX_LINES = 500
FORBIDDEN = re.compile(
    r"\b(?:TODO|FIXME|XXX|HACK)\b"  # an open end belongs into an issue
    r"|\bbreakpoint\(\)|\bpdb\.set_trace"
    r"|^(?:<{7}|>{7}) "  # a merge that was not finished
    r"|(?<![\w.:/~-])/(?:home|root|Users|work|workspace)/\w",  # a path of one machine
    re.MULTILINE,
)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def requirements() -> list[Requirement]:
    lists = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    return [Requirement(line) for lines in lists for line in lines]


def constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def forbidden(text: str) -> list[str]:
    return [match[0] for match in FORBIDDEN.finditer(text)]


@pytest.mark.parametrize("path", CODE, ids=relative)
def test_a_file_has_one_subject(path: Path) -> None:
    num_lines = len(path.read_text(encoding="utf-8").splitlines())
    assert num_lines < MAX_LINES, f"{relative(path)} has {num_lines} lines: look for its two subjects"


@pytest.mark.parametrize("path", [path for path in CODE if path != Path(__file__)] + PAGES, ids=relative)
def test_nothing_is_left_open(path: Path) -> None:
    assert forbidden(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "text",
    ["x = 1  # TODO later", "breakpoint()", "<<<<<<< HEAD", f"open('/{'home'}/me/x.png')", f"see /{'root'}/notes"],
)
def test_what_is_left_open_is_found(text: str) -> None:
    assert len(forbidden(text)) == 1


@pytest.mark.parametrize(
    "text", [f"~/{'work'}/x", f"https://example.org/{'work'}/x", "src/home/x", "hackers", "a >>>>>>> b"]
)
def test_what_is_harmless_passes(text: str) -> None:
    assert forbidden(text) == []


def test_one_version() -> None:
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest is not None
    assert genesis.__version__ == PROJECT["version"] == newest[1]


@pytest.mark.parametrize("requirement", requirements(), ids=lambda requirement: requirement.name)
def test_every_dependency_is_pinned_and_explained(requirement: Requirement) -> None:
    assert requirement.specifier.contains(constraints()[requirement.name])
    explained = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    assert f"| {requirement.name} |" in explained


def test_every_setting_is_documented() -> None:
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    for field in dataclasses.fields(Settings):
        assert f"`GENESIS_{field.name.upper()}`" in page


def prose(page: Path) -> str:
    """The text of a page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The fragments that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)", prose(page))
    missing = [link for link, _ in links if not (page.parent / link).exists()]
    assert missing == []
    nowhere = [f"{link}#{at}" for link, at in links if at and at not in anchors(page.parent / link if link else page)]
    assert nowhere == []


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_named_source_files_exist(page: Path) -> None:
    """A page that walks through the code names files as src/… or tests/…; a file that moves takes the page along."""
    named = re.findall(r"\b(?:src|tests|docs)/[\w/]+\.(?:py|md)\b", page.read_text(encoding="utf-8"))
    missing = sorted({name for name in named if not (ROOT / name).exists()})
    assert missing == []


def test_make_help_names_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert targets is not None
    for target in set(targets[1].split()) - {"help"}:
        assert f'@echo "make {target} ' in makefile
