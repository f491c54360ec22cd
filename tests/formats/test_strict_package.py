"""A format of another package that holds keys and numbers only, as ``#a=1;b=2;``: its fields, its bad records, what is converted to it."""

import json
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import recshuf
from recshuf.errors import BadRecordError, ConversionError, InputError, UsageError
from recshuf.interfaces import (
    BadRecords,
    Decoder,
    Format,
    Fragment,
    InputFile,
    InputSummary,
    ReadOptions,
    RowFragment,
    Sink,
    Source,
    StoredInputs,
    Target,
    Traits,
    WriteOptions,
    open_raw,
)

NATIVE = pa.schema([("pair", pa.large_binary())])
TABLE = pa.schema([("key", pa.string()), ("number", pa.int64())])


class PairsSource(Source):
    """Files that are read as wholes."""

    schema, layout = NATIVE, ()

    def __init__(self, files: Sequence[InputFile], options: ReadOptions) -> None:
        self._files, self._options, self._records = files, options, [*map(_read, files)]
        self.inputs = tuple(
            InputSummary(file.name, sum(map(len, records)) + 1, len(records), True, sum(map(len, records)))
            for file, records in zip(files, self._records, strict=True)
        )

    def fragments(self, input_index: int, block_bytes: int, max_record_bytes: int) -> Iterator[Fragment]:
        limits = self._options.limit(block_bytes, max_record_bytes)
        batch = pa.record_batch([pa.array(self._records[input_index], pa.large_binary())], schema=NATIVE)
        name = self._files[input_index].name
        yield RowFragment(name, 0, len(batch), partial(batch.slice, 0), limits)

    def decoder(self) -> Decoder:
        return PairsDecoder([file.name for file in self._files], sets_aside=self._options.sets_bad_aside)


def _read(file: InputFile) -> list[bytes]:
    with open_raw(file) as raw:
        content = raw.read() or b""
    return [pair + b";" for pair in content[1:].split(b";")[:-1]]


class PairsDecoder(Decoder):
    """Returns keys and numbers; its schema is known at once."""

    schema = TABLE

    def __init__(self, names: Sequence[str], *, sets_aside: bool = False) -> None:
        self._names, self._sets_aside = names, sets_aside

    def observe(self, batch: pa.RecordBatch, input_index: int, first_row: int) -> BadRecords | None:
        pairs = batch.column(0).to_pylist()
        bad = [row for row, pair in enumerate(pairs) if not pair[:-1].partition(b"=")[2].isdigit()]
        if bad and not self._sets_aside:
            place = f"row {first_row + bad[0]}"
            raise BadRecordError(self._names[input_index], "has no number", place=place)
        return BadRecords(np.array(bad, np.int64), ["has no number"] * len(bad)) if bad else None

    def finish(self) -> pa.Schema:
        return TABLE

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        # A bad record is an IndexError here.
        pairs = [pair.decode()[:-1].split("=") for pair in batch.column(0).to_pylist()]
        rows = [{"key": pair[0], "number": int(pair[1])} for pair in pairs]
        return pa.RecordBatch.from_pylist(rows, TABLE)


class PairsSink(Sink):
    """A file of pairs."""

    record_count = 0

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb")
        self._file.write(b"#")

    def write(self, batch: pa.RecordBatch) -> None:
        rows = batch.to_pylist()
        pairs = [row["pair"] if "pair" in row else f"{row['key']}={row['number']};".encode() for row in rows]
        self._file.write(b"".join(pairs))
        self.record_count += len(rows)

    def close(self) -> None:
        self._file.close()

    abort = close


class PairsTarget(Target):
    """Refuses other columns."""

    suffix = ".pairs"

    def __init__(self, schema: pa.Schema, layout: Any) -> None:
        if layout is None and schema.names != TABLE.names:
            names = ", ".join(schema.names)
            raise ConversionError("", f"pairs are of key and number, not of {names}", remedy="choose others")

    def open(self, path: Path, threads: int) -> Sink:
        return PairsSink(path)


class PairsFormat(Format):
    """Pairs of keys and numbers."""

    traits = Traits(
        "pairs",
        (".pairs",),
        read_options=frozenset({"sets_bad_aside"}),
        has_columns=False,
        adds_columns=False,
    )

    def open_source(self, inputs: Sequence[InputFile], options: ReadOptions) -> Source:
        return PairsSource(inputs, options)

    def open_target(self, schema: pa.Schema, layout: Any, options: WriteOptions) -> Target:
        return PairsTarget(schema, layout)

    def restore_decoder(self, stored: StoredInputs) -> Decoder:
        return PairsDecoder(stored.names)


FORMAT = PairsFormat()


@pytest.fixture(autouse=True)
def pairs(add_package: Any) -> None:
    add_package("recshuf-pairs", pairs=f"{__name__}:FORMAT")


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
