"""Arrow files as tools write them: dictionaries that change, damage, odd types, several inputs, and what reads the output."""

import json
import re
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import InputError, MemoryLimitError, RecshufWarning, UsageError
from recshuf.formats.arrow import FORMAT
from recshuf.formats.objects import name_table
from recshuf.interfaces import InputFile, ReadOptions, Stamp
from recshuf.records import conforming
from recshuf.records.arrays import count_bytes
from tests.support.effort import some
from tests.support.formats.file_suite import refused

ROWS = 3000
CODECS = {"zstd": b"\x28\xb5\x2f\xfd", "lz4": b"\x04\x22\x4d\x18"}


def make_table(first: int = 0, rows: int = ROWS) -> pa.Table:
    numbers = range(first, first + rows)
    return pa.table({"id": numbers, "text": [f"row {n}" for n in numbers], "half": [n / 2 for n in numbers]})


def write(path: Path, table: pa.Table, *, stream: bool = False, chunk: int = 700, **options: object) -> Path:
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with make(path, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=chunk)
    return path


def read(path: Path) -> pa.Table:
    content = pa.py_buffer(path.read_bytes())
    is_file = content[:6].to_pybytes() == b"ARROW1"
    with (pa.ipc.open_file if is_file else pa.ipc.open_stream)(content) as reader:
        table = reader.read_all()
    table.validate(full=True)
    return table


def test_the_name_of_an_output_file_says_its_form(tmp_path: Path) -> None:
    inputs = [
        write(tmp_path / f"{stream}.arrow", make_table(rows=100), stream=stream) for stream in (False, True)
    ]
    pq.write_table(make_table(rows=100), tmp_path / "in.parquet")
    for path in (*inputs, tmp_path / "in.parquet"):
        own = path.name != "True.arrow"
        for name, is_file in (("a.feather", True), ("a.IPC", True), ("a.arrows", False), ("a.arrow", own)):
            recshuf.shuffle(path, tmp_path / name, seed=1, overwrite=True, verify=True)
            assert (tmp_path / name).read_bytes().startswith(b"ARROW1") == is_file, (path, name)
            assert read(tmp_path / name)["id"].to_pylist() == read(tmp_path / "a.feather")["id"].to_pylist()
    assert pa.ipc.open_file(tmp_path / "a.feather").read_all().num_rows == 100


