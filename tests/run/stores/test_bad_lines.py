"""Lines that do not parse, on their way into a store: an error that names them, or set aside."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import recshuf
from recshuf.errors import InputError, RecshufWarning, UsageError

if TYPE_CHECKING:
    from pathlib import Path

BAD = {
    "jsonl": ('{{"a": {}}}\n', '{"a": 1\n', "line 8"),
    "csv": ("{0},x{0}\n", "7\n", "record 8"),
}


@pytest.fixture(params=BAD)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a file of 100 records, of which the eighth is bad."""
    good, bad, _ = BAD[request.param]
    lines = [good.format(row) for row in range(100)]
    lines[7] = bad
    path = tmp_path / f"in.{request.param}"
    path.write_text("a,b\n" * (request.param == "csv") + "".join(lines))
    return path


def test_a_scatter_names_the_line(source: Path, tmp_path: Path) -> None:
    place = BAD[source.suffix[1:]][2]
    with pytest.raises(
        InputError, match=f"{place}: .*; correct it, or set .* aside with on_bad_record='quarantine:FILE'"
    ):
        recshuf.scatter(source, tmp_path / "store")
    assert list(tmp_path.iterdir()) == [source]


def test_a_line_that_is_set_aside_leaves_the_others_as_they_are(source: Path, tmp_path: Path) -> None:
    aside = f"quarantine:{tmp_path / 'bad'}"
    report = recshuf.scatter(source, tmp_path / "store", seed=3, on_bad_record=aside)
    assert (report.records, report.quarantined, report.inputs[0].quarantined) == (99, 1, 1)
    assert report.inputs[0].records == 100
    bad = [json.loads(line) for line in (tmp_path / "bad").read_text().splitlines()]
    assert [(one["record"] + "\n", one["input"]) for one in bad] == [(BAD[source.suffix[1:]][1], str(source))]
    loader = recshuf.PileLoader(tmp_path / "store", batch_size=99)
    assert len(next(iter(loader))["a"]) == 99
    recshuf.gather(tmp_path / "store", tmp_path / "gathered.parquet")
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


def test_records_that_together_have_no_table_form_are_said_at_the_scatter(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"a": 1}\n{"a": "x"}\n')
    with pytest.warns(RecshufWarning, match="loaders cannot read .*line 2, field 'a': holds a string"):
        recshuf.scatter(source, tmp_path / "store")
    recshuf.gather(tmp_path / "store", tmp_path / "out.jsonl")
    assert sorted((tmp_path / "out.jsonl").read_text()) == sorted(source.read_text())


def test_types_that_conflict_hide_no_bad_line(tmp_path: Path) -> None:
    """Behind a conflict nothing would be looked at, and set aside."""
    first, second = tmp_path / "0.jsonl", tmp_path / "1.jsonl"
    first.write_text('{"a": 1}\n{"a": "x"}\n')
    second.write_text('{"a": 1}\n{\n')
    aside = f"quarantine:{tmp_path / 'bad'}"
    with pytest.raises(InputError, match="line 2, field 'a': holds a string"):
        recshuf.scatter([first, second], tmp_path / "store", workers=1, on_bad_record=aside)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.jsonl", "1.jsonl"]
