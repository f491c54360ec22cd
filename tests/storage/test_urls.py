"""URLs are told from paths, and taken apart; options of object stores hold for the stores that they name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from recshuf.errors import UsageError
from recshuf.storage.settings import StorageOptions, parse_storage_options
from recshuf.storage.urls import Url, is_url, refuse_unknown_scheme

if TYPE_CHECKING:
    from pathlib import Path

BUCKET = Url.parse("s3://bucket/key")


def test_urls_are_told_from_paths():
    texts = ["s3://b/a", "S3://b", "https://h", "a/b", "s3:/b", "ftp://b"]
    assert [is_url(text) for text in texts] == [True, True, True, False, False, False]


def test_a_folder_named_like_a_scheme_makes_no_path_of_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s3:" / "b").mkdir(parents=True)
    assert is_url("s3://b/a")
    assert not is_url("./s3:/b/a")


def test_a_path_that_exists_has_no_unknown_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="URLs of ftp:// are not known"):
        refuse_unknown_scheme("ftp://b/a")
    (tmp_path / "ftp:").mkdir()
    refuse_unknown_scheme("ftp://b/a")


@pytest.mark.parametrize("text", ["s3://b/", "s3://b/a", "s3://b/a/", "gs://b/a//c d?e=f#g"])
def test_a_url_is_what_it_was(text: str):
    assert str(Url.parse(text)) == text


def test_parts_of_a_url():
    url = Url.parse("S3://b/a/c.txt")
    assert (url.scheme, url.bucket, url.key) == ("s3", "b", "a/c.txt")
    assert str(url.parent) == "s3://b/a/"
    assert str(url.parent.parent) == str(Url.parse("s3://b").parent) == "s3://b/"
    assert str(url.parent.join("d")) == str(Url.parse("s3://b/a").join("d")) == "s3://b/a/d"
    with pytest.raises(UsageError, match="s3:///a: has no bucket; write for example s3://bucket/prefix/"):
        Url.parse("s3:///a")


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_a_name_that_no_store_takes_is_refused_in_a_line(scheme: str):
    for bucket in ("no bucket", "a\nb", "a?b", "a#b", "a%20b", "b*", "bücket"):
        with pytest.raises(UsageError, match=rf"^'{scheme}://.*': no bucket has such a name; check") as told:
            Url.parse(f"{scheme}://{bucket}/x/")
        assert "\n" not in str(told.value)


def test_names_that_stores_take_are_taken():
    for text in (
        *("s3://My_old.Bucket-1/", "gs://example.com:old/", "az://$web/"),
        *("http://user:pass@host:80/", "http://[::1]:80/"),
    ):
        assert str(Url.parse(text)) == text


# Options


def test_storage_options_are_parsed():
    assert parse_storage_options(["a=b", "c=d=e", "f="]) == {"a": "b", "c": "d=e", "f": ""}
    assert parse_storage_options({"a": "b"}) == {"a": "b"}
    for text in ("a", "=b"):
        with pytest.raises(UsageError, match="write NAME=VALUE"):
            parse_storage_options([text])
    with pytest.raises(UsageError, match=r"--storage-option: give a dict, such as {'region': 'eu-west-1'}"):
        parse_storage_options("region=eu-west-1")


@pytest.mark.parametrize("is_reversed", [False, True])
def test_the_narrowest_scope_wins(is_reversed: bool):
    given = {"region": "all", "s3:region": "scheme", "s3://bucket:region": "bucket", "gs:region": "other"}
    names = sorted(given, reverse=is_reversed)
    for name in ("s3://bucket:region", "s3:region", "region"):
        found = StorageOptions(None, {name: given[name] for name in names}).of(BUCKET)
        assert found.options == {"region": given[name]}
        names.remove(name)


def test_options_of_other_stores_are_left_out():
    names = ("gs:a", "gs://bucket:b", "s3://bucket2:c", "s3://buck:d", "hf:endpoint_url")
    found = StorageOptions("http://all", dict.fromkeys(names, "http://x")).of(BUCKET)
    assert found == StorageOptions("http://all", {})


def test_an_endpoint_of_one_bucket_takes_the_place_of_that_of_all():
    options = StorageOptions("http://all", {"s3://bucket:endpoint_url": "http://one"})
    assert options.of(BUCKET).endpoint_url == "http://one"
    assert options.of(Url.parse("s3://other/")).endpoint_url == "http://all"


def test_a_scope_that_is_no_store_is_refused():
    for name in ("s4:region", "s3://bucket/:region", "s3://bucket/a:region", "s3://:region"):
        said = rf"^--storage-option {name}: is an option of no store; write s3:NAME=VALUE"
        with pytest.raises(UsageError, match=said):
            StorageOptions(None, {name: "x"})


def test_an_endpoint_that_is_no_server_is_refused_by_the_name_of_its_option():
    for name in ("endpoint_url", "gs:endpoint_url", "s3://bucket:endpoint_url"):
        said = rf"^--storage-option {name}: 'localhost' is no URL of a server"
        with pytest.raises(UsageError, match=said):
            StorageOptions(None, {name: "localhost"})
    with pytest.raises(UsageError, match=r"^--endpoint-url: '' is no URL of a server"):
        StorageOptions("")
