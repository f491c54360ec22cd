"""Keys with slashes at their begin or end, which obstore drops: no record is lost, and no other object is read."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import TYPE_CHECKING

import pytest

import recshuf
from recshuf.errors import InputError
from recshuf.interfaces import Stamp
from recshuf.storage.reading.stores import ObstoreStore
from recshuf.storage.settings import StorageOptions
from recshuf.storage.urls import Url
from tests.support.objects.object_outputs import STORES, shuffle

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.objects.object_outputs import AnyBucket
    from tests.support.objects.object_server import Bucket

UNREADABLE = "has a key that cannot be read: "


@pytest.fixture(params=STORES)
def any_bucket(request: pytest.FixtureRequest) -> AnyBucket:
    """Return a new bucket of each store."""
    found: AnyBucket = request.getfixturevalue(request.param)
    return found


@pytest.mark.parametrize("key", ["/x", "//", "/", "d//x", "/d/x"])
def test_a_key_with_an_empty_part_is_refused_at_once(any_bucket: AnyBucket, key: str):
    any_bucket.put("x", b"other\n")
    any_bucket.put("d/x", b"other\n")
    any_bucket.proxy.clear()
    url = Url.parse(f"{any_bucket.url}/")
    store = ObstoreStore(url, StorageOptions())
    asks = [
        partial(store.find, key),
        partial(store.list, f"{key.removesuffix('/')}/"),
        partial(store.get, key, 0, 1, Stamp(6)),
    ]
    for ask in asks:
        with pytest.raises(InputError, match=f"^{url}{key}/?: {UNREADABLE}it has an empty part; leave out"):
            ask()
    assert any_bucket.proxy.requests == []


@pytest.mark.parametrize("path", ["/x", "/*", "/d/", "d//", "/", "d//*"])
def test_a_url_with_an_empty_part_is_refused(tmp_path: Path, bucket: Bucket, path: str):
    for key in ("x", "d/x"):
        bucket.put(key, b"other\n")
    with pytest.raises(InputError, match=f"{UNREADABLE}.* empty p"):
        shuffle(f"{bucket.url}/{path}", tmp_path / "out.txt", shards=None)


SIZES = ("absent", "empty", "full")


@pytest.mark.parametrize("sizes", list(product(SIZES, repeat=3)), ids="-".join)
@pytest.mark.parametrize(("prefix", "forms"), [("", ("/x", "x", "x/")), ("d/", ("d/x", "d/x/", "d/"))])
def test_no_record_of_a_listing_is_lost(
    tmp_path: Path, bucket: Bucket, prefix: str, forms: tuple[str, ...], sizes: tuple[str, ...]
):
    records = {form: f"{form}\n".encode() for form, size in zip(forms, sizes, strict=True) if size == "full"}
    for form, size in zip(forms, sizes, strict=True):
        if size != "absent":
            bucket.put(form, records.get(form, b""))
    bucket.put(f"{prefix}z", b"z\n")
    try:
        shuffle(f"{bucket.url}/{prefix}", tmp_path / "out.txt", shards=None, format="text")
    except InputError as error:
        assert UNREADABLE in str(error)
        assert records.keys() - {form.strip("/") for form in forms}
        return
    found = sorted((tmp_path / "out.txt").read_bytes().splitlines(keepends=True))
    assert found == sorted([*records.values(), b"z\n"])


@pytest.mark.parametrize("twin", ["x/", "/x"])
def test_objects_that_are_equal_but_for_a_slash_are_told_apart(tmp_path: Path, bucket: Bucket, twin: str):
    for key in ("x", twin):
        bucket.put(key, b"a\n")
    with pytest.raises(InputError, match=f"/x: {UNREADABLE}another object has this key but for a slash"):
        shuffle(f"{bucket.url}/", tmp_path / "out.txt", shards=None, format="text")


def test_an_object_that_is_listed_twice_is_read_once(tmp_path: Path, bucket: Bucket, monkeypatch):
    bucket.put("x", b"a\n")
    import obstore

    list_once = obstore.list

    def list_twice(*given: object, **options: object) -> list:
        return [*list_once(*given, **options)] * 2

    monkeypatch.setattr(obstore, "list", list_twice)
    assert shuffle(f"{bucket.url}/", tmp_path / "out.txt", shards=None, format="text").records == 1
    assert recshuf.verify(f"{bucket.url}/x", tmp_path / "out.txt")
