"""Inputs on servers of HTTP, and in file systems of fsspec."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import fsspec
import pytest

import recshuf
from recshuf.errors import (
    DirectoryInputError,
    ForbiddenInputError,
    InputError,
    MissingInputError,
    UnavailableInputError,
)
from recshuf.storage import requests
from recshuf.storage.reading import fsspec_stores
from recshuf.storage.reading import fsspec_stores as hub_stores
from tests.support.numbered_files import FORMATS, SUFFIXES, make_inputs
from tests.support.objects.object_outputs import shuffle

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.objects.object_server import Bucket, ProxiedRequest

CONTENT = b"".join(b"%0999d\n" % number for number in range(10_000))


@pytest.fixture
def public(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """Return a bucket whose object ``in.txt`` anybody may read."""
    monkeypatch.setattr(requests, "FIRST_PAUSE_SECONDS", 0.001)
    put(bucket, "in.txt", CONTENT)
    return bucket


def put(bucket: Bucket, key: str, content: bytes) -> None:
    bucket.client.put_object(Bucket=bucket.name, Key=key, Body=content, ACL="public-read")


def url_of(bucket: Bucket, key: str = "in.txt") -> str:
    return f"{bucket.proxy.url}/{bucket.name}/{key}"


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_of_a_server_is_read_as_a_local_one(tmp_path: Path, bucket: Bucket, name: str):
    (source,) = make_inputs(tmp_path / "in", name, (500,))
    put(bucket, source.name, source.read_bytes())
    outputs = [tmp_path / f"{place}{SUFFIXES[name]}" for place in ("local", "remote")]
    for given, output in zip((source, url_of(bucket, source.name)), outputs, strict=True):
        shuffle(given, output, shards=None)
    assert outputs[0].read_bytes() == outputs[1].read_bytes()
    assert recshuf.verify(url_of(bucket, source.name), outputs[1])


def test_failures_are_tried_again(tmp_path: Path, public: Bucket):
    public.proxy.answer("GET .*", 503, "SlowDown", times=2)
    public.proxy.cut_body("GET .*", times=2)
    report = shuffle(url_of(public), tmp_path / "out.txt", shards=None)
    assert report.records == 10_000
    assert report.downloads is not None
    assert report.downloads.retries == 4


def test_a_file_that_changes_is_an_error(tmp_path: Path, public: Bucket):
    seen = iter(range(1000))
    public.proxy.call("GET .*", lambda: next(seen) == 1 and put(public, "in.txt", CONTENT[::-1]), times=1000)
    with pytest.raises(InputError, match=r"in.txt: changed while it was read"):
        shuffle(url_of(public), tmp_path / "out.txt", shards=None)


def test_a_missing_file_is_an_error(tmp_path: Path, public: Bucket):
    with pytest.raises(MissingInputError, match=r"nothing.txt: there is nothing at this URL; check it"):
        shuffle(url_of(public, "nothing.txt"), tmp_path / "out.txt", shards=None)


@pytest.mark.parametrize("path", ["", "/", "/dir/", "/a/dir//"])
def test_a_folder_of_a_server_is_refused(tmp_path: Path, public: Bucket, path: str):
    put(public, "dir/", b"<html>")
    url = f"{public.proxy.url}{path}"
    with pytest.raises(
        DirectoryInputError, match=f"^{url}: is a folder, which HTTP does not list; name a file in it$"
    ):
        shuffle(url, tmp_path / "out.txt", shards=None)
    assert public.proxy.requests == []


def test_a_file_that_a_query_names_is_read(tmp_path: Path, public: Bucket):
    url = url_of(public, "in.txt?name=/in/")
    assert shuffle(url, tmp_path / "out.txt", shards=None).records == 10_000


@pytest.mark.parametrize("status", [404, 410])
def test_a_file_that_the_server_says_is_gone_is_missing(tmp_path: Path, public: Bucket, status: int):
    public.proxy.answer("(HEAD|GET) .*", status, "Gone", times=100)
    with pytest.raises(MissingInputError, match=r"in.txt: there is nothing at this URL; check it"):
        shuffle(url_of(public), tmp_path / "out.txt", shards=None)


@pytest.mark.parametrize("status", [500, 503])
def test_a_server_that_is_busy_at_first_is_asked_again(tmp_path: Path, public: Bucket, status: int):
    # A HEAD that fails is followed by a GET.
    public.proxy.answer("(HEAD|GET) .*", status, "Busy", times=4)
    report = shuffle(url_of(public), tmp_path / "out.txt", shards=None)
    assert report.records == 10_000
    assert report.downloads is not None
    assert report.downloads.retries == 2


def test_a_server_that_stays_busy_is_no_missing_file(tmp_path: Path, public: Bucket):
    public.proxy.answer("(HEAD|GET) .*", 503, "Busy", times=100)
    with pytest.raises(InputError, match=r"in.txt: the store is busy \(503\), after 8 attempts") as caught:
        shuffle(url_of(public), tmp_path / "out.txt", shards=None)
    assert not isinstance(caught.value, MissingInputError)


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://host/in.txt", "http://[bad", "/again.txt"])
@pytest.mark.parametrize("request_pattern", ["GET .*", "(HEAD|GET) .*"])
def test_a_redirect_that_leads_nowhere_is_an_error_at_once(
    tmp_path: Path, public: Bucket, request_pattern: str, location: str
):
    def redirect(one: ProxiedRequest) -> bool:
        one.send_response_only(302)
        one.send_header("Location", location)
        one.send_header("Content-Length", "0")
        one.end_headers()
        one.wfile.flush()
        return True

    public.proxy.add(request_pattern, redirect, 10**6)
    said = "in a circle" if location == "/again.txt" else "to a URL that is not of HTTP"
    with pytest.raises(
        UnavailableInputError, match=rf"^http:.*in\.txt: the server redirects {said}.*; check the URL$"
    ):
        shuffle(url_of(public), tmp_path / "out.txt", shards=None)
    assert public.proxy.count(".*/in[.]txt") < requests.ATTEMPTS


@pytest.mark.parametrize("request_pattern", ["GET .*", "(HEAD|GET) .*"])
def test_what_else_a_server_answers_is_told_with_a_remedy(
    tmp_path: Path, public: Bucket, request_pattern: str
):
    public.proxy.answer(request_pattern, 418, "Teapot", times=100)
    with pytest.raises(
        UnavailableInputError, match=r"in\.txt: the store answers 418: .*; check the URL, or run again later$"
    ):
        shuffle(url_of(public), tmp_path / "out.txt", shards=None)


def test_a_denied_access_is_an_error_at_once(tmp_path: Path, public: Bucket):
    public.proxy.answer("(HEAD|GET) .*", 403, "AccessDenied", times=100)
    with pytest.raises(ForbiddenInputError, match=r"in.txt: access is denied \(403\)"):
        shuffle(url_of(public), tmp_path / "out.txt", shards=None)
    assert [one.split()[0] for one in public.proxy.requests] == ["HEAD", "GET"]


def test_a_server_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(requests, "FIRST_PAUSE_SECONDS", 0.001)
    with pytest.raises(InputError, match=r"/in.txt: the store cannot be reached: .*, after 8 attempts"):
        shuffle("http://127.0.0.1:9/in.txt", tmp_path / "out.txt", shards=None)


@pytest.mark.parametrize("date", ["soon", "Mon, 99 Jan 2024 00:00:00 GMT"])
def test_a_date_that_cannot_be_read_counts_as_none(tmp_path: Path, public: Bucket, date: str):
    def answer(one: ProxiedRequest) -> bool:
        one.send_response_only(200)
        one.send_header("Content-Length", str(len(CONTENT)))
        one.send_header("Last-Modified", date)
        one.end_headers()
        one.wfile.flush()
        return True

    public.proxy.add("HEAD .*", answer, 100)
    assert shuffle(url_of(public), tmp_path / "out.txt", shards=None).records == 10_000


def test_a_server_without_ranges_is_named(tmp_path: Path, public: Bucket):
    public.proxy.add("GET .*", lambda one: one.forward(left_out=("Range",)), 100)
    with pytest.raises(InputError, match=r"in.txt: the server takes no ranges; download the file$"):
        shuffle(url_of(public), tmp_path / "out.txt", shards=None)


def test_a_reply_with_another_range_is_an_error(tmp_path: Path, public: Bucket):
    def send_begin(one: ProxiedRequest) -> bool:
        first, last = map(int, re.findall(r"\d+", one.headers["Range"]))
        content = CONTENT[: min(last, len(CONTENT) - 1) - first + 1]
        one.send_response_only(206)
        one.send_header("Content-Range", f"bytes 0-{len(content) - 1}/{len(CONTENT)}")
        one.send_header("Content-Length", str(len(content)))
        one.end_headers()
        one.wfile.write(content)
        one.wfile.flush()
        return True

    public.proxy.add("GET .*", send_begin, 100)
    with pytest.raises(
        InputError, match=r"in.txt: the server sends other bytes than asked for; download the file$"
    ):
        shuffle(url_of(public), tmp_path / "out.txt", shards=None)


@pytest.mark.parametrize("name", FORMATS)
def test_a_small_file_is_fetched_whole_so_that_it_needs_no_ranges(tmp_path: Path, bucket: Bucket, name: str):
    (source,) = make_inputs(tmp_path / "in", name, (12_000,))
    assert source.stat().st_size <= 512 << 10
    put(bucket, source.name, source.read_bytes())
    bucket.proxy.add("GET .*", lambda one: one.forward(left_out=("Range",)), 100)
    output = tmp_path / f"out{SUFFIXES[name]}"
    assert shuffle(url_of(bucket, source.name), output, shards=None).records == 12_000


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[fsspec.AbstractFileSystem]:
    """Return a file system in memory that stands in for the hub, and holds a data set."""
    files = fsspec.filesystem("memory")
    monkeypatch.setattr(
        hub_stores, "open_hub", lambda url, options: fsspec_stores.FsspecStore(files, "memory://")
    )
    files.pipe({f"/user/set/{name}": CONTENT for name in ("b10.txt", "b9.txt", ".hidden.txt", "x/a.txt")})
    yield files
    files.rm("/user", recursive=True)


def test_a_data_set_of_the_hub_is_listed_and_read(tmp_path: Path, hub: fsspec.AbstractFileSystem):
    report = shuffle("hf://datasets/user/set/", tmp_path / "out.txt", shards=None)
    names = [one.name.removeprefix("hf://datasets/user/set/") for one in report.inputs]
    assert names == ["b9.txt", "b10.txt", "x/a.txt"]
    assert report.records == 30_000


def test_a_file_of_the_hub_that_changes_is_an_error(
    tmp_path: Path, hub: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch
):
    read = type(hub).cat_file

    def change(self: fsspec.AbstractFileSystem, path: str, **options: object) -> bytes:
        content = read(self, path, **options)
        self.pipe({"/user/set/b9.txt": CONTENT * 2})
        return content

    monkeypatch.setattr(type(hub), "cat_file", change)
    with pytest.raises(InputError, match=r"b9.txt: has changed while it was read: its size was"):
        shuffle("hf://datasets/user/set/b9.txt", tmp_path / "out.txt", shards=None)


def test_a_name_that_the_hub_does_not_allow_is_an_error_at_once(
    tmp_path: Path, hub: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch
):
    requests = []

    def refuse(self: fsspec.AbstractFileSystem, path: str, **options: object) -> None:
        requests.append(path)
        raise ValueError("Repository id must be 'namespace/name'")

    with monkeypatch.context() as patch:
        patch.setattr(type(hub), "info", refuse)
        patch.setattr(type(hub), "find", refuse)
        with pytest.raises(InputError, match=r"Repository id must be 'namespace/name'; check the URL"):
            shuffle("hf://a/b/c/d.txt", tmp_path / "out.txt", shards=None)
    assert len(requests) == 1
