"""A server that answers as the Hugging Face Hub does about the files of one data set, ``user/set``."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.objects.object_server import FaultProxy

_SET = "/api/datasets/user/set"
_TREE = f"{_SET}/tree/main"
_RESOLVE = "/datasets/user/set/resolve/main/"


class HubServer:
    """A server in threads, until its `proxy` is closed, which counts requests."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        """Content of each file by its path in the data set."""
        self.proxy = FaultProxy(self._answer)

    def fail(self, part: str, status: int, error: str = "") -> None:
        """Have all requests fail from now on whose method and path have a part; `error` is what the hub calls it."""
        headers = {"X-Error-Code": error} if error else {}
        self.proxy.add(f".*{part}", lambda request: request.reply(status, headers, b"{}"), 10**6)

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

    def _answer(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        url = urlsplit(path)
        place = unquote(url.path)
        found: Any = []
        if method == "POST":
            paths = parse_qs(body.decode())["paths"]
            return 200, [], json.dumps([one for each in paths for one in self.describe(each)]).encode()
        if place in (_SET, f"{_SET}/revision/main"):
            found = {"id": "user/set", "sha": "0" * 40}
        elif place == _TREE or place.startswith(f"{_TREE}/"):
            is_recursive = parse_qs(url.query)["recursive"][0].lower() == "true"
            found = self.list(place[len(_TREE) + 1 :], is_recursive=is_recursive)
        elif place.startswith(_RESOLVE) and place[len(_RESOLVE) :] in self.files:
            (span,) = (value for name, value in headers.items() if name.lower() == "range")
            begin, end = map(int, re.findall(r"\d+", span))
            return 206, [], self.files[place[len(_RESOLVE) :]][begin : end + 1]
        if found:
            return 200, [], json.dumps(found).encode()
        return 404, [("X-Error-Code", "EntryNotFound")], b"{}"
