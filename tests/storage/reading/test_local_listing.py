"""The input list: what paths, directories and globs mean, and in which order."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from recshuf.errors import ForbiddenInputError, InputError
from recshuf.formats.folders import NameRules
from recshuf.interfaces import InputFile
from recshuf.storage import StorageOptions
from recshuf.storage.reading import InputLister, leave_out_output
from recshuf.storage.reading.choosing import natural_key
from recshuf.storage.reading.local import real_names
from recshuf.storage.reading.objects import Stores


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work inside an empty folder, so that names stay short."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make(*names: str) -> None:
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("a line\n")


def list_inputs(*patterns: str) -> list[InputFile]:
    return InputLister(NameRules("text"), pytest.fail, Stores(StorageOptions(), 1 << 28, 2)).list_all(
        patterns
    )


def expand(*patterns: str) -> list[str]:
    return [file.name for file in list_inputs(*patterns)]


@pytest.mark.parametrize("output", ["d/out", "link/out/"])
def test_inputs_in_the_output_are_left_out_unless_named(output: str):
    make("d/a", "d/out/x", "d/out/y", "d/out2/x")
    Path("link").symlink_to("d")
    for patterns, left in (
        (["d"], ["d/a", "d/out2/x"]),
        (["d", "d/out/x"], ["d/a", "d/out/x", "d/out2/x", "d/out/x"]),
        (["d", "d/out"], ["d/a", "d/out/x", "d/out/y", "d/out2/x", "d/out/x", "d/out/y"]),
        (["link"], ["link/a", "link/out2/x"]),
        (["d/out/*"], []),
    ):
        files = list_inputs(*patterns)
        assert [file.name for file in leave_out_output(files, patterns, output)] == left
        assert leave_out_output(files, patterns, "d/other") == files


def test_folders_and_patterns_give_files_once_in_natural_order_without_markers_and_hidden_ones():
    """A folder of a partition may begin as a marker does."""
    expected = ["d/_y=1/x", "d/f1", "d/f9", "d/f10", "d/sub2/x", "d/sub10/x", "d/sub10/y/z"]
    make(*expected[::-1])
    make(*(f"d/{name}" for name in ("_metadata", "_temporary/x", ".hidden", ".git/x", "out.recshuf.json")))
    for pattern in ("d", "d/*", "d/**", "d/**/**", "d/**/**/**", "**/**/*"):
        assert expand(pattern) == expected
    assert expand("d/f*") == expected[1:4]
    assert expand("d/sub*") == expected[4:]
    assert expand("d/sub*/x", "d/f1") == ["d/sub2/x", "d/sub10/x", "d/f1"]
    assert expand("d/_metadata") == ["d/_metadata"]


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)))
@example(["a1", "a²", "a٣", "a", "1a", "²a", "٣"])  # `isdecimal` and the pattern for digits agree
def test_any_names_have_a_natural_order(names: list[str]):
    found = sorted(names, key=natural_key)
    assert sorted(found, key=natural_key) == found
    assert sorted(found) == sorted(names)


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
        make(name, "other")
        assert expand(name) == [name]
        assert [file.path for file in list_inputs(name)] == [Path(name)]
        make(f"d{number}/{name}")
        assert expand(f"d{number}") == [f"d{number}/{name}"]


@pytest.mark.parametrize(
    ("pattern", "words"), [("empty", "no files"), ("no*", "no file matches"), ("hidden", "no files")]
)
def test_nothing_found_is_an_error_that_names_the_pattern(pattern: str, words: str):
    Path("empty").mkdir()
    make("hidden/.x")
    with pytest.raises(InputError, match=words) as caught:
        expand(pattern)
    assert caught.value.name == pattern


@pytest.fixture
def locked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make all folders of this name such that the user may not list them, which root always may."""
    list_all = os.scandir

    def refuse(folder: str = ".") -> object:
        if Path(folder).name == "locked":
            raise PermissionError(errno.EACCES, "Permission denied", folder)
        return list_all(folder)

    monkeypatch.setattr(os, "scandir", refuse)


@pytest.mark.usefixtures("locked")
@pytest.mark.parametrize("pattern", ["locked/*.txt", "d/*/*.txt", "*/locked/a*", "{here}/locked/*/x"])
def test_a_folder_that_cannot_be_listed_is_named_where_no_file_matches(tmp_path: Path, pattern: str):
    make("locked/a.txt", "locked/d/x", "d/locked/a.txt")
    pattern = pattern.format(here=tmp_path)
    with pytest.raises(
        ForbiddenInputError, match=r"locked cannot be listed: Permission denied; give"
    ) as caught:
        expand(pattern)
    assert caught.value.name == pattern


@pytest.mark.usefixtures("locked")
def test_a_folder_that_cannot_be_listed_is_told_where_others_match():
    make("d/locked/a.txt", "d/open/a.txt")
    notes: list[str] = []
    lister = InputLister(NameRules("text"), notes.append, Stores(StorageOptions(), 1 << 28, 2))
    assert [file.name for file in lister.list_all(["d/*/*.txt"])] == ["d/open/a.txt"]
    (note,) = notes
    assert "folder d/locked cannot be listed: Permission denied" in note


def test_a_file_in_a_folder_without_access_needs_the_right_to_read_it(monkeypatch: pytest.MonkeyPatch):
    """As a user without that right, which root always has."""
    make("locked/a.txt")
    look = Path.stat

    def refuse(path: Path, **options: bool) -> os.stat_result:
        if path.name == "a.txt":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return look(path, **options)

    monkeypatch.setattr(Path, "stat", refuse)
    said = r"^locked/a\.txt: cannot be opened: Permission denied; give this user the right to read it$"
    with pytest.raises(ForbiddenInputError, match=said):
        expand("locked/a.txt")


def test_partition_folders_below_the_pattern_are_columns():
    make("run=7/year=2020/month=1/a.txt", "run=7/year=2020/month=2/a.txt")
    expected = [(("year", "2020"), ("month", "1")), (("year", "2020"), ("month", "2"))]
    for pattern in ("run=7", "run=7/*/*/*.txt", "run=7/**/*.txt"):
        assert [file.partitions for file in list_inputs(pattern)] == expected


def test_real_names_follow_links_of_files_and_folders():
    make("d/a.txt", "d/e/b.txt")
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


@pytest.mark.parametrize("kind", MARKERS)
def test_the_folder_of_a_table_is_refused_however_it_is_named(tmp_path: Path, kind: str):
    table = tmp_path / "table"
    make(f"table/{MARKERS[kind]}", "table/data/year=2024/0.parquet")
    for way in WAYS:
        with pytest.raises(InputError, match=rf"has files of the {kind} table '{table}'.*removed; export"):
            expand(f"{table}/{way}")
    for pattern in (tmp_path, f"{tmp_path}/*"):
        with pytest.raises(InputError, match=f"has files of the {kind} table"):
            expand(str(pattern))
