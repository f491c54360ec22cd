"""The list of inputs: what folders, prefixes and patterns mean, and in which order; objects give what local files give."""

from __future__ import annotations

import errno
import glob
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from recshuf.errors import ForbiddenInputError, InputError, MissingInputError
from recshuf.formats.folders import NameRules
from recshuf.interfaces import InputFile, Stamp
from recshuf.storage import StorageOptions, Url
from recshuf.storage.reading import InputLister, leave_out_output
from recshuf.storage.reading.choosing import natural_key
from recshuf.storage.reading.local import real_names
from recshuf.storage.reading.objects import Stores
from recshuf.storage.requests import Entry, Requests
from tests.support.effort import examples
from tests.support.objects.object_server import Bucket

NAMES = (
    "a10.txt",
    "a9.txt",
    "b/1.txt",
    "b/c/2.txt",
    "b/_hidden/3.txt",
    "b/.hidden.txt",
    "out.recshuf.json",
    "other.parquet",
    "year=2023/x.txt",
    "_year=2024/month=01/x.txt",
    "LICENSE",
    "d[1].txt",
    "e[1]/1.txt",
    "e[1]/f[2]*/2.txt",
    "e1/3.txt",
)
PATTERNS = (
    *("", "b", "b/", "a9.txt", "*.txt", "a?.txt", "a[19]*.txt", "*", "b/*", "**", "**/*.txt", "b/**"),
    *("*=*", "*/*/x.txt", "d[1].txt", "e[1]", "e[1]/", "e[1]/*", "e[1]/1.txt", "e[1]/f[2]*/", "e[[]1]/f*"),
    *("nothing/", "nothing[1]/", "nothing.txt", "nothing*", "b/_hidden/*", "b/_hidden", "b*/", "*/", "*//"),
    *("*=*/", "*/c/", "e[[]1]/f*/", "d*/", "nothing*/", "b/_*/", "**/", "**/c/"),
)


def write(folder: Path, names: Sequence[str], content: str = "a\n") -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


@pytest.fixture
def files(tmp_path: Path, bucket: Bucket) -> None:
    """Make files below ``in/`` here and in the bucket."""
    write(tmp_path / "in", NAMES)
    for name in NAMES:
        bucket.put(f"in/{name}", b"a\n")


def expand(pattern: str, root: str) -> tuple[list[object] | str, list[str]]:
    """Return names and partitions of the inputs below a root, and what is said; of an error, its kind."""
    said: list[str] = []
    stores = Stores(StorageOptions(), 1 << 28, 2)
    try:
        found = InputLister(NameRules(None), said.append, stores).list_all([f"{root}{pattern}"])
    except MissingInputError:
        return "missing" if pattern else "nothing", said
    except InputError:
        return "nothing", said
    inputs = [(one.name.removeprefix(root), one.partitions) for one in found]
    return inputs, [one.replace(root, "") for one in said]


@pytest.mark.usefixtures("files")
def test_a_bucket_gives_what_a_folder_gives(tmp_path: Path, bucket: Bucket):
    local, remote = (
        {pattern: expand(pattern, root) for pattern in PATTERNS}
        for root in (f"{tmp_path}/in/", f"{bucket.url}/in/")
    )
    assert remote == local


def list_inputs(*patterns: str) -> list[InputFile]:
    return InputLister(NameRules(None), pytest.fail, Stores(StorageOptions(), 1 << 28, 2)).list_all(patterns)


@pytest.mark.usefixtures("files")
def test_a_marker_of_a_folder_is_no_input(tmp_path: Path, bucket: Bucket):
    for folder in ("aaa", "y/z"):
        (tmp_path / "in" / folder).mkdir(parents=True)
    (tmp_path / "in" / "empty").touch()
    for key in ("", "aaa/", "y/z/", "empty", "b/", "b/c/"):
        bucket.put(f"in/{key}", b"")
    for pattern in ("", "**", "a*/"):
        assert expand(pattern, f"{bucket.url}/in/") == expand(pattern, f"{tmp_path}/in/")


