"""Patterns of URLs give what the same patterns give in a folder."""

from __future__ import annotations

import glob
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from recshuf.errors import InputError
from recshuf.formats import NameRules
from recshuf.interfaces import Stamp
from recshuf.storage.reading.listing import InputLister, find_pattern
from recshuf.storage.reading.objects import Stores
from recshuf.storage.requests import Entry, Requests
from recshuf.storage.settings import StorageOptions
from tests.support.effort import examples

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from recshuf.storage.urls import Url

NAMES = (
    "a.txt",
    "s/b.txt",
    "s/t/c.txt",
    "s2/a.txt",
    "t/t/t/d.txt",
    ".h/e.txt",
    "s/_h/f.txt",
    "t/out.recshuf.json",
)
PARTS = (
    "*",
    "**",
    "***",
    "?",
    "s",
    "s*",
    "s**",
    "t",
    "t*",
    "[as]*",
    "*.txt",
    "a.txt",
    ".h",
    "_h",
    "[._]*",
    "nothing",
)


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


def expand(root: str, pattern: str, names: Sequence[str] = NAMES) -> list[str] | None:
    """Return the names of the inputs below a root; None if there are none.

    Parameters
    ----------
    names
        Those of all objects.
    """
    lister = InputLister(NameRules(None), lambda _: None, NamedStores(names))
    try:
        return [one.name.removeprefix(root) for one in lister.list_all([f"{root}{pattern}"])]
    except InputError:
        return None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the same names."""
    found = tmp_path_factory.mktemp("globs") / "in"
    for name in NAMES:
        (found / name).parent.mkdir(parents=True, exist_ok=True)
        (found / name).touch()
    return found


@settings(max_examples=examples(500))
@given(parts=st.lists(st.sampled_from(PARTS), min_size=1, max_size=4), end=st.sampled_from(["", "/"]))
@example(parts=["**", "**"], end="")
@example(parts=["*", "**"], end="")
@example(parts=["***"], end="")
@example(parts=["s", "***"], end="")
@example(parts=["s**"], end="")
def test_a_url_gives_what_a_path_gives(folder: Path, parts: list[str], end: str):
    pattern = "/".join(parts) + end
    assume(glob.has_magic(pattern))
    found = expand(f"{folder}/", pattern)
    assert found == expand("s3://bucket/in/", pattern)
    assert found is None or len(set(found)) == len(found)


OUTPUTS = ("out", "s/out", "s/t/out", "t/_out", ".h/out", "in", "s/a.txt")


@settings(max_examples=examples(500))
@given(
    parts=st.lists(st.sampled_from(PARTS), max_size=4),
    end=st.sampled_from(["", "/"]),
    output=st.sampled_from(OUTPUTS),
    is_directory=st.booleans(),
)
def test_an_output_falls_in_the_patterns_that_would_list_it(
    parts: list[str], end: str, output: str, is_directory: bool
):
    pattern = "/".join(parts) + end
    assume(pattern not in NAMES)
    # Its suffix is not known.
    written = f"{output}/shard" if is_directory else output
    found = expand("s3://bucket/in/", pattern, [written]) or []
    root = "s3://bucket/in/"
    given = root + pattern if pattern else "s3://bucket/in"
    falls = find_pattern([given], root + output + "/" * is_directory, is_directory=is_directory)
    assert (falls == given) == (written in found)


def test_an_output_falls_in_no_input_of_another_bucket():
    others = [
        "s3://b/in/",
        "gs://bucket/in/",
        "s3://bucket/i",
        "s3://bucket/in/out/",
        "in",
        "https://bucket/in/x",
    ]
    for output in ("s3://bucket/in/out/", "s3://bucket/in/out"):
        assert find_pattern(others, output, is_directory=True) is None
        assert find_pattern([*others, "s3://bucket/in"], output, is_directory=True) == "s3://bucket/in"