@pytest.mark.parametrize(
    ("stream", "codec", "chunk"), [(False, "zstd", 700), (False, None, 700), (True, "lz4", 10)], ids=["zstd", "plain", "stream"]
)  # fmt: skip
def test_form_and_batches_are_kept_and_the_order_is_that_of_parquet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool, codec: str | None, chunk: int
) -> None:
    """Arrow prepares a whole dictionary for each look-up, so values of many short batches are looked up together."""
    table, names = make_table(), pa.array([f"{n % 50}" if n % 7 else None for n in range(ROWS)])
    table = table.append_column("view", table["text"].cast("string_view"))
    table = table.append_column("name", names.dictionary_encode())
    write(tmp_path / "in.arrow", table, stream=stream, chunk=chunk, compression=codec)
    pq.write_table(table, tmp_path / "in.parquet")
    looked_up = list[object]()

    def find_indices(*arguments: object) -> object:
        looked_up.append(arguments)
        return conforming.find_indices(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("recshuf.formats.arrow.files.find_indices", find_indices)
    for suffix in ("arrow", "parquet"):
        recshuf.shuffle(tmp_path / f"in.{suffix}", tmp_path / f"out.{suffix}", seed=4, verify=True)
    found, content = read(tmp_path / "out.arrow"), (tmp_path / "out.arrow").read_bytes()
    assert found.schema.equals(table.schema)
    assert found.to_pylist() == pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert [len(part) for part in found["id"].chunks] == [
        len(part) for part in read(tmp_path / "in.arrow")["id"].chunks
    ]
    assert 0 < len(looked_up) < ROWS // 100
    assert content.startswith(b"ARROW1") == (not stream)
    assert [name for name, magic in CODECS.items() if magic in content] == [codec] * (codec is not None)


def test_the_rows_of_a_batch_are_those_of_8_mib_where_inputs_have_one_batch_or_none(tmp_path: Path) -> None:
    table = pa.table({"id": range(6000), "text": [f"{n} " * 400 for n in range(6000)]})
    write(tmp_path / "in.arrow", table, chunk=6000)
    pq.write_table(table, tmp_path / "in.parquet")
    for name, out in (("in.arrow", "a.arrow"), ("in.parquet", "b.arrow"), ("in.parquet", "out.parquet")):
        recshuf.shuffle(tmp_path / name, tmp_path / out, seed=4)
    for out in ("a.arrow", "b.arrow"):
        found = read(tmp_path / out)
        assert found.equals(pq.read_table(tmp_path / "out.parquet"))
        first, *others = found.to_batches()
        assert 0.9 * (8 << 20) < first.nbytes < 1.1 * (8 << 20)
        assert [batch.num_rows for batch in others] == [6000 - first.num_rows]


def test_intervals_are_compared(tmp_path: Path) -> None:
    spans = pa.array([(1, 2, 3), None, (4, 5, 6), (-1, -2, -3)], pa.month_day_nano_interval())
    write(tmp_path / "in.arrow", pa.table({"span": spans}))
    assert recshuf.shuffle(tmp_path / "in.arrow", tmp_path / "out.arrow", seed=1, verify=True).records == 4
    write(tmp_path / "out.arrow", pa.table({"span": spans.take(pa.array([0, 1, 2, 2]))}))
    found = recshuf.verify(tmp_path / "in.arrow", tmp_path / "out.arrow")
    assert (found.missing, found.extra) == (1, 1)


@pytest.mark.parametrize("compression", [None, "lz4"])
def test_the_size_is_known_though_the_first_rows_are_short(tmp_path: Path, compression: str | None) -> None:
    """Piles that come out larger than planned are split, which costs a third of a run."""
    chance = np.random.default_rng(0)
    table = pa.table({"value": [chance.bytes(20 * (1 + row // 700)) for row in range(ROWS)]})
    source = write(tmp_path / "in.arrow", table, compression=compression)
    planned = recshuf.plan(source, tmp_path / "out.arrow", memory="1GB")
    assert planned.byte_count == pytest.approx(table.nbytes, rel=0.2)


@pytest.mark.parametrize("stream", [False, True])
def test_dictionaries_of_all_batches_and_inputs_are_one(tmp_path: Path, stream: bool) -> None:
    """In a stream a dictionary may replace another one; indices get room for all values."""
    sources, expected = [], []
    for number in range(3):
        values = [[f"{number} {chunk} {value % 100}" for value in range(200)] for chunk in range(1 + stream)]
        kind = pa.dictionary(pa.int8(), pa.string())
        chunks = [pa.array(part).dictionary_encode().cast(kind) for part in values]
        table = pa.table({"label": pa.chunked_array(chunks)})
        expected += table["label"].to_pylist()
        sources.append(write(tmp_path / f"{number}.arrow", table, stream=stream, chunk=200))
    recshuf.shuffle(sources, tmp_path / "out.arrow", verify=True)
    table = read(tmp_path / "out.arrow")
    assert sorted(table["label"].to_pylist()) == sorted(expected)
    assert table.schema.field("label").type.index_type == pa.int32()
    if not stream:
        assert pa.ipc.open_file(tmp_path / "out.arrow").read_all().num_rows == len(expected)


def test_a_dictionary_holds_the_values_of_its_column_alone(tmp_path: Path) -> None:
    """Those of files that have the column, and no null."""
    label = pa.DictionaryArray.from_arrays([0, 1, 2], ["a", None, "b"])
    tables = {"label": label, "id": [0, 1, 2]}, {"other": pa.array(["x"]).dictionary_encode(), "id": [3]}
    files = [write(tmp_path / f"{n}.arrow", pa.table(table)) for n, table in enumerate(tables)]
    recshuf.shuffle(files, tmp_path / "out.arrow", verify=True)
    table = read(tmp_path / "out.arrow").sort_by("id").combine_chunks()
    assert table["label"].to_pylist() == ["a", None, "b", None]
    found = {name: table[name].chunk(0).dictionary.to_pylist() for name in ("label", "other")}
    assert found == {"label": ["a", "b"], "other": ["x"]}


def test_dictionaries_of_what_arrow_does_not_look_up_keep_their_values(tmp_path: Path) -> None:
    halves = pa.array(
        np.array([0x7E00, 0xFE01, 0x8000, 0, 0x3C00], "<u2").view("<f2")
    )  # NaN, -0.0 among them
    decimals = pa.array([Decimal(number) / 4 for number in range(5)], pa.decimal32(5, 2))
    indices = pa.array([*range(5), None] * 50, pa.int8())
    columns = {"id": range(300), "half": pa.DictionaryArray.from_arrays(indices, halves)}
    columns["short"] = pa.DictionaryArray.from_arrays(indices, decimals)
    source = write(tmp_path / "in.arrow", table := pa.table(columns))
    with pytest.warns(RecshufWarning, match="'short': dictionaries of short decimals are written as plain"):
        recshuf.shuffle(source, tmp_path / "out.arrow", seed=1, verify=True)
    found = read(tmp_path / "out.arrow").sort_by("id")
    assert found.schema.types == [*table.schema.types[:2], decimals.type]
    bits = [one["half"].combine_chunks().dictionary_decode().view(pa.uint16()) for one in (found, table)]
    assert bits[0].equals(bits[1])
    assert found["short"].to_pylist() == table["short"].to_pylist()


def test_order_of_categories_is_kept_and_nested_dictionaries_become_values(tmp_path: Path) -> None:
    indices = pa.array([2, 0, 1, None] * 50, pa.int8())
    levels = pa.DictionaryArray.from_arrays(indices, ["low", "mid", "high"], ordered=True)
    inner = pa.array(["a", "b", "a"] * 100).dictionary_encode()
    labels = pa.ListArray.from_arrays([row * 3 // 2 for row in range(201)], inner)
    pairs = pa.DictionaryArray.from_arrays(indices, [[1, 2], [3], []])
    source = write(tmp_path / "in.feather", pa.table({"level": levels, "labels": labels, "pairs": pairs}))
    with pytest.warns(RecshufWarning) as caught:
        recshuf.shuffle(source, tmp_path / "out.feather", verify=True)
    assert {str(one.message) for one in caught} == {
        "'labels': dictionaries inside of nested values are written as plain values",
        "'pairs': dictionaries of nested values are written as plain values",
    }
    found = read(tmp_path / "out.feather")
    level = found["level"].combine_chunks()
    assert (level.type, level.dictionary.to_pylist()) == (levels.type, ["low", "mid", "high"])
    assert level.null_count == 50
    assert sorted(found["labels"].to_pylist()) == sorted(labels.to_pylist())
    assert Counter(map(repr, found["pairs"].to_pylist())) == Counter(map(repr, pairs.to_pylist()))
    assert found["pairs"].type == pa.list_(pa.int64())


def test_schemas_are_united_columns_chosen_and_metadata_kept(tmp_path: Path) -> None:
    first = pa.table({"id": pa.array([1, 2], pa.int32())}, metadata={"by": "hand"})
    second = pa.table({"more": ["x"], "odd": [0], "id": pa.array([3], pa.int64())})
    sources = [write(tmp_path / "0.arrow", first), write(tmp_path / "1.arrow", second, stream=True)]
    recshuf.shuffle(sources, tmp_path / "out.arrow", columns="more,id")
    table = read(tmp_path / "out.arrow")
    assert table.column_names == ["more", "id"]
    assert sorted(table.to_pylist(), key=str) == [
        {"more": "x", "id": 3}, {"more": None, "id": 1}, {"more": None, "id": 2},
    ]  # fmt: skip
    assert table.schema.metadata == {b"by": b"hand"}
    said = "no column 'mor' in the inputs; there are 'more'"
    refused(UsageError, said, sources, tmp_path / "other.arrow", columns="mor")


def test_an_index_of_pandas_that_says_more_than_the_row_becomes_a_column(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": range(10)}, index=pandas.RangeIndex(5, 25, 2, name="at"))
    source = write(tmp_path / "in.arrow", pa.Table.from_pandas(frame), chunk=3)
    recshuf.shuffle(source, tmp_path / "out.arrow", seed=1)
    found = read(tmp_path / "out.arrow").to_pandas()
    assert found.index.name == "at"
    assert sorted(zip(found.index, found["a"], strict=True)) == [(5 + 2 * n, n) for n in range(10)]
    parts = [batch for part in read_parts(InputFile(str(source), source), 24) for batch in part]
    assert len(parts) > 2
    assert pa.Table.from_batches(parts)["at"].to_pylist() == list(range(5, 25, 2))


def test_short_batches_of_many_columns_are_joined_by_the_memory_of_their_arrays(tmp_path: Path) -> None:
    """Arrow takes some 500 bytes for each array, however few values it has."""
    path, columns, rows, block = tmp_path / "in.arrow", 300, 60, 1 << 20
    batch = pa.record_batch({f"c{index}": [index] for index in range(columns)})
    with pa.ipc.new_stream(path, batch.schema) as writer:
        for _ in range(rows):
            writer.write_batch(batch)
    counts = [sum(map(len, part)) for part in read_parts(InputFile(str(path), path), block)]
    assert sum(counts) == rows
    assert max(counts) * columns * 500 <= 2 * block


def test_the_memory_of_a_batch_that_is_written_is_that_of_rows_from_everywhere(tmp_path: Path) -> None:
    """The first rows may be shorter than most."""
    path, table = tmp_path / "in.arrow", pa.table({"text": ["x"] * 2000 + ["y" * 1000] * 2000})
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table[:2000])
        writer.write_table(table[2000:], max_chunksize=100)
    stamp = Stamp.of(path.stat())
    layout = FORMAT.open_source([InputFile("in.arrow", path, stamp=stamp)], ReadOptions()).layout
    assert layout.batch_rows == 2000
    assert layout.batch_bytes == pytest.approx(2000 * table.nbytes / 4000, rel=0.1)


def test_the_first_rows_of_a_table_are_not_more_than_are_asked_for() -> None:
    """They are counted with the values that they share."""
    label = pa.array(["x" * 1000] * 300).dictionary_encode()
    table = pa.concat_tables([pa.table({"n": range(at, at + 300), "label": label}) for at in (0, 300)])
    source = FORMAT.open_source([InputFile("table", None, table=name_table(table, 0).table)], ReadOptions())
    for rows, byte_count, expected in ((1000, 1 << 30, 600), (400, 1 << 30, 400), (1000, 100_000, 100)):
        head = source.find_head(0, rows, byte_count)
        assert head["n"].to_pylist() == [*range(len(head))]
        assert len(head) == pytest.approx(expected, rel=0.05)


def test_each_batch_of_the_first_rows_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table may consist of thousands of them."""
    measured = list[int]()

    def count(batch: pa.RecordBatch) -> int:
        measured.append(len(batch))
        return count_bytes(batch)

    table = pa.concat_tables([pa.table({"n": [at, at]}) for at in range(50)])
    source = FORMAT.open_source([InputFile("table", None, table=name_table(table, 0).table)], ReadOptions())
    monkeypatch.setattr("recshuf.formats.arrow.files.count_bytes", count)
    assert len(source.find_head(0, 1000, 1 << 30)) == 100
    assert measured == [2] * 50


def test_a_batch_that_is_written_is_of_the_bytes_of_its_views(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a file, many rows may share them, and the first ones may be short."""
    most = 1 << 16
    monkeypatch.setattr("recshuf.formats.arrow.files.BATCH_BYTES", most)
    monkeypatch.setattr("recshuf.formats.arrow.files._FIRST_ROWS", 32)
    short, word = pa.array(["x"] * 3000, pa.string_view()), pa.array(["y" * 1000], pa.string_view())
    _, places, values = word.buffers()
    views = pa.py_buffer(places[:16].to_pybytes() * 3000)
    long = pa.Array.from_buffers(word.type, 3000, [None, views, values])
    table = pa.table({"n": range(6000), "word": pa.chunked_array([short, long])})
    path = write(tmp_path / "in.arrow", table, chunk=3000)
    recshuf.shuffle(path, tmp_path / "out.arrow", seed=1, verify=True)
    batches = (
        read(tmp_path / "out.arrow").cast(pa.schema({"n": pa.int64(), "word": pa.string()})).to_batches()
    )
    assert batches[0].num_rows > 32
    assert max(batch.nbytes for batch in batches) < 4 * most


SHORT, LONG = ["x"] * 700, [f"{n % 20:010}" * 100 for n in range(2000)]
WORDS = pa.chunked_array([pa.array(part).dictionary_encode() for part in (SHORT, LONG)]).unify_dictionaries()
COLUMNS: dict[str, Callable[[pa.Array], pa.Array]] = {
    "null": lambda words: pa.DictionaryArray.from_arrays(
        pa.array([None if n % 3 else place for n, place in enumerate(words.indices.to_pylist())], pa.int16()),
        words.dictionary,
    ),
    "value": lambda words: words,
    "list": lambda words: pa.ListArray.from_arrays(pa.array(range(len(words) + 1), pa.int32()), words),
    "fixed list": lambda words: pa.FixedSizeListArray.from_arrays(words, 1),
    "struct": lambda words: pa.StructArray.from_arrays([words], ["word"]),
    "map": lambda words: pa.MapArray.from_arrays(
        pa.array(range(len(words) + 1), pa.int32()), pa.array(range(len(words))), words
    ),
}


def read_parts(file: InputFile, block_bytes: int = 1 << 16) -> list[list[pa.RecordBatch]]:
    """Return the batches of each fragment of an input."""
    source = FORMAT.open_source([file], ReadOptions())
    return [list(part.batches()) for part in source.fragments(0, block_bytes, 1 << 20)]


@pytest.mark.parametrize(
    ("kind", "held"),
    [("value", pa.string()), *product(COLUMNS, [WORDS.type]), *product([*COLUMNS][1:], [pa.string_view()])],
    ids=str,
)
def test_rows_are_read_by_their_own_bytes_and_those_that_they_share(
    tmp_path: Path, kind: str, held: pa.DataType
) -> None:
    """The first rows do not tell how long the others are; values are shared in a dictionary, or as views, at any depth."""
    words = [part if held == WORDS.type else part.dictionary_decode().cast(held) for part in WORDS.chunks]
    table = pa.table({"n": range(2700), "held": pa.chunked_array([COLUMNS[kind](part) for part in words])})
    path, chunk = tmp_path / "in.arrow", 10 if held == pa.string() else 1000
    for form in ("table", "file", "stream"):
        file = InputFile(form, None, table=name_table(table, 0).table)
        if form != "table":
            file = InputFile(form, write(path, table, stream=form == "stream", chunk=chunk))
        parts = read_parts(file)
        batches = [batch for part in parts for batch in part]
        assert pa.Table.from_batches(batches).to_pylist() == table.to_pylist()
        assert max(sum(batch.nbytes for batch in part) for part in parts) < 1.5 * (1 << 16)


def test_long_values_of_a_dictionary_are_made_dense_a_block_at_a_time(tmp_path: Path) -> None:
    """Most rows of the batch are short, so that its mean row tells nothing of them."""
    words = pa.array(["x"] * 2500 + [f"{n % 20:010}" * 100 for n in range(200)])
    table = pa.table({"word": words.dictionary_encode()})
    for stream in (False, True):
        path = write(tmp_path / "in.arrow", table, stream=stream, chunk=2700)
        batches = [batch for part in read_parts(InputFile("in.arrow", path)) for batch in part]
        assert pa.Table.from_batches(batches)["word"].to_pylist() == words.to_pylist()
        assert max(batch.get_total_buffer_size() for batch in batches) < 1.5 * (1 << 16)


@pytest.mark.parametrize(("stream", "compression"), [(False, "lz4"), (True, None)])
def test_damage_is_an_error_or_changes_values_alone(
    tmp_path: Path, stream: bool, compression: str | None
) -> None:
    """Arrow has no checksums; no flip ends the process, loses a row, or is an error without the file's name."""
    source = write(
        tmp_path / "in.arrow", make_table(rows=400), stream=stream, chunk=100, compression=compression
    )
    sound, random = source.read_bytes(), np.random.default_rng(5)
    for place in some(random.integers(0, len(sound), 60).tolist(), 6):
        source.write_bytes(sound[:place] + bytes([sound[place] ^ (1 << place % 8)]) + sound[place + 1 :])
        try:
            report = recshuf.shuffle(source, tmp_path / "out.arrow", overwrite=True, format="arrow")
        except InputError as error:
            assert str(source) in str(error)
        else:
            assert report.records == 400


@pytest.mark.parametrize("stream", [False, True])
def test_a_file_without_columns_has_no_rows(tmp_path: Path, stream: bool) -> None:
    source = write(tmp_path / "none.arrow", pa.table({}), stream=stream)
    for _ in range(2):
        assert recshuf.shuffle(source, tmp_path / "out.arrow", verify=True, overwrite=True).records == 0
        source = tmp_path / "out.arrow"
    empty = pa.RecordBatch.from_struct_array(pa.array([{}] * 3, pa.struct([])))
    source = write(tmp_path / "three.arrow", pa.Table.from_batches([empty, empty]), stream=stream)
    refused(InputError, "three.arrow: has 6 rows but no columns", source, tmp_path / "new.arrow")
    write(source, pa.Table.from_batches([empty.slice(2)]), stream=stream)
    refused(InputError, "three.arrow: has 1 row but no columns", source, tmp_path / "new.arrow")
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(source, empty.schema) as writer:
        writer.write_batch(empty.slice(3))
    assert recshuf.shuffle(source, tmp_path / "new.arrow").records == 0


def test_what_cannot_be_shuffled_is_named(tmp_path: Path) -> None:
    (tmp_path / "old.feather").write_bytes(b"FEA1" + bytes(100))
    (tmp_path / "none.arrow").write_bytes(b"")
    (tmp_path / "text.arrow").write_bytes(b"a,b\n1,2\n")
    tags, offsets = pa.array([0, 0], pa.int8()), pa.array([0, 1], pa.int32())
    union = pa.UnionArray.from_dense(tags, offsets, [pa.array([1, 2])])
    odd = write(tmp_path / "odd.arrow", pa.table({"a": [1, 2], "u": union}))
    for name, said in (
        ("old.feather", "is Feather version 1"),
        ("none.arrow", "is empty"),
        ("text.arrow", "is not an Arrow file$"),
        ("odd.arrow", "column 'u': holds type .*union.*; leave it out with columns"),
    ):
        refused(InputError, f"{name}: {said}", tmp_path / name, tmp_path / "out.parquet")
    recshuf.shuffle(odd, tmp_path / "out.arrow", columns="a")


def test_labels_that_mean_something_else_are_refused(tmp_path: Path) -> None:
    sources = []
    for number, names in enumerate((["cat", "dog"], ["dog", "cat"])):
        features = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
        table = pa.table({"label": [0, 1]}, metadata={"huggingface": json.dumps(features)})
        sources.append(write(tmp_path / f"{number}.arrow", table, stream=True))
    said = r"1\.arrow: .*label.*dog.*cat.*first_metadata=True"
    refused(InputError, said, sources, tmp_path / "out.arrow")
    other = write(tmp_path / "other.arrow", pa.table({"id": [0]}), stream=True)
    refused(InputError, said, [other, *sources], tmp_path / "out.arrow")
    empty = write(tmp_path / "empty.arrow", read(sources[1]).slice(0, 0))
    recshuf.shuffle([sources[0], empty], tmp_path / "out.arrow")
    recshuf.shuffle(sources, tmp_path / "out.arrow", first_metadata=True, overwrite=True)
    assert b"cat" in read(tmp_path / "out.arrow").schema.metadata[b"huggingface"]


@pytest.mark.parametrize("kind", ["text", "dictionary", "values of a dictionary", "view"])
def test_damage_of_the_first_batch_is_found_before_anything_is_read_of_it(tmp_path: Path, kind: str) -> None:
    texts = pa.array(["one", "two", "three"])
    by_index = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2], pa.int32()), texts)
    column = {"text": texts, "view": texts.cast(pa.string_view())}.get(kind, by_index)
    # The last offset, the last index, or the length in the view of "two".
    sound, after = {"dictionary": ([0, 1, 2], b""), "view": ([3], b"two")}.get(kind, ([0, 3, 6, 11], b""))
    path = write(tmp_path / "in.arrow", pa.table({"a": column}))
    content, damaged = path.read_bytes(), [*sound[:-1], (1 << 31) - 1]
    before, now = (struct.pack(f"<{len(sound)}i", *values) + after for values in (sound, damaged))
    assert content.count(before) == 1
    path.write_bytes(content.replace(before, now))
    said = r"in\.arrow.* cannot be read as Arrow: "
    refused(InputError, said, path, tmp_path / "out.arrow", seed=1)


@pytest.mark.parametrize(("stream", "compression"), [(True, None), (False, "zstd")])
def test_a_batch_beyond_the_limit_is_refused_before_it_is_read(
    tmp_path: Path, stream: bool, compression: str | None
) -> None:
    """Alike values are short in the file if it is compressed; the memory that the message names is enough."""
    table = pa.table({"number": np.zeros(1_000_000), "text": ["a" * 8] * 1_000_000})
    given = write(tmp_path / "in.arrow", table, stream=stream, chunk=len(table), compression=compression)
    pa.default_memory_pool().release_unused()
    del table
    before = pa.default_memory_pool().max_memory()
    with pytest.raises(MemoryLimitError, match=r"in\.arrow: reading record batches of ") as refused_with:
        recshuf.shuffle(given, tmp_path / "out.arrow", memory="32MB", workers=1)
    assert pa.default_memory_pool().max_memory() == before
    needed = re.search(r"at least ([0-9.]+ MB)", str(refused_with.value))[1]
    assert recshuf.shuffle(given, tmp_path / "out.arrow", memory=needed, workers=1).records == 1_000_000


def write_dictionaries(path: Path, dictionaries: Sequence[Sequence[str]], rows: int) -> Path:
    """Write a stream of batches of so many rows, each with its own dictionary."""
    kind = pa.dictionary(pa.int32(), pa.string())
    schema = pa.schema([("value", kind)])
    with pa.ipc.new_stream(path, schema) as writer:
        for number, values in enumerate(dictionaries):
            indices = (np.arange(rows, dtype=np.int32) + number) % len(values)
            array = pa.DictionaryArray.from_arrays(pa.array(indices), pa.array(values))
            writer.write_batch(pa.record_batch([array], schema=schema))
    return path


def test_dictionaries_beyond_an_eighth_of_the_limit_are_refused(tmp_path: Path) -> None:
    """The memory that the message names is enough; inputs that share their values count once."""
    chance = np.random.default_rng(5)
    values, others = ([chance.bytes(500).hex() for _ in range(4000)] for _ in range(2))
    given = [
        write_dictionaries(tmp_path / f"{number}.arrows", [values[: 3990 + number]], 500)
        for number in range(4)
    ]
    more = write_dictionaries(tmp_path / "more.arrows", [others] * 2, 500)
    options = {"seed": 1, "workers": 1}
    with pytest.raises(
        MemoryLimitError, match=r"more\.arrows: reading dictionaries of .* MB up to here"
    ) as refused_with:
        recshuf.shuffle([*given, more], tmp_path / "out.arrow", memory="56MB", **options)
    assert recshuf.shuffle(given, tmp_path / "few.arrow", memory="56MB", **options).records == 4 * 500
    needed = re.search(r"at least ([0-9.]+ MB)", str(refused_with.value))[1]
    recshuf.shuffle([*given, more], tmp_path / "out.arrow", memory=needed, verify=True, **options)


def test_a_dictionary_makes_many_bytes_of_few(tmp_path: Path) -> None:
    """A batch takes what it takes in the file, and not what its values would."""
    given = write_dictionaries(tmp_path / "in.arrows", [["a" * 5000, "b" * 5000]], 20_000)
    recshuf.shuffle(given, tmp_path / "out.arrow", memory="64MB", workers=1, seed=1, head_count=100)


def test_a_value_that_the_united_type_does_not_hold_is_no_damage(tmp_path: Path) -> None:
    write(tmp_path / "a.arrow", pa.table({"n": [2**53 + 1]}))
    write(tmp_path / "b.arrow", pa.table({"n": [0.5]}))
    message = rf"a\.arrow: row 0: a value .*{2**53 + 1}.*; correct it, or shuffle the files apart$"
    with pytest.raises(InputError, match=message):
        recshuf.shuffle(tmp_path, f"{tmp_path}/out.arrow", widen=True)
    assert not (tmp_path / "out.arrow").exists()
