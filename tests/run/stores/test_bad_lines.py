"""Lines that do not parse, on their way into a store: an error that names them, or set aside."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import recshuf
from recshuf.errors import InputError, UsageError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("suffix", "header", "good", "bad", "place"),
    [
        ("jsonl", "", '{{"a": {}}}\n', '{"a": 1\n', "line 8"),
        ("csv", "a,b\n", "{0},x{0}\n", "7\n", "record 8"),
    ],
)
def test_a_bad_line_is_named_or_set_aside_and_leaves_the_others_as_they_are(
    tmp_path: Path, suffix: str, header: str, good: str, bad: str, place: str
) -> None:
    source, store = tmp_path / f"in.{suffix}", tmp_path / "store"
    lines = [bad if row == 7 else good.format(row) for row in range(100)]
    source.write_text("".join([header, *lines]))
    with pytest.raises(
        InputError, match=f"{place}: .*; correct it, or set .* aside with on_bad_record='quarantine:FILE'"
    ):
        recshuf.scatter(source, store)
    assert list(tmp_path.iterdir()) == [source]
    aside = f"quarantine:{tmp_path / 'bad'}"
    report = recshuf.scatter(source, store, seed=3, on_bad_record=aside)
    assert (report.records, report.quarantined, report.inputs[0].quarantined) == (99, 1, 1)
    assert report.inputs[0].records == 100
    found = [json.loads(line) for line in (tmp_path / "bad").read_text().splitlines()]
    assert [(one["record"] + "\n", one["input"]) for one in found] == [(bad, str(source))]
    assert len(next(iter(recshuf.PileLoader(store, batch_size=99)))["a"]) == 99
    recshuf.gather(store, tmp_path / "gathered.parquet")
    recshuf.shuffle(source, tmp_path / "shuffled.parquet", seed=3, on_bad_record=aside + "2")
    assert (tmp_path / "gathered.parquet").read_bytes() == (tmp_path / "shuffled.parquet").read_bytes()


def test_a_file_of_bad_lines_is_replaced_only_on_demand_and_only_at_the_end(tmp_path: Path) -> None:
    source, bad, store = tmp_path / "in.jsonl", tmp_path / "bad", tmp_path / "store"
    source.write_text('{"a": 1}\n{\n')
    bad.write_text("before")
    with pytest.raises(UsageError, match="exists already"):
        recshuf.scatter(source, store, on_bad_record=f"quarantine:{bad}")
    recshuf.scatter(source, store, on_bad_record=f"quarantine:{bad}", overwrite=True)
    assert '"line":2' in bad.read_text()
    bad.write_text("before")
    with pytest.raises(UsageError, match="would remove what is appended"):
        recshuf.window(store, source, on_bad_record=f"quarantine:{bad}", overwrite=True, keep_bytes=1)
    assert bad.read_text() == "before"
    recshuf.window(store, source, on_bad_record=f"quarantine:{bad}", overwrite=True)
    assert '"line":2' in bad.read_text()
    assert recshuf.PileStore(store).num_records == 2


def test_where_lines_cannot_be_set_aside(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"a": 1}\n')
    aside = f"quarantine:{tmp_path / 'bad'}"
    with pytest.raises(UsageError, match="on_bad_record: not with split alone, whose sizes are known before"):
        recshuf.scatter(source, tmp_path / "store", split={"a": 0.5, "b": 0.5}, on_bad_record=aside)
    recshuf.shuffle(source, tmp_path / "in.parquet")
    with pytest.raises(UsageError, match=r"for inputs of .* only"):
        recshuf.scatter(tmp_path / "in.parquet", tmp_path / "store", on_bad_record=aside)
    assert not (tmp_path / "store").exists()
    assert not (tmp_path / "bad").exists()


def test_types_that_conflict_hide_no_bad_line(tmp_path: Path) -> None:
    """Behind a conflict nothing would be looked at, and set aside."""
    first, second = tmp_path / "0.jsonl", tmp_path / "1.jsonl"
    first.write_text('{"a": 1}\n{"a": "x"}\n')
    second.write_text('{"a": 1}\n{\n')
    aside = f"quarantine:{tmp_path / 'bad'}"
    with pytest.raises(InputError, match="line 2, field 'a': holds a string"):
        recshuf.scatter([first, second], tmp_path / "store", workers=1, on_bad_record=aside)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.jsonl", "1.jsonl"]
