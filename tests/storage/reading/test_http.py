"""Inputs on servers of HTTP: the bytes of one version of a file, or one clear error."""

from __future__ import annotations

import re
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import pytest

import recshuf
from recshuf.errors import (
    DirectoryInputError,
    ForbiddenInputError,
    InputError,
    MissingInputError,
    UnavailableInputError,
)
from recshuf.storage.requests import ATTEMPTS
from tests.support.numbered_files import FORMATS, SUFFIXES, make_inputs
from tests.support.objects.object_outputs import shuffle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.objects.object_server import Bucket, ProxiedRequest

pytestmark = pytest.mark.usefixtures("no_pauses")

CONTENT = b"".join(b"%0999d\n" % number for number in range(4000))
"""More than a small file that is fetched whole."""
ASK = "(HEAD|GET) .*"
OTHERS_SLOW = [
    name if name in ("text", "parquet") else pytest.param(name, marks=pytest.mark.slow) for name in FORMATS
]


@pytest.fixture
def public(bucket: Bucket) -> Bucket:
    """Return a bucket whose object ``in.txt`` anybody may read."""
    put(bucket, "in.txt", CONTENT)
    return bucket


def put(bucket: Bucket, key: str, content: bytes) -> None:
    bucket.put(key, content, {"x-amz-acl": "public-read"})


def url_of(bucket: Bucket, key: str = "in.txt") -> str:
    return f"{bucket.proxy.url}/{bucket.name}/{key}"


def reply(request: ProxiedRequest, status: int, headers: dict[str, str], content: bytes = b"") -> bool:
    request.send_response_only(status)
    for name, value in ({"Content-Length": str(len(content))} | headers).items():
        request.send_header(name, value)
    request.end_headers()
    request.wfile.write(content)
    request.wfile.flush()
    return True


def read(url: str, tmp_path: Path) -> recshuf.ShuffleReport:
    return shuffle(url, tmp_path / "out.txt", shards=None)


@pytest.mark.parametrize("name", OTHERS_SLOW)
def test_a_file_of_a_server_is_read_as_a_local_one_and_needs_no_ranges_if_it_is_small(
    tmp_path: Path, bucket: Bucket, name: str
):
    (source,) = make_inputs(tmp_path / "in", name, (12_000,))
    assert source.stat().st_size <= 512 << 10
    put(bucket, source.name, source.read_bytes())
    local, remote = (tmp_path / f"{place}{SUFFIXES[name]}" for place in ("local", "remote"))
    shuffle(source, local, shards=None)
    for takes_ranges in (True, False):
        if not takes_ranges:
            bucket.proxy.add("GET .*", lambda one: one.forward(left_out=("Range",)), 100)
        shuffle(url_of(bucket, source.name), remote, shards=None, overwrite=True)
        assert local.read_bytes() == remote.read_bytes()
        assert recshuf.verify(url_of(bucket, source.name), remote)


def test_failures_are_tried_again(tmp_path: Path, public: Bucket):
    public.proxy.answer(ASK, 500, "Busy", times=4)  # a HEAD that fails is followed by a GET
    public.proxy.answer("GET .*", 503, "SlowDown", times=2)
    public.proxy.cut_body("GET .*", times=2)
    public.proxy.cut_body("GET .*", times=1, cuts="stated")
    report = read(url_of(public), tmp_path)
    assert sorted((tmp_path / "out.txt").read_bytes().splitlines(keepends=True)) == sorted(
        CONTENT.splitlines(keepends=True)
    )
    assert report.downloads is not None
    assert report.downloads.retries == 2 + 5


def test_a_server_that_does_not_answer_is_named(tmp_path: Path):
    with pytest.raises(InputError, match=r"reached: .*, after 8 attempts; check the URL and the network, or"):
        read("http://127.0.0.1:9/in.txt", tmp_path)


@pytest.mark.parametrize(
    ("request_pattern", "status", "kind", "said"),
    [
        (ASK, 503, UnavailableInputError, r"the store is busy \(503\), after 8 attempts; run again later"),
        *((ASK, gone, MissingInputError, "there is nothing at this URL; check it") for gone in (404, 410)),
        (ASK, 403, ForbiddenInputError, r"access is denied \(403\); check the cred.*"),
        *(
            (
                pattern,
                418,
                UnavailableInputError,
                "the store answers 418: .*; check the URL, or run again later",
            )
            for pattern in ("GET .*", ASK)
        ),
    ],
)
def test_what_a_server_answers_is_told_with_a_remedy(
    tmp_path: Path, public: Bucket, request_pattern: str, status: int, kind: type[InputError], said: str
):
    public.proxy.answer(request_pattern, status, "Code", times=100)
    with pytest.raises(InputError, match=rf"in\.txt: {said}$") as caught:
        read(url_of(public), tmp_path)
    assert type(caught.value) is kind
    if status == 403:
        assert [one.split()[0] for one in public.proxy.requests] == ["HEAD", "GET"]


@pytest.mark.parametrize("path", ["", "/dir/", "/a/dir//"])
def test_a_folder_of_a_server_is_refused(tmp_path: Path, public: Bucket, path: str):
    url = f"{public.proxy.url}{path}"
    said = f"^{url}: is a folder, which HTTP does not list; name a file in it$"
    with pytest.raises(DirectoryInputError, match=said):
        read(url, tmp_path)
    assert public.proxy.requests == []


