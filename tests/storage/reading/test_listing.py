"""Listing of objects: what a folder or pattern of local files gives, a prefix or pattern of objects gives, too."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from recshuf.errors import InputError, MissingInputError
from recshuf.formats.folders import NameRules
from recshuf.interfaces import InputFile, Stamp
from recshuf.storage import StorageOptions, Url
from recshuf.storage.reading import InputLister, leave_out_output
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


def expand(pattern: str, root: str, format_name: str | None = None) -> tuple[list[object] | str, list[str]]:
    """Return names and partitions of the inputs below a root, and what is said; of an error, its kind."""
    said: list[str] = []
    stores = Stores(StorageOptions(), 1 << 28, 2)
    try:
        found = InputLister(NameRules(format_name), said.append, stores).list_all([f"{root}{pattern}"])
    except MissingInputError:
        return "missing" if pattern else "nothing", said
    except InputError:
        return "nothing", said
    inputs = [(one.name.removeprefix(root), one.partitions) for one in found]
    return inputs, [one.replace(root, "") for one in said]


@pytest.mark.parametrize("format_name", [None, pytest.param("text", marks=pytest.mark.slow)])
@pytest.mark.usefixtures("files")
def test_a_bucket_gives_what_a_folder_gives(tmp_path: Path, bucket: Bucket, format_name: str | None):
    local, remote = (
        {pattern: expand(pattern, root, format_name) for pattern in PATTERNS}
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
