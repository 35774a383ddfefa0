"""The headers that a source includes."""

from __future__ import annotations

from pathlib import Path

from genesis.backends.cuda.native.headers import included


def test_headers_through_each_other(tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    (tmp_path / "near.h").write_text('#include "far.cuh"\n#include "near.h"\n')
    (library / "far.cuh").write_text("#  include <cuda_fp16.h>\n// far\n")
    found = included('#include "near.h"\n#include <far.cuh>\n', tmp_path, [library])
    assert {Path(name).name: text for name, text in found.items()} == {
        "near.h": '#include "far.cuh"\n#include "near.h"\n',
        "far.cuh": "#  include <cuda_fp16.h>\n// far\n",
        "cuda_fp16.h": None,
    }


def test_a_header_that_may_come_to_exist_counts(tmp_path: Path) -> None:
    source = '#if __has_include("optional.h")\n#include "optional.h"\n#endif\n'
    before = included(source, tmp_path, [])
    (tmp_path / "optional.h").write_text("#define X 1\n")
    after = included(source, tmp_path, [])
    assert list(before.values()) == [None]
    assert list(after.values()) == ["#define X 1\n"]


def test_an_include_by_macro_can_be_any_header(tmp_path: Path) -> None:
    (tmp_path / "one.cuh").write_text("1")
    (tmp_path / "two.h").write_text("2")
    (tmp_path / "notes.txt").write_text("3")
    assert sorted(map(str, included("#include HEADER\n", None, [tmp_path]).values())) == ["1", "2"]


def test_without_a_folder_only_the_given_ones_are_searched(tmp_path: Path) -> None:
    (tmp_path / "a.h").write_text("a")
    assert included('#include "a.h"', None, []) == {"a.h": None}
    assert included('#include "a.h"', None, [tmp_path]) == {str(tmp_path / "a.h"): "a"}
