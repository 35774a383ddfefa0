"""The headers that a source includes."""

from __future__ import annotations

from pathlib import Path

from genesis.backends.cuda.nvrtc.headers import included


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
    near, library = tmp_path / "near", tmp_path / "library"
    for folder, name, text in ((near, "one.cuh", "1"), (library / "deep", "two.h", "2"), (near / "deep", "not.h", "3")):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (library / "notes.txt").write_text("4")
    assert sorted(map(str, included("#include HEADER\n", near, [library]).values())) == ["1", "2"]


def test_includes_that_are_written_otherwise(tmp_path: Path) -> None:
    for name in ("spliced.h", "absolute.h", "annotated.h", "out.h"):
        (tmp_path / name).write_text(name)
    source = f"""#inc\\\nlude "spliced.h"\n#include <{tmp_path}/absolute.h>
    # /* why */ include /* which */ "annotated.h"
    // #include "out.h"
    /*
    #include "out.h"
    */"""
    assert sorted(included(source, tmp_path, []).values(), key=str) == ["absolute.h", "annotated.h", "spliced.h"]


def test_headers_of_the_folder_come_before_those_of_the_others(tmp_path: Path) -> None:
    (tmp_path / "a.h").write_text("a")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert included('#include "a.h"', elsewhere, []) == {"a.h": None}
    assert included('#include "a.h"', elsewhere, [tmp_path]) == {str(tmp_path / "a.h"): "a"}
    (elsewhere / "a.h").write_text("b")
    assert included('#include "a.h"', elsewhere, [tmp_path]) == {str(elsewhere / "a.h"): "b"}
