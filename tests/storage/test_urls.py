"""URLs are told from paths, and taken apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from recshuf.errors import UsageError
from recshuf.storage.urls import Url, is_url, refuse_unknown_scheme

if TYPE_CHECKING:
    from pathlib import Path


def test_urls_are_told_from_paths():
    texts = ["s3://b/a", "S3://b", "https://h", "a/b", "s3:/b", "ftp://b"]
    assert [is_url(text) for text in texts] == [True, True, True, False, False, False]


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
    assert str(Url.parse("s3://b/a/").join("d")) == str(Url.parse("s3://b/a").join("d")) == "s3://b/a/d"
    with pytest.raises(UsageError, match="s3:///a: has no bucket; write for example s3://bucket/prefix/"):
        Url.parse("s3:///a")


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_a_name_that_no_store_takes_is_refused_in_a_line(scheme: str):
    for bucket in ("no bucket", "a\nb", "a?b", "a#b", "a%20b", "b*", "bücket"):
        with pytest.raises(UsageError, match=rf"^'{scheme}://.*': no bucket has such a name; check") as told:
            Url.parse(f"{scheme}://{bucket}/x/")
        assert "\n" not in str(told.value)
