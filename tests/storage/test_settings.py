"""Options of object stores: which stores they hold for."""

from __future__ import annotations

import pytest

from recshuf.errors import UsageError
from recshuf.storage.settings import StorageOptions
from recshuf.storage.urls import Url

BUCKET = Url.parse("s3://bucket/key")


@pytest.mark.parametrize("is_reversed", [False, True])
def test_the_narrowest_scope_wins(is_reversed: bool):
    given = {"region": "all", "s3:region": "scheme", "s3://bucket:region": "bucket", "gs:region": "other"}
    names = sorted(given, reverse=is_reversed)
    for expected in ("bucket", "scheme", "all"):
        found = StorageOptions(None, {name: given[name] for name in names}).of(BUCKET)
        assert found.options == {"region": expected}
        names.remove({"bucket": "s3://bucket:region", "scheme": "s3:region", "all": "region"}[expected])


def test_options_of_other_stores_are_left_out():
    names = ("gs:a", "gs://bucket:b", "s3://bucket2:c", "s3://buck:d", "hf:endpoint_url")
    found = StorageOptions("http://all", dict.fromkeys(names, "http://x")).of(BUCKET)
    assert found == StorageOptions("http://all", {})


def test_an_endpoint_of_one_bucket_takes_the_place_of_that_of_all():
    options = StorageOptions("http://all", {"s3://bucket:endpoint_url": "http://one"})
    assert options.of(BUCKET).endpoint_url == "http://one"
    assert options.of(Url.parse("s3://other/")).endpoint_url == "http://all"


@pytest.mark.parametrize("name", ["s4:region", "s3://bucket/:region", "s3://bucket/a:region", "s3://:region"])
def test_a_scope_that_is_no_store_is_refused(name: str):
    with pytest.raises(
        UsageError, match=rf"^--storage-option {name}: is an option of no store; write s3:NAME=VALUE"
    ):
        StorageOptions(None, {name: "x"})


@pytest.mark.parametrize("name", ["endpoint_url", "gs:endpoint_url", "s3://bucket:endpoint_url"])
def test_an_endpoint_that_is_no_server_is_refused_by_the_name_of_its_option(name: str):
    with pytest.raises(UsageError, match=rf"^--storage-option {name}: 'localhost' is no URL of a server"):
        StorageOptions(None, {name: "localhost"})
