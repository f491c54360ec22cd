"""A format of another package whose tables have certain columns only: its fields, its bad records, what is converted to it."""

import json
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

import recshuf
from recshuf.errors import ConversionError, InputError, UsageError


@pytest.fixture(autouse=True)
def pairs(add_package: Any) -> None:
    add_package("recshuf-pairs", pairs="tests.support.formats.foreign_pairs:FORMAT")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.pairs"
    path.write_text("#" + "".join(f"k{k % 5}={k};" for k in range(50)))
    return path


def read(path: Path) -> list[tuple[str, str]]:
    """Return keys and numbers of a file."""
    found = [pair.partition("=") for pair in path.read_text()[1:].split(";")[:-1]]
    return [(key, number) for key, _, number in found]


def test_its_fields_tell_groups_parts_and_repeats(source: Path, tmp_path: Path):
    recshuf.shuffle(source, tmp_path / "grouped.pairs", seed=1, group_by="key", verify=True)
    grouped = read(tmp_path / "grouped.pairs")
    assert sorted(grouped) == sorted(read(source))
    assert len([key for key, _ in groupby(grouped, lambda pair: pair[0])]) == 5
    recshuf.shuffle(source, tmp_path / "first.pairs", seed=1, dedup="key", verify=True)
    assert sorted(read(tmp_path / "first.pairs")) == [(f"k{k}", str(k)) for k in range(5)]
    recshuf.shuffle(source, f"{tmp_path}/parts/", seed=1, split={"a": 0.5, "b": 0.5}, split_by="key")
    first, second = (
        {key for shard in (tmp_path / "parts" / part).iterdir() for key, _ in read(shard)} for part in "ab"
    )
    assert not first & second
    (tmp_path / "bad.pairs").write_text("#a=1;b;")
    with pytest.raises(InputError, match="row 1: has no number"):
        recshuf.shuffle(tmp_path / "bad.pairs", tmp_path / "no.pairs", group_by="key")
    options = {"group_by": "key", "on_bad_record": f"quarantine:{tmp_path}/aside"}
    assert recshuf.shuffle(tmp_path / "bad.pairs", tmp_path / "good.jsonl", **options).records_written == 1
    with pytest.raises(UsageError, match=r"group_by: there is no column 'kay'; there are: key, number"):
        recshuf.shuffle(source, tmp_path / "no.pairs", group_by="kay")


def test_tables_whose_columns_only_reading_tells_are_converted_to_it(source: Path, tmp_path: Path):
    recshuf.shuffle(source, tmp_path / "out.jsonl", seed=1)
    recshuf.shuffle(tmp_path / "out.jsonl", tmp_path / "back.pairs", seed=1, verify=True)
    assert sorted(read(tmp_path / "back.pairs")) == sorted(read(source))
    with pytest.raises(
        UsageError,
        match=r"pairs is not compressed as a whole; name it .*/back\.pairs, and for compression choose one of none$",
    ):
        recshuf.shuffle(source, tmp_path / "back.pairs.gz")
    (tmp_path / "other.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(ConversionError, match="pairs are of key and number, not of a; choose others"):
        recshuf.shuffle(tmp_path / "other.jsonl", tmp_path / "no.pairs")


def test_its_bad_records_are_set_aside_as_they_are(source: Path, tmp_path: Path):
    source.write_text("#a=1;b;c=3;")
    with pytest.raises(InputError, match="row 1: has no number"):
        recshuf.shuffle(source, tmp_path / "out.parquet")
    with pytest.raises(InputError, match=r"row 1: has no number; .*on_bad_record"):
        recshuf.scatter(source, tmp_path / "none")
    aside = tmp_path / "bad"
    recshuf.shuffle(source, tmp_path / "out.parquet", on_bad_record=f"quarantine:{aside}", seed=1)
    wanted = {"input": str(source), "line": 2, "reason": "has no number", "record": "b;"}
    assert json.loads(aside.read_text()) == wanted
    recshuf.scatter(source, tmp_path / "store", on_bad_record=f"quarantine:{aside}", overwrite=True, seed=1)
    assert json.loads(aside.read_text()) == wanted
    source.write_text("#a=1;b;cc;d=3;")
    recshuf.shuffle(source, tmp_path / "two.parquet", on_bad_record=f"quarantine:{tmp_path}/two", seed=1)
    told = map(json.loads, (tmp_path / "two").read_text().splitlines())
    assert [(line["line"], line["record"]) for line in told] == [(2, "b;"), (3, "cc;")]
    with pytest.raises(UsageError, match=r"on_bad_record: for a conversion of .* or pairs, and"):
        recshuf.shuffle(source, tmp_path / "out.pairs", on_bad_record="quarantine:x")
