"""Servers of object stores in children, and a proxy in front of a server that injects faults."""

from __future__ import annotations

import http.client
import os
import re
import socket
import socketserver
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from http.server import BaseHTTPRequestHandler
from typing import Any, NamedTuple
from urllib.parse import quote

from tests.support.objects.s3_server import S3Server

Answer = Callable[[str, str, Mapping[str, str], bytes], tuple[int, Sequence[tuple[str, str]], bytes]]
"""Answers method, path, headers and body of a request with status, headers and body."""

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}
S3_REQUESTS = {
    "journal": r"PUT .*\.entry",
    "run": r"PUT .*\.run",
    "claim": r"PUT .*/00002\.run",
    "begin": "POST .*uploads",
    "part": "PUT .*partNumber",
    "complete": "POST .*uploadId",
    "manifest": r"PUT .*/\.out\.recshuf\.json",
    "list": "GET .*list-type",
    "delete": "POST .*delete",
}
_ATTEMPTS = 3
_SECONDS = 60


def find_port() -> int:
    """Return a port that is free now."""
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class ObjectServer:
    """A server in a child, until `close`.

    Parameters
    ----------
    command
        Returns the command that serves a port.
    """

    def __init__(self, command: Callable[[int], Sequence[str]]) -> None:
        for _ in range(_ATTEMPTS):
            self.port = find_port()
            self._child = subprocess.Popen(
                command(self.port),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=os.environ | CREDENTIALS,
            )
            if self._wait():
                return
            self.close()
        raise RuntimeError(f"no server after {_ATTEMPTS} attempts")

    def _wait(self) -> bool:
        """Wait until the server takes connections; False if it has ended, because another process has its port."""
        pause = threading.Event()
        for _ in range(_SECONDS * 20):
            if self._child.poll() is not None:
                return False
            with suppress(OSError), closing(socket.create_connection(("127.0.0.1", self.port), 1)):
                return True
            pause.wait(0.05)
        return False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._child.terminate()
        self._child.wait()

    def answer(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        """Return status, headers and body of the answer to a request."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=_SECONDS)) as onward:
            onward.request(method, path, body, dict(headers))
            reply = onward.getresponse()
            return reply.status, reply.getheaders(), reply.read()


class Bucket(NamedTuple):
    """A bucket of one test, behind a proxy."""

    name: str
    proxy: FaultProxy
    server: S3Server
    """The server, without the proxy."""
    lists_uploads: bool = True
    refusal: tuple[int, str, str] = (400, "ExpiredToken", "the credentials have expired")
    """Status and code of an answer that is final, and the message."""
    requests: Mapping[str, str] = S3_REQUESTS
    """Patterns of requests by what they are for."""

    @property
    def url(self) -> str:
        return f"s3://{self.name}"

    def list_keys(self, prefix: str = "") -> list[str]:
        return sorted(key for key in self.server.store.get_bucket(self.name).keys if key.startswith(prefix))

    def list_uploads(self) -> list[str]:
        return sorted(upload.key_name for upload in self._uploads.values())

    def read(self, key: str) -> bytes:
        return bytes(self.server.store.get_object(self.name, key).value)

    def put(self, key: str, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self._ask("PUT", quote(key), headers, body)

    def delete(self, key: str) -> None:
        self.server.store.delete_object(self.name, key)

    def begin_upload(self, key: str) -> None:
        self._ask("POST", f"{quote(key)}?uploads")

    def abort_one(self) -> None:
        """Abort an open upload."""
        upload = next(iter(self._uploads.values()))
        self.server.store.abort_multipart_upload(self.name, upload.id)
        # moto answers 500
        request = f"(POST|PUT) .*{re.escape(upload.key_name)}.*uploadId={re.escape(upload.id)}"
        self.proxy.answer(request, 404, "NoSuchUpload", times=10**6)

    def damage_one(self) -> None:
        """Replace a part of an open upload."""
        next(iter(self._uploads.values())).set_part(1, b"other")

    def _ask(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> None:
        signed = {"Authorization": "test"} | dict(headers or {})
        assert self.server.answer(method, f"/{self.name}/{path}", signed, body)[0] == 200

    @property
    def _uploads(self) -> Mapping[str, Any]:
        return self.server.store.get_bucket(self.name).multiparts

    def read_all(self, prefix: str = "") -> dict[str, bytes]:
        return {key: self.read(key) for key in self.list_keys(prefix)}


class Fault(NamedTuple):
    """What happens to some requests."""

    request: str
    """Pattern of method, path with query, and ``Content-Range`` if there is one, such as ``PUT .*partNumber=2``."""
    strike: Callable[[ProxiedRequest], bool]
    """Called with each such request; True if that has answered it."""
    left: list[int]
    """How many requests are still to be struck."""


class FaultProxy:
    """A proxy to a server: counts requests, and answers some of them otherwise."""

    def __init__(self, answer: Answer) -> None:
        self.requests: list[str] = []
        """Method, path and ``Content-Range`` of every request."""
        self.pass_on = answer
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._is_closed = threading.Event()
        self.turn = threading.Lock()
        """Held while a conditional write is passed on: moto compares and writes in two steps, S3 in one."""
        handler = type("Handler", (ProxiedRequest,), {"proxy": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def add(self, request: str, strike: Callable[[ProxiedRequest], bool], times: int) -> None:
        with self._lock:
            self._faults.append(Fault(request, strike, [times]))

    def answer(self, request: str, status: int, code: str, times: int = 1) -> None:
        """Answer the next requests with an error of the store."""
        self.add(request, lambda one: one.answer(status, code), times)

    def reset(self, request: str, times: int = 1) -> None:
        """Drop the connections of the next requests in the middle of their bodies."""
        self.add(request, lambda one: one.drop(), times)

    def cut_body(self, request: str, times: int = 1, cuts: str = "dropped") -> None:
        """Send half of the bodies of the next replies; for `cuts`, see `ProxiedRequest.forward`."""
        self.add(request, lambda one: one.forward(cuts=cuts), times)

    def lose_reply(self, request: str, times: int = 1) -> None:
        """Pass the next requests on, and drop the connection in place of a reply."""
        self.add(request, lambda one: one.forward(loses_reply=True), times)

    def call(self, request: str, function: Callable[[], object], times: int = 1) -> None:
        """Call a function before each of the next requests is passed on."""

        def strike(_: ProxiedRequest) -> bool:
            function()
            return False

        self.add(request, strike, times)

    def hang(self, request: str, times: int = 10**6) -> None:
        """Never answer the next requests."""
        self.add(request, lambda one: self._is_closed.wait() and one.drop(), times)

    def find(self, request: str) -> Fault | None:
        """Note a request, and return its fault."""
        with self._lock:
            self.requests.append(request)
            for fault in self._faults:
                if fault.left[0] and re.match(fault.request, request):
                    fault.left[0] -= 1
                    return fault
        return None

    def count(self, request: str) -> int:
        """Return how many requests there were that fit a pattern."""
        return sum(re.match(request, one) is not None for one in self.requests)

    def ignore_conditions(self, request: str) -> None:
        """Pass requests on without what they demand of the object that is there."""
        self.add(request, lambda one: one.forward(left_out=("If-None-Match", "If-Match")), 10**6)

    def clear(self) -> None:
        with self._lock:
            self._faults.clear()
            self.requests.clear()

    def close(self) -> None:
        self._is_closed.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients drop connections


class ProxiedRequest(BaseHTTPRequestHandler):
    """One request, on its way to the server."""

    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16
    proxy: FaultProxy

    def _handle(self) -> None:
        self._body: bytes | None = None
        span = self.headers.get("Content-Range")
        fault = self.proxy.find(f"{self.command} {self.path}{f' {span}' if span else ''}")
        if fault is None or not fault.strike(self):
            self.forward()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle  # noqa: N815 - names of the base class

    def handle_expect_100(self) -> bool:
        super().handle_expect_100()
        self.wfile.flush()
        return True

    def read_body(self) -> bytes:
        """Return the body; a client that gets an answer has sent all of it."""
        if self._body is None and "chunked" in self.headers.get("Transfer-Encoding", ""):
            self._body = b"".join(iter(self._read_chunk, b""))
        elif self._body is None:
            self._body = self._read(int(self.headers.get("Content-Length", 0)))
        return self._body

    def _read(self, size: int) -> bytes:
        """Return so many bytes of the body; a client that dies before its end has sent no request."""
        content = self.rfile.read(size)
        if len(content) < size:
            raise ConnectionAbortedError
        return content

    def _read_chunk(self) -> bytes:
        line = self.rfile.readline()
        if not line:
            raise ConnectionAbortedError
        size = int(line.split(b";")[0], 16)
        chunk = self._read(size)
        self.rfile.readline()
        return chunk

    def forward(self, *, loses_reply: bool = False, left_out: Sequence[str] = (), cuts: str = "") -> bool:
        """Pass the request on.

        Parameters
        ----------
        cuts
            How half of the body of the reply is left out: ``stated`` as its size, or the connection is ``dropped`` or
            ``closed``.
        """
        headers = {
            name: value
            for name, value in self.headers.items()
            if name.title() not in ("Content-Length", "Transfer-Encoding", "Expect", *left_out)
        }
        body = self.read_body()
        headers["Content-Length"] = str(len(body))
        path = re.sub("&ifGenerationMatch=[0-9]+", "", self.path) if "If-Match" in left_out else self.path
        is_conditional = self.command in ("PUT", "POST") and {"If-None-Match", "If-Match"} & set(
            map(str.title, headers)
        )
        with self.proxy.turn if is_conditional else nullcontext():
            status, given, content = self.proxy.pass_on(self.command, path, headers, body)
        if loses_reply:
            return self.drop()
        half = content[: len(content) // 2]
        told = {name.lower(): value for name, value in given}
        if self.command != "HEAD" or "content-length" not in told:
            told["content-length"] = str(len(half if cuts == "stated" else content))
        for name in ("connection", "transfer-encoding"):
            told.pop(name, None)
        self.reply(status, told, half if cuts else content)
        self.close_connection = self.close_connection or cuts == "closed"
        return self.drop() if cuts == "dropped" else True

    def answer(self, status: int, code: str) -> bool:
        """Answer with an error of the store."""
        content = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>injected</Message></Error>"
        return self.reply(status, {"Content-Type": "application/xml"}, content.encode())

    def reply(self, status: int, headers: Mapping[str, str], content: bytes = b"") -> bool:
        """Answer with these headers; a length among them is said in place of that of the content."""
        self.read_body()
        told = {"content-length": str(len(content))} | {
            name.lower(): value for name, value in headers.items()
        }
        self.send_response_only(status)
        for name, value in told.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
        self.wfile.flush()
        return True

    def drop(self) -> bool:
        """Reset the connection; of the body, at most a part has been read."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.connection.close()
        return True