@pytest.mark.parametrize(
    ("request_pattern", "location"),
    [
        ("GET .*", "file:///etc/passwd"),
        (ASK, "ftp://host/in.txt"),
        ("GET .*", "http://[bad"),
        (ASK, "/again.txt"),
    ],
)
def test_a_redirect_that_leads_nowhere_is_an_error_at_once(
    tmp_path: Path, public: Bucket, request_pattern: str, location: str
):
    public.proxy.add(request_pattern, lambda one: reply(one, 302, {"Location": location}), 10**6)
    said = "in a circle" if location == "/again.txt" else "to a URL that is not of HTTP"
    with pytest.raises(
        UnavailableInputError, match=rf"^http:.*in\.txt: the server redirects {said}.*; check the URL$"
    ):
        read(url_of(public), tmp_path)
    assert public.proxy.count(".*/in[.]txt") < ATTEMPTS


@pytest.mark.parametrize("date", ["soon", "Mon, 99 Jan 2024 00:00:00 GMT"])
def test_a_date_that_cannot_be_read_counts_as_none(tmp_path: Path, public: Bucket, date: str):
    headers = {"Content-Length": str(len(CONTENT)), "Last-Modified": date}
    public.proxy.add("HEAD .*", lambda one: reply(one, 200, headers), 100)
    assert read(url_of(public), tmp_path).records == 4000


def test_bytes_are_asked_for_as_they_are(tmp_path: Path, public: Bucket):
    """Ranges of a compressed reply would be others, and have another ETag."""
    encodings = set()
    public.proxy.add(ASK, lambda one: bool(encodings.add(one.headers["Accept-Encoding"])), 10**6)
    read(url_of(public), tmp_path)
    assert encodings == {"identity"}


def send_begin(one: ProxiedRequest) -> bool:
    first, last = map(int, re.findall(r"\d+", one.headers["Range"]))
    content = CONTENT[: min(last, len(CONTENT) - 1) - first + 1]
    return reply(one, 206, {"Content-Range": f"bytes 0-{len(content) - 1}/{len(CONTENT)}"}, content)


@pytest.mark.parametrize(
    ("strike", "said"),
    [
        (lambda one: one.forward(left_out=("Range",)), "takes no ranges"),
        (send_begin, "sends other bytes than asked for"),
    ],
)
def test_a_server_that_sends_other_ranges_is_named(
    tmp_path: Path, public: Bucket, strike: Callable[[ProxiedRequest], bool], said: str
):
    public.proxy.add("GET .*", strike, 100)
    with pytest.raises(InputError, match=f"in.txt: the server {said}; download the file$"):
        read(url_of(public), tmp_path)


# Files that are replaced while they are read


def test_a_file_that_changes_is_an_error(tmp_path: Path, public: Bucket):
    seen = iter(range(1000))
    public.proxy.call("GET .*", lambda: next(seen) == 1 and put(public, "in.txt", CONTENT[::-1]), times=1000)
    with pytest.raises(InputError, match=r"in.txt: changed while it was read"):
        read(url_of(public), tmp_path)
    assert not (tmp_path / "out.txt").exists()


NEW = {"other": CONTENT.replace(b"0", b"1"), "shorter": CONTENT[: len(CONTENT) // 2], "longer": CONTENT * 2}


class Version(NamedTuple):
    """What a server sends after some requests for content, and what it says of it."""

    after: int
    content: bytes
    etag: str
    """``strong``, ``weak``, ``head`` if only a HEAD tells it, or empty."""
    has_date: bool
    has_total: bool


@contextmanager
def serve(version: Version) -> Iterator[str]:
    """Serve a file that is replaced; conditions are ignored."""
    count = 0

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            nonlocal count
            is_new = count >= version.after
            count += self.command == "GET"
            content = version.content if is_new else CONTENT
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", f"bytes=0-{len(content)}"))
            begin, end = (int(asked[1]), min(int(asked[2]) + 1, len(content))) if asked else (0, len(content))
            is_there = begin < end
            self.send_response_only((206 if "Range" in self.headers else 200) if is_there else 416)
            if version.etag and (version.etag != "head" or self.command == "HEAD"):
                self.send_header("ETag", f'{"W/" if version.etag == "weak" else ""}"{is_new}"')
            if version.has_date:
                self.send_header("Last-Modified", f"Mon, 01 Jan 2024 00:00:0{int(is_new)} GMT")
            if "Range" in self.headers:
                total = len(content) if version.has_total else "*"
                self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{total}")
            self.send_header("Content-Length", str(max(0, end - begin)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content[begin:end])

        do_HEAD = do_GET  # noqa: N815 - name of the base class

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/in.txt"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


KINDS = [one for one in product(["strong", "weak", "head", ""], [True, False]) if any(one)]


@pytest.mark.parametrize(("etag", "has_date"), KINDS)
def test_versions_are_never_mixed(tmp_path: Path, etag: str, has_date: bool):
    for new, has_total in product(NEW, (True, False)):
        with (
            serve(Version(1, NEW[new], etag, has_date, has_total)) as url,
            pytest.raises(InputError, match=r"/in\.txt: (has )?changed while it was read"),
        ):
            read(url, tmp_path)
        assert not (tmp_path / "out.txt").exists()


def test_a_file_that_is_replaced_after_it_was_read_is_no_input(tmp_path: Path):
    """As many requests as a read makes are too few for a replaced file, whatever tells that it is another one."""

    def count_requests(etag: str, has_date: bool) -> int:
        for count in range(1, 20):
            with serve(Version(count, NEW["other"], etag, has_date, True)) as url, suppress(InputError):
                read(url, tmp_path)
                (tmp_path / "out.txt").unlink()
                return count
        raise AssertionError("it is always another one")

    assert count_requests("weak", has_date=False) == count_requests("", has_date=True) > 1


@pytest.mark.parametrize("etag", ["strong", "weak", "head", ""])
def test_a_file_that_stays_is_read(tmp_path: Path, etag: str):
    with serve(Version(10**6, b"", etag, has_date=False, has_total=True)) as url:
        assert read(url, tmp_path).records == 4000
