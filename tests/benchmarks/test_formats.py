"""Formats and tables are shuffled and copied in turn, and each ratio is printed."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from benchmarks import formats, tables
from recshuf.formats import OWN_FORMATS


@pytest.mark.slow
def test_each_format_is_compared_with_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "has", lambda library: library not in ("google_crc32c", "json"))
    done = CliRunner().invoke(formats.main, ["--small"])
    assert done.exit_code == 0, done.output
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in done.output.splitlines() if "|" in line
    ]
    assert rows[0] == formats.HEADS
    assert {row[0].partition(",")[0] for row in rows[2:]} == {*formats.CASES} - {
        "tfrecord",
        "json",
        "text, 4 lines",
    } | {"text"}
    assert {row[0].partition(",")[0] for row in rows[2:]} <= {*OWN_FORMATS}
    assert [row[1] for row in rows[2:] if row[0] == "webdataset"] == ["10"] * 2
    assert all(float(row[7]) > 0 for row in rows[2:])
    assert {row[0] for row in rows[2:] if row[9]} == {"binary", "npy", "npz", "arrow"}
    assert "tfrecord: skipped, since google_crc32c is not installed" in done.output
    assert "json: not copied with json, which is not installed" in done.output


def test_a_name_of_no_format_is_refused() -> None:
    done = CliRunner().invoke(formats.main, ["--small", "none"])
    assert done.exit_code == 2
    assert "none: choose among binary, npy" in done.output


def test_tables_are_shuffled_by_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "has", lambda _: False)
    done = CliRunner().invoke(tables.main, ["--size", "20kB", "--rounds", "1"])
    assert done.exit_code == 0, done.output
    rows = [line.split("|") for line in done.output.splitlines() if "recshuf.stream" in line]
    assert [(row[1].strip(), row[2].strip()) for row in rows] == [
        ("numbers", "833"),
        ("numbers and text", "526"),
    ]
    assert "polars is not installed" in done.output
