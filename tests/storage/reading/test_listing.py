"""Listing of objects: what a folder or pattern of local files gives, a prefix or pattern of objects gives, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from recshuf.errors import InputError, MissingInputError
from recshuf.formats import NameRules
from recshuf.storage.reading.listing import InputLister, leave_out_output
from recshuf.storage.reading.objects import Stores
from recshuf.storage.settings import StorageOptions

if TYPE_CHECKING:
    from pathlib import Path

    from recshuf.interfaces import InputFile
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
    "plain",
    "d[1].txt",
    "e[1]/1.txt",
    "e[1]/f[2]*/2.txt",
    "e1/3.txt",
)
PATTERNS = (
    "",
    "b",
    "b/",
    "a9.txt",
    "*.txt",
    "a?.txt",
    "a[19]*.txt",
    "*",
    "b/*",
    "**",
    "**/*.txt",
    "b/**",
    "*=*",
    "*/*/x.txt",
    "d[1].txt",
    "e[1]",
    "e[1]/",
    "e[1]/*",
    "e[1]/1.txt",
    "e[1]/f[2]*/",
    "e[[]1]/f*",
    "nothing/",
    "nothing[1]/",
    "nothing.txt",
    "nothing*",
    "b/_hidden/*",
    "b/_hidden",
    "b*/",
    "*/",
    "*//",
    "*=*/",
    "*/c/",
    "e[[]1]/f*/",
    "d*/",
    "nothing*/",
    "b/_*/",
    "**/",
    "**/c/",
)


@pytest.fixture(autouse=True)
def files(tmp_path: Path, bucket: Bucket) -> None:
    for name in NAMES:
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a\n")
        bucket.put(f"in/{name}", b"a\n")


def expand(pattern: str, root: str, format_name: str | None = None) -> tuple[list[object], list[str]]:
    """Return names and partitions of the inputs below a root, and what is said; of an error, its kind."""
    said: list[str] = []
    stores = Stores(StorageOptions(), 1 << 28, 2)
    try:
        found = InputLister(NameRules(format_name), said.append, stores).list_all([f"{root}{pattern}"])
    except InputError as error:
        return [isinstance(error, MissingInputError) and bool(pattern)], said
    return [(one.name.removeprefix(root), one.partitions) for one in found], [
        one.replace(root, "") for one in said
    ]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("format_name", [None, "text"])
def test_a_url_gives_what_a_path_gives(tmp_path: Path, bucket: Bucket, pattern: str, format_name: str | None):
    local = expand(pattern, f"{tmp_path}/in/", format_name)
    remote = expand(pattern, f"{bucket.url}/in/", format_name)
    assert remote == local


def list_inputs(*patterns: str) -> list[InputFile]:
    return InputLister(NameRules(None), pytest.fail, Stores(StorageOptions(), 1 << 28, 2)).list_all(patterns)


def test_stamps_are_those_of_the_listing(bucket: Bucket):
    bucket.put("in/b/1.txt", b"longer\n")
    listed, named = list_inputs(f"{bucket.url}/in/b/1*")[0], list_inputs(f"{bucket.url}/in/b/1.txt")[0]
    found = bucket.client.head_object(Bucket=bucket.name, Key="in/b/1.txt")
    for one in (listed, named):
        assert one.stamp is not None
        assert (one.stamp.size, one.stamp.etag) == (7, found["ETag"])
        assert one.stamp.modified_ns // 10**9 == int(found["LastModified"].timestamp())
        assert not one.is_stream


def test_a_marker_of_a_folder_is_no_input(bucket: Bucket):
    bucket.put("m/", b"")
    bucket.put("m/x/", b"")
    bucket.put("m/x/1.txt", b"a\n")
    assert [one.name for one in list_inputs(f"{bucket.url}/m")] == [f"{bucket.url}/m/x/1.txt"]


def test_a_marker_of_an_empty_folder_is_no_input(tmp_path: Path, bucket: Bucket):
    for folder in ("aaa", "y/z"):
        (tmp_path / "in" / folder).mkdir(parents=True)
    (tmp_path / "in" / "empty").touch()
    for key in ("", "aaa/", "y/z/", "empty"):
        bucket.put(f"in/{key}", b"")
    for pattern in ("", "**", "a*/"):
        assert expand(pattern, f"{bucket.url}/in/") == expand(pattern, f"{tmp_path}/in/")


def test_only_objects_without_bytes_are_asked_for_under_their_very_keys(bucket: Bucket):
    names = [f"{number}" for number in range(40)]
    for name in names:
        bucket.put(f"many/{name}{'' if int(name) % 2 else '/'}", b"")
    bucket.put("many/full", b"a\n")
    bucket.proxy.clear()
    listed = [one.name for one in list_inputs(f"{bucket.url}/many/")]
    assert listed == [f"{bucket.url}/many/{name}" for name in [*names[1::2], "full"]]
    asked = [one for one in bucket.proxy.requests if one.startswith("HEAD")]
    assert sorted(asked) == sorted(f"HEAD /{bucket.name}/many/{name}" for name in names)


def test_a_marker_hides_no_object_of_its_name(bucket: Bucket):
    bucket.put("m/x", b"a\n")
    bucket.put("m/x/", b"")
    bucket.put("n", b"")
    bucket.put("n/", b"")
    (found,) = list_inputs(f"{bucket.url}/m/")
    assert found.stamp is not None
    assert (found.name, found.stamp.size) == (f"{bucket.url}/m/x", 2)
    with pytest.raises(MissingInputError):
        list_inputs(f"{bucket.url}/n/")


def test_files_of_a_table_are_refused(bucket: Bucket):
    bucket.put("t/part/1.parquet", b"")
    bucket.put("t/_delta_log/0.json", b"")
    for pattern in ("t/", "t/part*", "t*"):
        with pytest.raises(InputError, match=r"has files of the Delta Lake table '.*/t'"):
            list_inputs(f"{bucket.url}/{pattern}")
    assert list_inputs(f"{bucket.url}/in/b/*.txt")
    bucket.put("other.txt", b"a\n")
    assert [one.name for one in list_inputs(f"{bucket.url}/*.txt")] == [f"{bucket.url}/other.txt"]


def test_a_listing_of_several_pages_is_whole(bucket: Bucket):
    for number in range(205):
        bucket.put(f"many/{number}.txt", b"")
    bucket.proxy.clear()
    names = [one.name for one in list_inputs(f"{bucket.url}/many/")]
    assert names == [f"{bucket.url}/many/{number}.txt" for number in range(205)]
    assert bucket.proxy.count("GET .*continuation-token=") == 2


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
