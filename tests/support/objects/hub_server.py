"""A server that answers as the Hugging Face Hub does about the files of one data set, ``user/set``."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

_SET = "/api/datasets/user/set"
_RESOLVE = "/datasets/user/set/resolve/main/"


class HubServer:
    """A server in threads, until `close`."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        """Content of each file by its path in the data set."""
        self.requests: list[str] = []
        """Method and path of every request."""
        self.denied: set[str] = set()
        """Paths of files whose content is denied."""
        self.failures: list[tuple[str, int, str]] = []
        """Pattern of method and path, status, and name of the error, of requests that fail."""

        class Handler(_Request):
            hub = self

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def describe(self, path: str) -> list[dict[str, Any]]:
        """Return what the hub says of a path: a file, a folder, or nothing."""
        if path in self.files:
            content = self.files[path]
            oid = hashlib.sha1(content, usedforsecurity=False).hexdigest()
            return [{"type": "file", "path": path, "size": len(content), "oid": oid}]
        if any(name.startswith(f"{path}/") for name in self.files):
            return [{"type": "directory", "path": path, "size": 0, "oid": "0"}]
        return []

    def list(self, folder: str, *, is_recursive: bool) -> list[dict[str, Any]]:
        prefix = f"{folder}/" if folder else ""
        names = set()
        for name in self.files:
            if name.startswith(prefix):
                parts = name[len(prefix) :].split("/")
                depth = len(parts) if is_recursive else 1
                names |= {prefix + "/".join(parts[: count + 1]) for count in range(depth)}
        return [one for name in sorted(names) for one in self.describe(name)]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: HubServer

    def log_message(self, *_: object) -> None:
        """Keep quiet."""

    def do_GET(self) -> None:
        if self._fails():
            return
        url = urlsplit(self.path)
        path = unquote(url.path)
        if path in (_SET, f"{_SET}/revision/main"):
            self._answer({"id": "user/set", "sha": "0" * 40})
        elif path == f"{_SET}/tree/main" or path.startswith(f"{_SET}/tree/main/"):
            is_recursive = parse_qs(url.query)["recursive"][0].lower() == "true"
            found = self.hub.list(path[len(f"{_SET}/tree/main/") :], is_recursive=is_recursive)
            self._answer(found if found else {}, 200 if found else 404)
        elif path.removeprefix(_RESOLVE) in self.hub.denied:
            self._send(b"{}", 403)
        elif path.startswith(_RESOLVE) and path[len(_RESOLVE) :] in self.hub.files:
            content = self.hub.files[path[len(_RESOLVE) :]]
            begin, end = map(int, re.findall(r"\d+", self.headers["Range"]))
            self._send(content[begin : end + 1], 206)
        else:
            self._answer({}, 404)

    def do_POST(self) -> None:
        given = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        if self._fails():
            return
        self._answer([one for path in given["paths"] for one in self.hub.describe(path)])

    def _fails(self) -> bool:
        """Note a request, and answer it if it is to fail."""
        line = f"{self.command} {self.path}"
        self.hub.requests.append(line)
        for pattern, status, error in self.hub.failures:
            if re.search(pattern, line):
                self._send(b"{}", status, error)
                return True
        return False

    def _answer(self, content: object, status: int = 200) -> None:
        self._send(json.dumps(content).encode(), status, "" if status == 200 else "EntryNotFound")

    def _send(self, content: bytes, status: int, error: str = "") -> None:
        self.send_response_only(status)
        self.send_header("Content-Length", str(len(content)))
        if error:
            self.send_header("X-Error-Code", error)
        self.end_headers()
        self.wfile.write(content)