def test_only_objects_without_bytes_are_asked_for_under_their_very_keys(bucket: Bucket):
    names = [f"{number}" for number in range(10)]
    for name in names:
        bucket.put(f"many/{name}{'' if int(name) % 2 else '/'}", b"")
    bucket.put("many/full", b"a\n")
    bucket.proxy.clear()
    listed = [one.name for one in list_inputs(f"{bucket.url}/many/")]
    assert listed == [f"{bucket.url}/many/{name}" for name in [*names[1::2], "full"]]
    asked = [one for one in bucket.proxy.requests if one.startswith("HEAD")]
    assert sorted(asked) == sorted(f"HEAD /{bucket.name}/many/{name}" for name in names)


def test_files_of_a_table_are_refused(bucket: Bucket):
    bucket.put("t/part/1.parquet", b"")
    bucket.put("t/_delta_log/0.json", b"")
    bucket.put("b/1.txt", b"a\n")
    for pattern in ("t/", "t/part*", "t*"):
        with pytest.raises(InputError, match=r"has files of the Delta Lake table '.*/t'"):
            list_inputs(f"{bucket.url}/{pattern}")
    for pattern, name in (("b/*.txt", "b/1.txt"), ("t/part/1.parquet", "t/part/1.parquet")):
        assert [one.name for one in list_inputs(f"{bucket.url}/{pattern}")] == [f"{bucket.url}/{name}"]


@pytest.mark.usefixtures("files")
def test_inputs_in_the_output_are_left_out(tmp_path: Path, bucket: Bucket):
    patterns = [f"{bucket.url}/in/b/", f"{tmp_path}/in/b/"]
    inputs = list_inputs(*patterns)
    names = ["b/1.txt", "b/c/2.txt"]
    remote, local = ([f"{root}/in/{name}" for name in names] for root in (bucket.url, tmp_path))
    assert [one.name for one in inputs] == remote + local

    def leave_out(output: str, *more: str) -> list[str]:
        return [one.name for one in leave_out_output(inputs, [*patterns, *more], output)]

    assert leave_out(f"{bucket.url}/in/b/c/") == [remote[0], *local]
    assert leave_out(f"{bucket.url}/in/b/c", remote[1]) == remote + local
    assert leave_out(f"{tmp_path}/in/b/c") == [*remote, local[0]]
    assert leave_out(f"{bucket.url}/in/b") == remote + local
    assert leave_out(f"{bucket.url}/in/b/1") == remote + local


# Patterns of any parts, of a store without a server


class NamedStore:
    """A store of empty objects."""

    is_bound = True

    def __init__(self, names: Sequence[str]) -> None:
        self.requests = Requests()
        self._names = names

    def find(self, key: str) -> Stamp | None:
        return Stamp() if key.removeprefix("in/") in self._names else None

    def list(self, prefix: str) -> list[Entry]:
        return [Entry(f"in/{name}", Stamp()) for name in self._names if f"in/{name}".startswith(prefix)]

    def get(self, key: str, begin: int, end: int, stamp: Stamp) -> bytes:
        raise NotImplementedError


class NamedStores(Stores):
    """Has one store for all URLs."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(StorageOptions(), 1 << 28, 1)
        self._names = names

    def open(self, url: Url) -> NamedStore:
        return NamedStore(self._names)


SHORT_NAMES = (
    *("a.txt", "s/b.txt", "s/t/c.txt", "s2/a.txt", "t/t/t/d.txt", ".h/e.txt", "s/_h/f.txt"),
    "t/out.recshuf.json",
)
PARTS = (
    *("*", "**", "***", "?", "s", "s*", "s**", "t", "t*", "[as]*", "*.txt", "a.txt", ".h", "_h", "[._]*"),
    "nothing",
)
ROOT = "s3://bucket/in/"


def match_names(root: str, pattern: str, names: Sequence[str] = SHORT_NAMES) -> list[str] | None:
    """Return the names of the inputs below a root; None if there are none."""
    lister = InputLister(NameRules(None), lambda _: None, NamedStores(names))
    try:
        return [one.name.removeprefix(root) for one in lister.list_all([f"{root}{pattern}"])]
    except InputError:
        return None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the same names."""
    found = tmp_path_factory.mktemp("globs") / "in"
    write(found, SHORT_NAMES, "")
    return found


