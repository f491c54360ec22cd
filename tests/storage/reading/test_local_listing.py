"""The input list: what paths, directories and globs mean, and in which order."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from recshuf.errors import InputError
from recshuf.interfaces import NameSuffix
from recshuf.storage.reading.choosing import Judged, Role, natural_key
from recshuf.storage.reading.local import (
    expand_inputs,
    find_pattern,
    leave_out_output,
    real_names,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from recshuf.interfaces import InputFile


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work inside an empty folder, so that names stay short."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def touch(*names: str) -> None:
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()


def is_table(name: str) -> bool:
    return name.endswith(".parquet")


class Rules:
    """Takes files whose names a function accepts."""

    def __init__(self, accepts: Callable[[str], bool]) -> None:
        self._accepts = accepts
        self.wanted = "wanted files"

    def split(self, name: str) -> NameSuffix:
        return NameSuffix(name.rpartition(".")[2])

    def judge(self, files: list[InputFile]) -> Judged:
        assert all(file.suffix == self.split(file.name) for file in files)
        roles = [Role.INPUT if self._accepts(file.name) else Role.OTHER for file in files]
        return Judged([*zip(files, roles, strict=True)], {})

    def explain(self, suffix: NameSuffix) -> None:
        assert suffix

    def complete(self, name: str) -> str:
        return name


def expand(*patterns: str, accepts=lambda name: True) -> list[str]:
    files = expand_inputs(patterns, Rules(accepts), lambda message: None)
    assert all(file.suffix.kind == file.name.rpartition(".")[2] for file in files)
    return [file.name for file in files]


@pytest.mark.parametrize("output", ["d/out", "link/out/"])
def test_inputs_in_the_output_are_left_out_unless_named(output: str):
    touch("d/a", "d/out/x", "d/out/y", "d/out2/x")
    Path("link").symlink_to("d")
    for patterns, left in (
        (["d"], ["d/a", "d/out2/x"]),
        (["d", "d/out/x"], ["d/a", "d/out/x", "d/out2/x", "d/out/x"]),
        (["d", "d/out"], ["d/a", "d/out/x", "d/out/y", "d/out2/x", "d/out/x", "d/out/y"]),
        (["link"], ["link/a", "link/out2/x"]),
        (["d/out/*"], []),
    ):
        files = expand_inputs(patterns, Rules(lambda _: True), lambda _: None)
        assert [file.name for file in leave_out_output(files, patterns, output)] == left
        assert leave_out_output(files, patterns, "d/other") == files


def test_directories_and_globs_come_in_natural_order():
    touch("d/f10", "d/f9", "d/f1", "d/sub2/x", "d/sub10/x")
    expected = ["d/f1", "d/f9", "d/f10", "d/sub2/x", "d/sub10/x"]
    assert expand("d") == expected
    assert expand("d/f*") == expected[:3]
    assert expand("d/sub*/*", "d/f1") == ["d/sub2/x", "d/sub10/x", "d/f1"]
    assert expand("d/**") == expected
    assert expand("d/sub*") == expected[3:]


def test_each_file_of_a_pattern_comes_once():
    touch("d/a", "d/s/b", "d/s/t/c")
    for pattern in ("d/**", "d/**/**", "d/**/**/**", "**/**/*"):
        assert expand(pattern) == ["d/a", "d/s/b", "d/s/t/c"]


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)))
@example(["a1", "a²", "a٣", "a", "1a", "²a", "٣"])  # `isdecimal` and the pattern for digits agree
def test_any_names_have_a_natural_order(names: list[str]):
    found = sorted(names, key=natural_key)
    assert sorted(found, key=natural_key) == found
    assert sorted(found) == sorted(names)


def test_markers_and_hidden_files_are_passed_over():
    touch(
        "d/a.parquet",
        "d/_metadata",
        "d/_SUCCESS",
        "d/.hidden",
        "d/.git/x",
        "d/_temporary/x",
        "d/out.recshuf.json",
    )
    assert expand("d") == ["d/a.parquet"]
    assert expand("d/*") == ["d/a.parquet"]
    assert expand("d/_SUCCESS") == ["d/_SUCCESS"]


def test_pattern_that_an_output_falls_in():
    touch("d/a.txt", "d/e/a.txt", "d2/a.txt")
    for patterns, output, found in (
        (["d"], "d/out", "d"),
        (["a", "d/"], "d/e/out", "d/"),
        (["d"], "d/_out", None),
        (["d"], "d/.out/x", None),
        (["d"], "out", None),
        (["d"], "d2/out", None),
        (["d/*.txt"], "d/out.txt", "d/*.txt"),
        (["d/*.txt"], "d/e/out.txt", None),
        (["d/*.txt"], "d/out.jsonl", None),
        (["d/a.txt"], "d/out.txt", None),
    ):
        assert find_pattern(patterns, output) == found


def test_odd_names_are_files_before_they_are_patterns():
    names = [
        "a[1].txt",
        "what?.txt",
        "all*.txt",
        "new\nline",
        " ",
        "ä",
        "a\\b",
        "-x",
        os.fsdecode(b"\xff.txt"),
    ]
    for number, name in enumerate(names):
        touch(name, "other")
        assert expand(name) == [name]
        assert [file.path for file in expand_inputs([name], Rules(is_table), print)] == [Path(name)]
        touch(f"d{number}/{name}")
        assert expand(f"d{number}") == [f"d{number}/{name}"]


@pytest.mark.parametrize(
    ("pattern", "words"), [("empty", "no files"), ("no*", "no file matches"), ("hidden", "no files")]
)
def test_nothing_found_is_an_error_that_names_the_pattern(pattern: str, words: str):
    Path("empty").mkdir()
    touch("hidden/.x")
    with pytest.raises(InputError, match=words) as caught:
        expand(pattern)
    assert caught.value.name == pattern


def test_partition_folders_below_the_pattern_are_columns():
    touch("run=7/year=2020/month=1/a.parquet", "run=7/year=2020/month=2/a.parquet")
    expected = [(("year", "2020"), ("month", "1")), (("year", "2020"), ("month", "2"))]
    for pattern in ("run=7", "run=7/*/*/*.parquet", "run=7/**/*.parquet"):
        files = expand_inputs([pattern], Rules(is_table), print)
        assert [file.partitions for file in files] == expected


def test_real_names_follow_links_of_files_and_folders():
    touch("d/a.txt", "d/e/b.txt")
    Path("folder").symlink_to("d")
    Path("d/link.txt").symlink_to("e/b.txt")
    Path("d/round.txt").symlink_to("round.txt")
    names = [
        "d/a.txt",
        "folder/a.txt",
        "folder/link.txt",
        "folder/e/../a.txt",
        "d/round.txt",
        "a.txt",
        "/",
        "d/",
        "d/..",
        ".",
        "missing/x",
    ]
    assert list(real_names(names)) == [os.path.realpath(name) for name in names]


# Folders of tables: their files also hold rows that the table has removed

MARKERS = {
    "Delta Lake": "_delta_log/00000000000000000000.json",
    "Iceberg": "metadata/v1.metadata.json",
    "Hudi": ".hoodie/hoodie.properties",
}
WAYS = ["", "data", "data/year=2024", "*", "data/*/*.parquet", "**/*.parquet", "data/year=*"]


def make_table(folder: Path, marker: str) -> Path:
    for name in (marker, "data/year=2024/0.parquet"):
        path = folder / "table" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(b"")
    return folder / "table"


@pytest.mark.parametrize("kind", MARKERS)
def test_the_folder_of_a_table_is_refused_however_it_is_named(tmp_path: Path, kind: str):
    table = make_table(tmp_path, MARKERS[kind])
    for way in WAYS:
        with pytest.raises(InputError, match=rf"has files of the {kind} table '{table}'.*removed; export"):
            expand(f"{table}/{way}")
    for pattern in (tmp_path, f"{tmp_path}/*"):
        with pytest.raises(InputError, match=f"has files of the {kind} table"):
            expand(str(pattern))
