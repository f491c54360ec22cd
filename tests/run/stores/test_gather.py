"""What a gather compares and refuses; see `test_golden_outputs` for the bytes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

import recshuf
from recshuf.errors import CheckError, ConversionError, InputError, RecshufWarning, UsageError
from tests.support.effort import TRIES_ALL
from tests.support.processes.deaths import die_everywhere
from tests.support.small_runs import Listener

if TYPE_CHECKING:
    from pathlib import Path


def test_records_without_a_table_form_can_be_gathered_in_their_own_format(tmp_path: Path) -> None:
    """A conversion names the first file and line that has none."""
    path = tmp_path / "mixed.jsonl"
    path.write_text('{"a": 1}\n{"a": {"b": 2}}\n{"a": 3}\n')
    with pytest.warns(RecshufWarning, match="loaders cannot read"):
        recshuf.scatter(path, tmp_path / "store", seed=1)
    recshuf.gather(tmp_path / "store", tmp_path / "out.jsonl")
    found = (tmp_path / "out.jsonl").read_text().splitlines()
    assert sorted(found) == sorted(path.read_text().splitlines())
    with pytest.raises(ConversionError, match=r"no table form: .*mixed.jsonl.*line"):
        recshuf.gather(tmp_path / "store", tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()


def test_a_gather_gives_records_another_delimiter_and_keeps_their_separator(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("a,b\n1,x;y\n")
    recshuf.scatter(tmp_path / "in.csv", tmp_path / "csv")
    with pytest.warns(RecshufWarning, match="';' takes the place of ','"):
        recshuf.gather(tmp_path / "csv", tmp_path / "out.csv", delimiter=";", verify=True)
    assert (tmp_path / "out.csv").read_text() == 'a;b\n1;"x;y"\n'
    recshuf.gather(tmp_path / "csv", tmp_path / "out.tsv", verify=True)
    assert (tmp_path / "out.tsv").read_text() == "a\tb\n1\tx;y\n"
    (tmp_path / "in.txt").write_text("a\0b\0")
    recshuf.scatter(tmp_path / "in.txt", tmp_path / "text", zero_terminated=True)
    recshuf.gather(tmp_path / "text", tmp_path / "same.txt", zero_terminated=True, verify=True)
    with pytest.raises(
        UsageError, match=r"^separator \(or zero_terminated=True\): records keep their end, b'.x00'; leave"
    ):
        recshuf.gather(tmp_path / "text", tmp_path / "out.txt", separator="|")


def test_a_record_that_cannot_get_provenance_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n' * 50)
    (tmp_path / "b.jsonl").write_text('{"a": 1}\n{"a": 2}\n{"c": {"source_row": 1}}\n')
    recshuf.scatter([tmp_path / "a.jsonl", tmp_path / "b.jsonl"], tmp_path / "store", seed=1)
    with pytest.raises(InputError, match=r"b\.jsonl: line 3: may already have.*leave out provenance"):
        recshuf.gather(tmp_path / "store", tmp_path / "out.jsonl", provenance=True)
    assert not (tmp_path / "out.jsonl").exists()


def test_a_scatter_that_dies_before_any_change_leaves_no_store_or_a_whole_one(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    make_lines(tmp_path / "in.txt")

    def scatter() -> None:
        recshuf.scatter(tmp_path / "in.txt", folder / "store", seed=7, piles=4)

    recshuf.shuffle(tmp_path / "in.txt", tmp_path / "expected.txt", seed=7)
    deaths = 0
    for step in die_everywhere(scatter, folder, every=1 if TRIES_ALL else 2):
        if not list(folder.glob("store/snapshot-*.json")):
            scatter()
        recshuf.gather(folder / "store", tmp_path / "out.txt", overwrite=True)
        assert (tmp_path / "out.txt").read_bytes() == (tmp_path / "expected.txt").read_bytes(), step
        assert [*(folder / "store").glob("snapshot-*")] == [folder / "store" / "snapshot-000001.json"]
        # A run that dies after its commit may leave its lock file.
        assert {*os.listdir(folder / "store" / "sets")} <= {"scatter-00000.piles", "scatter.lock"}
        deaths += 1
    assert deaths > 3


def test_a_shard_that_differs_from_the_store_is_not_put_in_place(tmp_path: Path) -> None:
    make_lines(tmp_path / "in.txt")
    recshuf.scatter(tmp_path / "in.txt", tmp_path / "store", seed=1, piles=4)

    class Damage(Listener):
        """Changes a shard before it is compared, as a bad disk would."""

        def start(self, name: str, *_: Any) -> None:
            if name not in ("scatter", "gather"):
                for path in tmp_path.rglob("shard-*.txt"):
                    content, found = path.read_bytes(), path.stat()
                    path.write_bytes(content.replace(b"\n17\n", b"\n71\n"))
                    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))

    with pytest.raises(CheckError, match="1 records missing, 1 extra"):
        recshuf.gather(tmp_path / "store", tmp_path / "out/", shards=2, verify=True, progress=Damage())
    assert not (tmp_path / "out").exists()


def make_lines(path: Path) -> None:
    path.write_text("".join(f"{row}\n" for row in range(1000)))
