"""Inputs on the Hugging Face Hub, read by its own library from a server that stands in for it."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

import recshuf
from recshuf.errors import (
    ForbiddenInputError,
    InputError,
    MissingInputError,
    UnavailableInputError,
    UsageError,
)
from recshuf.storage import StorageOptions, Url
from recshuf.storage.reading.stores import open_store
from recshuf.storage.requests import Store
from tests.support.objects.object_outputs import shuffle
from tests.support.objects.object_server import FaultProxy, ProxiedRequest

NAMES = ("b10.txt", "b9.txt", ".hidden.txt", "x/a.txt")
CONTENT = b"".join(b"%09d\n" % number for number in range(1000))
ROOT = "hf://datasets/user/set/"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """Return a server with a data set."""
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    # Another test may have imported it without access to servers.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    server = HubServer()
    server.files |= dict.fromkeys(NAMES, CONTENT)
    yield server
    server.proxy.close()


@pytest.fixture
def no_library_pauses(no_pauses: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Try failed requests again at once, also in the library."""
    monkeypatch.setattr(time, "sleep", lambda _: None)


def read(hub: HubServer, tmp_path: Path, name: str = "") -> recshuf.ShuffleReport:
    return shuffle(ROOT + name, tmp_path / "out.txt", shards=None, endpoint_url=hub.proxy.url, overwrite=True)


def open_hub(hub: HubServer) -> Store:
    return open_store(Url.parse(ROOT), StorageOptions(hub.proxy.url))


def test_a_data_set_is_listed_and_read(tmp_path: Path, hub: HubServer):
    report = read(hub, tmp_path)
    assert [one.name.removeprefix(ROOT) for one in report.inputs] == ["b9.txt", "b10.txt", "x/a.txt"]
    assert sorted((tmp_path / "out.txt").read_bytes().splitlines(keepends=True)) == sorted(
        3 * CONTENT.splitlines(keepends=True)
    )
    assert read(hub, tmp_path, "x/a.txt").records == 1000


def test_what_is_not_there_is_missing(tmp_path: Path, hub: HubServer):
    for name in ("b8.txt", "y/", "x/a.txt/b"):
        with pytest.raises(MissingInputError, match=rf"{name}: there is neither an object nor one below it"):
            read(hub, tmp_path, name)


GATED = "the repository is gated; ask for access .*HF_TOKEN"
NO_REPOSITORY = "there is no such repository, or no access .*HF_TOKEN"


@pytest.mark.parametrize(
    ("name", "status", "answer", "kind", "said"),
    [
        ("b9.txt", 401, "RepoNotFound", MissingInputError, NO_REPOSITORY),
        ("x/", 404, "RepoNotFound", MissingInputError, NO_REPOSITORY),
        *((name, 403, "GatedRepo", ForbiddenInputError, GATED) for name in ("*.txt", "b9.txt")),
        ("x/", 404, "RevisionNotFound", MissingInputError, "no such revision; check the name after the @"),
        ("b9.txt", 403, "", ForbiddenInputError, r"access is denied \(403\)"),
    ],
)
def test_a_repository_that_is_not_there_for_this_user_is_an_error_at_once(
    tmp_path: Path, hub: HubServer, name: str, status: int, answer: str, kind: type[InputError], said: str
):
    hub.fail("", status, answer)
    with pytest.raises(kind, match=f"^hf://datasets/user/set/.*: .*{said}"):
        read(hub, tmp_path, name)
    assert len(hub.proxy.requests) <= 2
    hub.proxy.clear()  # access that was given meanwhile is seen
    assert read(hub, tmp_path, "b9.txt").records == 1000


@pytest.mark.parametrize(
    ("part", "name", "attempts"),
    [
        ("/resolve/", "b9.txt", "several"),
        ("/tree/", "", "several"),
        *(("/api/datasets/user/set$", name, "8") for name in ("b9.txt", "")),
        ("/api/datasets/user/set/paths-info", "b9.txt", "8"),
    ],
)
def test_what_the_library_tries_again_is_not_tried_again_here_but_what_it_asks_once_is(
    tmp_path: Path, hub: HubServer, no_library_pauses: None, part: str, name: str, attempts: str
):
    hub.fail(part, 503)
    with pytest.raises(UnavailableInputError, match=rf"the store is busy \(503\), after {attempts} attempts"):
        read(hub, tmp_path, name)
    asked = hub.proxy.count(f".*{part}")
    assert asked >= 8 if attempts == "8" else 1 <= asked <= 8


def test_what_cannot_be_asked_so_is_an_error_at_once(hub: HubServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "127.0.0.1:9")
    for options, said in (
        ({}, "^HF_ENDPOINT: '127.0.0.1:9' is no URL of a server; give one of"),
        ({"token": "hid\nden"}, "^--storage-option token: has a line break or another char"),
        ({"nope": "1"}, "^--storage-option nope: is not taken for hf://; known are token, endpoint_url"),
    ):
        with pytest.raises(UsageError, match=said) as told:
            open_store(Url.parse(ROOT), StorageOptions(None, options))
        assert "den" not in str(told.value)
    open_hub(hub)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UsageError, match=r"^hf://.*: HF_HUB_OFFLINE .* is set, so nothing is read; unset it"):
        open_hub(hub)
    assert not hub.proxy.requests


def change_while_read(hub: HubServer, change: Callable[[], object]) -> None:
    """Have something happen when content of ``b9.txt`` is asked for, which is sent as it was."""

    def strike(request: ProxiedRequest) -> bool:
        change()
        begin, last = map(int, re.findall(r"\d+", request.headers["Range"]))
        return request.reply(206, {}, CONTENT[begin : last + 1])

    hub.proxy.add(".*/resolve/.*/b9.txt", strike, 100)


@pytest.mark.parametrize(
    ("listed", "new", "said"),
    [
        ("b9.txt", CONTENT * 2, "its size was"),
        ("", CONTENT[::-1], "it was replaced"),
        ("b9.txt", CONTENT[::-1], "it was replaced"),
        ("", None, "it is gone"),
    ],
)
def test_a_file_that_changes_while_it_is_read_is_an_error(
    tmp_path: Path, hub: HubServer, listed: str, new: bytes | None, said: str
):
    def change() -> None:
        hub.files.pop("b9.txt", None)
        if new is not None:
            hub.files["b9.txt"] = new

    change_while_read(hub, change)
    with pytest.raises(InputError, match=rf"b9.txt: has changed while it was read: {said}"):
        read(hub, tmp_path, listed)


def test_a_question_at_the_end_that_is_denied_is_no_change(tmp_path: Path, hub: HubServer):
    change_while_read(hub, lambda: hub.fail("paths-info", 403))
    with pytest.raises(ForbiddenInputError, match=r"b9.txt: access is denied \(403\)"):
        read(hub, tmp_path, "b9.txt")


# The server: answers as the Hub does about the files of one data set, ``user/set``


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
