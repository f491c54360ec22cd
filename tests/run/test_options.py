"""Options that cannot be meant, or have no effect for the formats, are refused by name before anything is written."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import UsageError
from tests.support.numbered_files import FORMATS, WRITERS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Run

# That cannot be meant

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"seed": -1}, "seed"),
    ({"seed": 2**128}, "seed"),
    ({"seed": True}, "seed"),
    ({"seed": 1.5}, "seed"),
    ({"seed": "x"}, f"seed 'x' is not a whole number; give one, from 0 to {2**128 - 1}$"),
    ({"memory": "1MB"}, "memory 1MB is out of range; it must be at least 16 MB$"),
    ({"memory": 300}, "memory 300 .* a number without a unit is bytes; .* 16 MB: give memory='300MB'$"),
    ({"memory": "4"}, "memory 4 .*: give memory='4GB'$"),
    ({"memory": 32}, "memory 32 .*: give memory='32GB'$"),
    ({"memory": 3.5}, "memory"),
    ({"workers": 0}, "workers"),
    ({"piles": 0}, "piles"),
    ({"piles": 70_000}, "piles 70000 is out of range; it must be from 1 to 65536$"),
    ({"head_count": -1}, "head_count"),
    ({"head_count": 1.5}, "head_count 1.5 is not a whole number; give one, at least 0$"),
    ({"shards": 0}, "shards"),
    ({"shards": "3"}, "shards"),
    ({"shards": 2, "shard_records": 5}, "shard"),
    ({"header": "one"}, "header 'one' is not possible: give a number of lines, auto, none or first$"),
    ({"header": -1}, "header -1 is not possible"),
    ({"schema": 7}, "schema"),
    ({"compression": "lzma"}, "compression"),
    ({"separator": b""}, "separator"),
    ({"separator": "x", "zero_terminated": True}, "separator"),
    ({"on_bad_record": "quarantine:s3://b/bad", "to": "parquet"}, "s3://b/bad: is a URL; give a local path"),
    ({"schema": "s3://b/schema.json", "to": "parquet"}, "s3://b/schema.json: is a URL; give a local path"),
]


def test_options_that_cannot_be_meant_are_named(tmp_path: Path):
    (tmp_path / "in.txt").write_text("1\n")
    for options, message in REFUSED:
        with pytest.raises(UsageError, match=f"(?i)^.*{message}"):
            recshuf.shuffle(tmp_path / "in.txt", f"{tmp_path}/out/", **options)
        assert os.listdir(tmp_path) == ["in.txt"]
    with pytest.raises(TypeError, match="'sead'"):
        recshuf.shuffle(tmp_path / "in.txt", tmp_path / "out", sead=1)


def test_the_command_ends_with_2(tmp_path: Path, call: Run):
    (tmp_path / "in.txt").write_text("1\n")
    for words in (["--seed", "-1"], ["--shards", "0"], ["--compression", "lzma"], ["--sead", "1"]):
        assert call(tmp_path / "in.txt", "-o", f"{tmp_path}/out/", *words).returncode == 2
    assert os.listdir(tmp_path) == ["in.txt"]


# That have no effect, which the plan already tells

PAIRS = [(given, to) for given in FORMATS for to in FORMATS]
LINES = ("jsonl", "csv", "text")
FITTING: dict[str, tuple[Any, str, Any]] = {
    "separator": ("|", "separator: for records of text only", lambda given, to: "text" in (given, to)),
    "zero_terminated": (True, "zero_terminated=True: for records of text only", lambda given, to: "text" in (given, to)),
    "header": (1, "header: for inputs of csv or text only", lambda given, _: given in ("text", "csv")),
    "datasets": ("id", "datasets: for inputs of hdf5 or npz only", lambda given, _: given == "hdf5"),
    "columns": ("id", "columns: (for inputs of|records of)", lambda given, to: given in ("csv", "parquet") or (given, to != given) == ("jsonl", True)),
    "comment": ("#", "comment: for inputs of csv only", lambda given, _: given == "csv"),
    "skip_lines": (1, "skip_lines: for inputs of csv only", lambda given, _: given == "csv"),
    "widen": (
        True,
        "widen=True: for inputs of parquet or hdf5 or arrow only",
        lambda given, _: given in ("parquet", "hdf5"),
    ),
    "nan_as_null": (True, "nan_as_null=True: ", lambda given, to: to == "jsonl" != given),
    "provenance": (True, "provenance=True: ", lambda given, to: to != "text" and (given, to) not in (("hdf5", "hdf5"), ("csv", "csv"))),
    "delimiter": (";", "delimiter: for records of csv only", lambda given, to: "csv" in (given, to)),
    "quote": ("'", "quote: for inputs of csv only", lambda given, _: given == "csv"),
    "keep_others": (True, "keep_others=True: for hdf5 to hdf5 or npz to npz only", lambda given, to: given == to == "hdf5"),
    "schema": (pa.schema([("text", pa.string())]), "schema: (for|[a-z0-9]+ to) ", lambda given, to: given in LINES and given != to),
    "on_bad_record": ("quarantine:bad", "on_bad_record: for a conversion of", lambda given, to: given in LINES and given != to),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an input of each format, named by it."""
    made = tmp_path_factory.mktemp("inputs")
    for name in FORMATS:
        WRITERS[name](made / name, 0, 9)
    pq.write_table(pa.table({"id": ["a"]}), made / "parquet")
    return made


@pytest.mark.parametrize("name", FITTING)
def test_an_option_that_does_not_fit_the_formats_is_named(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(folder)
    value, message, fits = FITTING[name]
    for given, to in PAIRS:
        options: dict[str, Any] = {"format": given, "to": to, "memory": "300MB"}
        said = ""
        try:
            recshuf.plan(given, "out/", **options, **{name: value})
        except recshuf.errors.RecshufError as error:
            said = str(error) if isinstance(error, UsageError) else ""
        assert bool(re.search(f"^{message}", said)) != fits(given, to), (given, to, said)
