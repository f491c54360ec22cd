"""A store of objects that is far away: files of a folder, read by the protocol of S3 through a slow link.

    python -m benchmarks.loading.far_server FOLDER PORT

Each request waits for the latency, then its bytes share one link with those of all others, in turns. ``GET /-/seen``
returns what was asked so far, without a wait, and is not counted.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from urllib.request import urlopen
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Iterator
    from urllib.parse import SplitResult

LATENCY = 0.05
"""Seconds that a request waits."""
LINK = 200_000_000
"""Bytes a second of all replies together."""
_TURN_BYTES = 128 << 10
_BEHIND_SECONDS = 0.01
"""A sender that wakes up late by less than this loses nothing."""


class Seen(NamedTuple):
    """What a server was asked."""

    requests: int
    byte_count: int
    spans: list[tuple[float, float, int]]
    """Begin, end and bytes of each request that has ended, in the order of their ends."""

    def count_depth(self, begun: int) -> int:
        """Return how many requests came one after the other up to the first of much data, those before `begun` aside."""
        spans, levels = self.spans[begun:], list[int]()
        most = max((size for *_, size in spans), default=0)
        for begin, _, size in spans:
            before = [level for (_, end, _), level in zip(spans, levels, strict=False) if end <= begin]
            levels.append(1 + max(before, default=0))
            if 2 * size >= most:
                break
        return levels[-1] if levels else 0


class _Link:
    """Hands out time on the link."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free = 0.0

    def wait(self, size: int) -> None:
        """Wait until so many bytes have passed."""
        with self._lock:
            self._free = max(self._free, time.perf_counter() - _BEHIND_SECONDS) + size / LINK
            ready = self._free
        time.sleep(max(0.0, ready - time.perf_counter()))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder: Path
    link = _Link()
    lock = threading.Lock()
    seen = Seen(0, 0, [])

    def log_message(self, *_: object) -> None: ...

    def setup(self) -> None:
        super().setup()
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if parts.path == "/-/seen":
            self._reply(200, json.dumps(self.seen).encode())
            return
        self._count(1, 0)
        begin, self._sent = time.perf_counter(), 0
        try:
            time.sleep(LATENCY)
            self._answer(parts)
        finally:
            self.seen.spans.append((begin, time.perf_counter(), self._sent))

    def _answer(self, parts: SplitResult) -> None:
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        if key:
            self._send_object(self.folder / bucket / key)
        elif "location" in query:
            self._reply(200, b"<LocationConstraint/>")
        else:
            self._reply(200, _list(self.folder / bucket, query))

    def _send_object(self, path: Path) -> None:
        if not path.is_file():
            self._reply(404, b"<Error><Code>NoSuchKey</Code><Message>no such key</Message></Error>")
            return
        size, etag = path.stat().st_size, _find_etag(path)
        if self.headers.get("If-Match", etag) not in (etag, "*"):
            self._reply(412, b"<Error><Code>PreconditionFailed</Code><Message>changed</Message></Error>")
            return
        begin, end = 0, size
        if (asked := re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))) is not None:
            first, last = asked.groups()
            begin = int(first) if first else max(0, size - int(last))
            end = min(size, int(last) + 1) if first and last else size
        self.send_response(200 if end - begin == size else 206)
        self.send_header("ETag", etag)
        self.send_header("Last-Modified", "Mon, 02 Nov 2026 10:00:00 GMT")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
        self.send_header("Content-Length", str(end - begin))
        self.end_headers()
        if self.command == "GET":
            with path.open("rb") as file:
                self._send_bytes(file.fileno(), begin, end)

    def _send_bytes(self, file: int, begin: int, end: int) -> None:
        self.wfile.flush()
        while begin < end:
            size = min(_TURN_BYTES, end - begin)
            self.link.wait(size)
            self._count(0, size)
            self._sent += size
            stop = begin + size
            while begin < stop:
                begin += os.sendfile(self.connection.fileno(), file, begin, stop - begin)

    def _reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def _count(self, requests: int, byte_count: int) -> None:
        with self.lock:
            requests, byte_count = requests + self.seen.requests, byte_count + self.seen.byte_count
            _Handler.seen = self.seen._replace(requests=requests, byte_count=byte_count)


def _find_etag(path: Path) -> str:
    status = path.stat()
    return f'"{status.st_mtime_ns:x}-{status.st_size:x}"'


def _list(folder: Path, query: dict[str, str]) -> bytes:
    """Return the keys of a bucket below a prefix, in one page."""
    prefix, delimiter, after = (query.get(name, "") for name in ("prefix", "delimiter", "start-after"))
    keys = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    contents, folders = [], dict[str, None]()
    for key in keys:
        if not key.startswith(prefix) or key <= after:
            continue
        head, found, _ = key.removeprefix(prefix).partition(delimiter) if delimiter else (key, "", "")
        if found:
            folders[f"{prefix}{head}{delimiter}"] = None
            continue
        contents.append(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-11-02T10:00:00.000Z</LastModified>"
            f"<ETag>{escape(_find_etag(folder / key))}</ETag><Size>{(folder / key).stat().st_size}</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
        )
    common = "".join(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in folders)
    return (
        f'<?xml version="1.0"?><ListBucketResult><Name>{escape(folder.name)}</Name><Prefix>{escape(prefix)}</Prefix>'
        f"<KeyCount>{len(contents) + len(folders)}</KeyCount><MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>"
        f"{''.join(contents)}{common}</ListBucketResult>"
    ).encode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_: object) -> None:
        """Let clients end when they want to."""


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Yield the URL of a server in a process of its own; each folder in `folder` is a bucket."""
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    child = subprocess.Popen([sys.executable, "-m", "benchmarks.loading.far_server", str(folder), str(port)])
    try:
        while child.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        child.terminate()
        child.wait()


def find_seen(url: str) -> Seen:
    """Return what a server was asked so far."""
    with urlopen(f"{url}/-/seen") as reply:
        return Seen(*json.load(reply))


if __name__ == "__main__":
    _Handler.folder = Path(sys.argv[1])
    _Server(("127.0.0.1", int(sys.argv[2])), _Handler).serve_forever()
