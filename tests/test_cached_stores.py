"""The store of a loader of files: when it is made, which inputs share one, which have none, and what to do when it is damaged."""

import gc
import os
import shutil
from collections.abc import Callable
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import InputError, OutputError, PileError, UsageError
from recshuf.piles.kept.upkeep import drop_store
from recshuf.run.stores import new_stores
from tests.support.formats.format_tools import find_open_files
from tests.support.stores.small_stores import ids_of


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with one file, by its name in the present folder."""
    monkeypatch.chdir(tmp_path)
    folder = Path("data")
    folder.mkdir()
    pq.write_table(pa.table({"id": range(50)}), folder / "a.parquet")
    return folder


def open_loader(inputs: Any, batch_size: int = 5, **options: Any) -> recshuf.PileLoader:
    given = {"cache": "cache", "seed": 7, "piles": 3} | options
    return recshuf.PileLoader.from_files(inputs, batch_size, **given)


def list_stores() -> list[Path]:
    return sorted(Path("cache").iterdir()) if Path("cache").exists() else []


def test_epoch_0_is_the_shuffle_of_the_files(data: Path) -> None:
    recshuf.shuffle(data, "out.parquet", seed=7)
    ids = ids_of(open_loader(data))
    gc.collect()
    # Before pyarrow reads, whose threads close its file a little later.
    assert not find_open_files(Path.cwd())
    assert ids == pq.read_table("out.parquet")["id"].to_pylist()


def test_the_store_is_taken_again_while_nothing_changes(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_loader(data, memory="100MB")
    monkeypatch.setattr(new_stores, "scatter_store", None)
    again = open_loader(data, epoch=1, columns=["id", "_id"], output="arrow", workers=1)
    assert again.state_dict()["store"] == first.state_dict()["store"]
    assert len(list_stores()) == 1


def test_other_inputs_or_options_make_another_store(data: Path) -> None:
    open_loader(data)
    open_loader(data, seed=8)
    open_loader(data, piles=4)
    os.utime(data / "a.parquet", (1, 1))
    open_loader(data)
    pq.write_table(pa.table({"id": [1000]}), data / "b.parquet")
    assert max(ids_of(open_loader(data, drop_last=False))) == 1000
    assert len(list_stores()) == 5


WRONG: list[tuple[dict[str, Any], str]] = [
    *(
        (options, f"^{next(iter(options))}=")
        for options in (
            {"mix": 0}, {"prefetch": -1}, {"output": "jax"}, {"rank": 3, "world_size": 2}, {"lanes": 2}, {"epoch": -1},
            {"reshuffle": "all"}, {"columns": "id"}, {"batch_size": 0},
        )
    ),
    ({"memory": 1}, "^memory 1 is out of range"),
    ({"inputs": "-"}, "standard input"),
]  # fmt: skip


def test_arguments_are_checked_before_anything_is_written(data: Path) -> None:
    for options, message in WRONG:
        with pytest.raises(UsageError, match=message):
            open_loader(**{"inputs": data} | options)
    with pytest.raises(TypeError, match="lane"):
        open_loader(data, lane=2)
    assert not Path("cache").exists()


def test_spellings_that_name_the_same_files_share_a_store(data: Path) -> None:
    spellings = [
        "data",
        "data/",
        "data/*.parquet",
        "data/a.parquet",
        ["data/a.parquet"],
        data,
        "d*/a.parquet",
    ]
    orders = [ids_of(open_loader(one)) for one in spellings]
    assert orders == orders[:1] * len(spellings)
    assert [path.name.startswith("a.parquet-") for path in list_stores()] == [True]
    pq.write_table(pa.table({"id": [50]}), data / "b.parquet")
    orders = [ids_of(open_loader(one)) for one in ("data", "data/*", ["data/a.parquet", "data/b.parquet"])]
    assert orders == orders[:1] * 3
    assert [path.name.partition("-")[0] for path in list_stores()] == ["a.parquet", "data"]


def test_a_folder_whose_name_is_a_column_is_not_its_file(data: Path) -> None:
    """The file that is named has the column of its folder, which the folder that is named has not."""
    (data / "day=3").mkdir()
    (data / "a.parquet").rename(data / "day=3/a.parquet")
    columns = [open_loader(one).known_columns for one in ("data/day=3", "data/day=3/a.parquet", "data")]
    assert columns == [["id"], ["id", "day"], ["id", "day"]]


def test_files_without_a_common_folder_share_a_store(data: Path) -> None:
    (data / "b.txt").write_text("1\n")
    Path("c.txt").write_text("2\n")
    (data.parent / "z").mkdir()
    names = ["data/b.txt", "c.txt", str(data.absolute() / "b.txt"), "./c.txt"]
    loaders = [open_loader(given, seed=None) for given in (names, tuple(names))]
    assert [loader.num_records for loader in loaders] == [4, 4]
    assert len(list_stores()) == 1


def test_pipes_are_refused_and_not_opened(data: Path) -> None:
    """Nobody writes to them: who opened one would wait for ever."""
    os.mkfifo(data / "pipe.txt")
    reader, writer = os.pipe()
    try:
        for inputs in (["data/pipe.txt"], [f"/dev/fd/{reader}"], ["data/a.parquet", "data/pipe.txt"]):
            with pytest.raises(UsageError, match=f"^{inputs[-1]}: is a stream, .*; name a file"):
                open_loader(inputs)
    finally:
        os.close(reader)
        os.close(writer)
    assert not list_stores()


class Server(SimpleHTTPRequestHandler):
    """Serves files, and tells when they were written if it is asked for those of the folder ``dated``."""

    def send_header(self, keyword: str, value: str) -> None:
        if keyword != "Last-Modified" or self.path.startswith("/dated/"):
            super().send_header(keyword, value)

    def log_message(self, *_: object) -> None:
        pass


def test_urls_without_a_version_are_refused(data: Path) -> None:
    shutil.copytree(data, "dated")
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        thread = Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            with pytest.raises(UsageError, match=f"^{url}.*: nothing tells its versions apart, .*scatter$"):
                open_loader(f"{url}/data/a.parquet")
            assert list_stores() == []
            assert open_loader(f"{url}/dated/a.parquet").num_records == 50
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("harmed", ["snapshot-000001.json", "sets/*.piles", "sets"])
def test_a_damaged_store_is_made_again_when_it_was_dropped(harmed: str) -> None:
    open_loader("data")
    (store,) = list_stores()
    (path,) = store.glob(harmed)
    if path.is_dir():
        shutil.rmtree(path)
    else:
        os.truncate(path, 50)
    for _ in range(2):
        with pytest.raises(
            PileError, match=rf"^{store}/.*; .*recshuf store drop {store}, and make"
        ) as raised:
            open_loader("data")
        assert str(raised.value).count("recshuf store drop") == 1
    drop_store(store)
    assert sorted(ids_of(open_loader("data"))) == list(range(50))


def test_a_file_in_the_place_of_the_cache_is_named(data: Path) -> None:
    for cache in ["data/a.parquet", "data/a.parquet/below/it"]:
        with pytest.raises(OutputError, match=r"^data/a.parquet: is a file; choose another folder$"):
            open_loader(data, cache=cache)


@pytest.mark.parametrize("make", [Path.touch, lambda store: (store / "mine").mkdir(parents=True)])
def test_what_lies_in_the_place_of_a_store_is_to_be_deleted(make: Callable[[Path], None]) -> None:
    open_loader("data")
    (store,) = list_stores()
    shutil.rmtree(store)
    make(store)
    with pytest.raises(OutputError, match=f"^{store}: is no pile store, .*; delete it$"):
        open_loader("data")
    if store.is_dir():
        shutil.rmtree(store)
    else:
        store.unlink()
    assert open_loader("data").num_records == 50


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_file_that_comes_while_the_store_is_made_is_an_error_that_leaves_no_store(
    data: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Else a store of two files would have the name of the store of one, or the other way round."""
    whole = new_stores.scatter_store

    def scatter(*given: Any) -> None:
        if moment == "before":
            pq.write_table(pa.table({"id": [50]}), data / "b.parquet")
        whole(*given)
        if moment == "after":
            pq.write_table(pa.table({"id": [50]}), data / "b.parquet")

    with monkeypatch.context() as patch:
        patch.setattr(new_stores, "scatter_store", scatter)
        with pytest.raises(InputError, match="the inputs changed while they were read; run again"):
            open_loader("data")
    assert list_stores() == []
    assert sorted(ids_of(open_loader("data", drop_last=False))) == list(range(51))


def test_objects_show_what_they_are(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with recshuf.PileWriter(path, "a", seed=1, piles=2) as writer:
        writer.write({"tokens": np.zeros((7, 3), np.int32)})
        assert repr(writer) == f"PileWriter('{path}', name='a', num_records=7)"
    assert repr(recshuf.PileStore(path)) == f"PileStore('{path}', snapshot=2, num_records=7, num_bytes=84)"
    loader = recshuf.PileLoader(path, 2, epoch=3, mix=2, rank=1, world_size=2)
    shown = f"PileLoader('{path}', batch_size=2, rank=1, world_size=2, epoch=3, mix=2, num_records=7)"
    assert repr(loader) == shown
    packed = f"PackedLoader('{path}', tokens=4, column='tokens', batch_size=2)"
    assert repr(loader.packed(4, column="tokens")) == packed
    mixed = recshuf.MixLoader({recshuf.PileStore(path): 2}, 2)
    shown = "batch_size=2, rank=0, world_size=1, epoch=0, mix=1, num_records=7"
    assert repr(mixed) == f"MixLoader({{'{path}': 2}}, {shown})"
    assert mixed.counts == [6]