@settings(max_examples=examples(400))
@given(parts=st.lists(st.sampled_from(PARTS), min_size=1, max_size=4), end=st.sampled_from(["", "/"]))
@example(parts=["**", "**"], end="")
@example(parts=["*", "**"], end="")
@example(parts=["***"], end="")
@example(parts=["s", "***"], end="")
@example(parts=["s**"], end="")
def test_a_pattern_of_a_url_gives_what_that_of_a_path_gives(folder: Path, parts: list[str], end: str):
    pattern = "/".join(parts) + end
    assume(glob.has_magic(pattern))
    found = match_names(f"{folder}/", pattern)
    assert found == match_names(ROOT, pattern)
    assert found is None or len(set(found)) == len(found)


# What paths, directories and globs mean, and in which order


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work inside an empty folder, so that names stay short."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make(*names: str) -> None:
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("a line\n")


def list_here(*patterns: str) -> list[InputFile]:
    return InputLister(NameRules("text"), pytest.fail, Stores(StorageOptions(), 1 << 28, 2)).list_all(
        patterns
    )


def expand_here(*patterns: str) -> list[str]:
    return [file.name for file in list_here(*patterns)]


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
        files = list_here(*patterns)
        assert [file.name for file in leave_out_output(files, patterns, output)] == left
        assert leave_out_output(files, patterns, "d/other") == files


def test_folders_and_patterns_give_files_once_in_natural_order_without_markers_and_hidden_ones():
    """A folder of a partition may begin as a marker does."""
    expected = ["d/_y=1/x", "d/f1", "d/f9", "d/f10", "d/sub2/x", "d/sub10/x", "d/sub10/y/z"]
    make(*expected[::-1])
    make(*(f"d/{name}" for name in ("_metadata", "_temporary/x", ".hidden", ".git/x", "out.recshuf.json")))
    for pattern in ("d", "d/*", "d/**", "d/**/**", "d/**/**/**", "**/**/*"):
        assert expand_here(pattern) == expected
    assert expand_here("d/f*") == expected[1:4]
    assert expand_here("d/sub*") == expected[4:]
    assert expand_here("d/sub*/x", "d/f1") == ["d/sub2/x", "d/sub10/x", "d/f1"]
    assert expand_here("d/_metadata") == ["d/_metadata"]


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
        assert expand_here(name) == [name]
        assert [file.path for file in list_here(name)] == [Path(name)]
        make(f"d{number}/{name}")
        assert expand_here(f"d{number}") == [f"d{number}/{name}"]


@pytest.mark.parametrize(
    ("pattern", "words"), [("empty", "no files"), ("no*", "no file matches"), ("hidden", "no files")]
)
def test_nothing_found_is_an_error_that_names_the_pattern(pattern: str, words: str):
    Path("empty").mkdir()
    make("hidden/.x")
    with pytest.raises(InputError, match=words) as caught:
        expand_here(pattern)
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
        expand_here(pattern)
    assert caught.value.name == pattern


@pytest.mark.usefixtures("locked")
def test_a_folder_is_refused_of_which_a_part_cannot_be_listed():
    make("d/a.txt", "d/e/locked/b.txt")
    with pytest.raises(ForbiddenInputError, match=r"^d/e/locked: cannot be listed: Permission denied"):
        expand_here("d")


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
        expand_here("locked/a.txt")


def test_partition_folders_below_the_pattern_are_columns():
    make("run=7/year=2020/month=1/a.txt", "run=7/year=2020/month=2/a.txt")
    expected = [(("year", "2020"), ("month", "1")), (("year", "2020"), ("month", "2"))]
    for pattern in ("run=7", "run=7/*/*/*.txt", "run=7/**/*.txt"):
        assert [file.partitions for file in list_here(pattern)] == expected


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
            expand_here(f"{table}/{way}")
    for pattern in (tmp_path, f"{tmp_path}/*"):
        with pytest.raises(InputError, match=f"has files of the {kind} table"):
            expand_here(str(pattern))
