"""URLs are told from paths, and taken apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from recshuf.errors import UsageError
from recshuf.storage.settings import parse_storage_options
from recshuf.storage.urls import Url, is_url, refuse_unknown_scheme

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://b/a", True),
        ("S3://b", True),
        ("https://h", True),
        ("a/b", False),
        ("s3:/b", False),
        ("ftp://b", False),
    ],
)
def test_urls_are_told_from_paths(text: str, expected: bool):
    assert is_url(text) == expected


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
@pytest.mark.parametrize("bucket", ["no bucket", "a\nb", "a?b", "a#b", "a%20b", "b*", "bücket"])
def test_a_name_that_no_store_takes_is_refused_in_a_line(scheme: str, bucket: str):
    with pytest.raises(
        UsageError, match=rf"^'{scheme}://.*': no bucket has such a name; check it$"
    ) as caught:
        Url.parse(f"{scheme}://{bucket}/x/")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "s3://My_old.Bucket-1/",
        "gs://example.com:old/",
        "az://$web/",
        "http://user:pass@host:80/",
        "http://[::1]:80/",
    ],
)
def test_names_that_stores_take_are_taken(text: str):
    assert str(Url.parse(text)) == text


def test_storage_options_are_parsed():
    assert parse_storage_options(["a=b", "c=d=e", "f="]) == {"a": "b", "c": "d=e", "f": ""}
    assert parse_storage_options({"a": "b"}) == {"a": "b"}
    for text in ("a", "=b"):
        with pytest.raises(UsageError, match="write NAME=VALUE"):
            parse_storage_options([text])
    with pytest.raises(UsageError, match=r"--storage-option: give a dict, such as {'region': 'eu-west-1'}"):
        parse_storage_options("region=eu-west-1")
