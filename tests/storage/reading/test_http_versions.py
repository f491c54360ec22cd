"""Files of servers of HTTP that are replaced while they are read: the output holds one version, or there is an error."""

from __future__ import annotations

import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import pytest

from recshuf.errors import InputError
from recshuf.storage import requests
from tests.support.objects.object_outputs import shuffle

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OLD = b"".join(b"%0999d\n" % number for number in range(4000))
VERSIONS = (OLD, OLD.replace(b"0", b"1"), OLD[: len(OLD) // 2], OLD * 2)


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
            content = version.content if is_new else OLD
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", f"bytes=0-{len(content)}"))
            assert asked is not None
            begin, end = int(asked[1]), min(int(asked[2]) + 1, len(content))
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


@pytest.mark.parametrize("content", range(1, len(VERSIONS)), ids=["other", "shorter", "longer"])
@pytest.mark.parametrize(
    ("etag", "has_date", "has_total"),
    [one for one in product(["strong", "weak", "head", ""], [True, False], [True, False]) if any(one[:2])],
)
def test_versions_are_never_mixed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: int,
    etag: str,
    has_date: bool,
    has_total: bool,
):
    monkeypatch.setattr(requests, "FIRST_PAUSE_SECONDS", 0.001)
    with (
        serve(Version(1, VERSIONS[content], etag, has_date, has_total)) as url,
        pytest.raises(InputError, match=r"/in\.txt: (has )?changed while it was read"),
    ):
        shuffle(url, tmp_path / "out.txt", shards=None)


@pytest.mark.parametrize("etag", ["strong", "weak", "head", ""])
def test_a_file_that_stays_is_read(tmp_path: Path, etag: str):
    with serve(Version(10**6, b"", etag, has_date=False, has_total=True)) as url:
        assert shuffle(url, tmp_path / "out.txt", shards=None).records == 4000
