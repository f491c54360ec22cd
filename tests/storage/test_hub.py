"""Inputs on the Hugging Face Hub, read by its own library from a server that stands in for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from recshuf.errors import ForbiddenInputError, InputError, MissingInputError
from recshuf.storage.settings import StorageOptions
from recshuf.storage.stores import open_store
from recshuf.storage.urls import Url
from tests.support.objects.hub_server import HubServer
from tests.support.objects.object_outputs import shuffle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import recshuf
    from recshuf.storage.store import Store

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
    server.close()


def read(hub: HubServer, tmp_path: Path, name: str = "") -> recshuf.ShuffleReport:
    return shuffle(ROOT + name, tmp_path / "out.txt", shards=None, endpoint_url=hub.url, overwrite=True)


def open_hub(hub: HubServer) -> Store:
    return open_store(Url.parse(ROOT), StorageOptions(hub.url))


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


def test_a_denied_access_is_an_error_at_once(tmp_path: Path, hub: HubServer):
    hub.denied.add("b9.txt")
    with pytest.raises(ForbiddenInputError, match=r"b9.txt: access is denied \(403\)"):
        read(hub, tmp_path, "b9.txt")
    assert sum("/resolve/" in one for one in hub.requests) == 1


@pytest.mark.parametrize("listed", ["b9.txt", ""])
@pytest.mark.parametrize(
    ("new", "said"),
    [(CONTENT * 2, "its size was"), (CONTENT[::-1], "it was replaced"), (None, "it is gone")],
)
def test_a_file_that_changes_while_it_is_read_is_an_error(
    tmp_path: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch, listed: str, new: bytes | None, said: str
):
    store_type = type(open_hub(hub))
    get = store_type.get

    def change(self: Store, key: str, *given: object) -> object:
        content = get(self, key, *given)  # type: ignore[arg-type] # those of `get`
        if key.endswith("b9.txt"):
            hub.files.pop("b9.txt", None)
            if new is not None:
                hub.files["b9.txt"] = new
        return content

    monkeypatch.setattr(store_type, "get", change)
    with pytest.raises(InputError, match=rf"b9.txt: has changed while it was read: {said}"):
        read(hub, tmp_path, listed)


LISTINGS: list[Callable[[Store], object]] = [
    lambda store: store.list("user/set/"),
    lambda store: store.find("user/set/b9.txt"),
]


@pytest.mark.parametrize("ask", LISTINGS)
def test_each_question_is_asked_anew(hub: HubServer, ask: Callable[[Store], object]):
    store = open_hub(hub)
    before = ask(store)
    assert ask(store) == before
    hub.files["b9.txt"] = CONTENT[::-1]
    assert ask(store) != before


def test_a_listing_and_a_single_answer_give_one_stamp(hub: HubServer):
    store = open_hub(hub)
    listed = {one.key: one.stamp for one in store.list("user/set/")}
    assert len(listed) == len(NAMES)
    assert {key: store.find(key) for key in listed} == listed
