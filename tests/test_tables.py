"""Tables that a program holds, as inputs: shuffled as the same rows in a Parquet file are."""

import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import ConversionError, InputError, UsageError
from recshuf.output.manifest import manifest_path
from tests.support.small_runs import Listener


def make_table(count: int = 700, first: int = 0) -> pa.Table:
    """Return rows of many types, in chunks that have a dictionary each."""
    numbers = np.arange(first, first + count)
    chunks = [
        pa.table(
            {
                "id": part,
                "half": part / 2,
                "word": [None if number % 5 == 0 else f"w{number}" for number in part],
                "kind": pa.array([f"k{number % 7}" for number in part]).dictionary_encode(),
                "list": [[number] * (number % 3) for number in part],
                "pair": [{"a": number, "b": [str(number)]} for number in part],
                "time": pa.array(part, pa.timestamp("s")),
                "view": pa.array([f"{number}" for number in part], pa.string_view()),
            }
        )
        for part in np.array_split(numbers, 3)
    ]
    return pa.concat_tables(chunks)


SMALL = pa.table({"id": range(500), "word": [f"w{number}" for number in range(500)]})


def _import(name: str, make: Callable[[Any], object]) -> object:
    return make(pytest.importorskip(name))


HOLDERS: dict[str, Callable[[pa.Table], object]] = {
    "table": lambda table: table,
    "batch": lambda table: table.combine_chunks().to_batches()[0],
    "dataset": lambda table: pads.dataset(table.to_batches(max_chunksize=90)),
    "reader": lambda table: table.to_reader(max_chunksize=90),
    "pandas": lambda table: _import("pandas", lambda _: table.to_pandas()),
    "extended": lambda table: _import(
        "pandas", lambda pandas: type("Frame", (pandas.DataFrame,), {})(table.to_pandas())
    ),
    "polars": lambda table: _import("polars", lambda polars: polars.from_arrow(table)),
    "duckdb": lambda table: _import("duckdb", lambda duckdb: duckdb.from_arrow(table)),
    "datasets": lambda table: _import("datasets", lambda datasets: datasets.Dataset(table)),
    "iterable": lambda table: _import(
        "datasets", lambda datasets: datasets.Dataset(table).to_iterable_dataset()
    ),
}
ONCE = ("reader", "duckdb", "iterable")


def rows_of(path: Path) -> list[dict[str, Any]]:
    return pq.read_table(path).to_pylist()


@pytest.mark.parametrize("holder", HOLDERS)
def test_the_order_is_that_of_the_same_rows_in_a_file(tmp_path: Path, holder: str):
    pq.write_table(SMALL, tmp_path / "in.parquet")
    recshuf.shuffle(tmp_path / "in.parquet", tmp_path / "a.parquet", seed=7)
    report = recshuf.shuffle(HOLDERS[holder](SMALL), tmp_path / "b.parquet", seed=7)
    assert rows_of(tmp_path / "a.parquet") == rows_of(tmp_path / "b.parquet")
    word = "reader" if holder in ("reader", "duckdb") else "table"
    word = "dataset" if holder in ("dataset", "datasets", "iterable") else word
    assert [one.name for one in report.inputs] == [f"<{word} 0>"]
    if holder not in ONCE:
        assert recshuf.verify(HOLDERS[holder](SMALL), tmp_path / "b.parquet").is_equal


@pytest.mark.parametrize("count", [700, 0])
def test_the_bytes_are_those_of_the_file_that_pyarrow_writes(tmp_path: Path, count: int):
    table = make_table()[:count].append_column(
        "date", pa.array([datetime.date(2026, 1, 1)] * count, pa.date64())
    )
    pq.write_table(table, tmp_path / "in.parquet")
    table = pa.table(table.columns, schema=pq.read_schema(tmp_path / "in.parquet")) if count else table
    for name, inputs in (("a", tmp_path / "in.parquet"), ("b", table)):
        recshuf.shuffle(inputs, tmp_path / f"{name}.parquet", seed=7)
    if count:
        assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    assert pq.read_table(tmp_path / "a.parquet").equals(pq.read_table(tmp_path / "b.parquet"))


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(
    "kind",
    [pa.large_string(), pa.large_binary(), pa.binary(1), pa.int16(), pa.date64(), pa.timestamp("s")],
    ids=str,
)
def test_dictionaries_have_the_values_that_their_file_has(tmp_path: Path, kind: pa.DataType, ordered: bool):
    """A frame of polars with categories is such a table."""
    values = ["a", "b"] if kind in (pa.large_string(), pa.large_binary(), pa.binary(1)) else [0, 86_400_000]
    values = pa.array([number % 1000 for number in values] if kind == pa.int16() else values, kind)
    indices = pa.array([0, 1, None] * 50, pa.int8())
    table = pa.table(
        {"a": pa.DictionaryArray.from_arrays(indices, values, ordered=ordered), "id": range(150)}
    )
    pq.write_table(table, tmp_path / "in.parquet")
    for name, inputs in (("a", tmp_path / "in.parquet"), ("b", table)):
        recshuf.shuffle(inputs, tmp_path / f"{name}.parquet", seed=7, verify=True)
    first, second = (pq.read_table(tmp_path / f"{name}.parquet") for name in "ab")
    assert first.equals(second)
    assert recshuf.verify(table, tmp_path / "a.parquet").is_equal


@pytest.mark.parametrize("to", ["parquet", "arrow", "jsonl"])
def test_tables_lie_among_files_and_are_united_with_them(tmp_path: Path, to: str):
    paths = [tmp_path / f"{number}.parquet" for number in range(3)]
    tables = [
        make_table(50),
        make_table(60, 50).drop_columns("half").append_column("more", pa.array(range(60))),
        make_table(40, 110),
    ]
    for path, table in zip(paths, tables, strict=True):
        pq.write_table(table, path)
    whole = {"seed": 3, "provenance": True, "to": to}
    recshuf.shuffle(paths, f"{tmp_path}/a/", **whole)
    report = recshuf.shuffle([paths[0], tables[1], str(paths[2])], f"{tmp_path}/b/", **whole, verify=True)
    assert [one.name for one in report.inputs] == [str(paths[0]), "<table 1>", str(paths[2])]
    found = [read_shards(tmp_path / name, to) for name in "ab"]
    for row in found[0]:
        row["source_file"] = row["source_file"].replace(str(paths[1]), "<table 1>")
    assert found[0] == found[1]
    assert len(found[0]) == 150
    assert "<table 1>" in manifest_path(tmp_path / "b").read_text()
    recshuf.shuffle([paths[0], tables[1]], f"{tmp_path}/c/", seed=3, to=to, columns="more,id")
    rows = [{"more": None, "id": row} for row in range(50)] + [{"more": row, "id": 50 + row} for row in range(60)]  # fmt: skip
    assert sorted(read_shards(tmp_path / "c", to), key=lambda row: row["id"]) == rows


def test_categories_of_a_table_keep_their_order_behind_columns_of_files(tmp_path: Path):
    pq.write_table(SMALL, tmp_path / "in.parquet")
    sizes = pa.DictionaryArray.from_arrays([2, 0, 1], ["small", "large", "huge"], ordered=True)
    recshuf.shuffle([tmp_path / "in.parquet", pa.table({"size": sizes})], tmp_path / "out.parquet")
    column = pq.read_table(tmp_path / "out.parquet")["size"].combine_chunks()
    assert (column.type.ordered, column.dictionary) == (True, sizes.dictionary)


def test_an_index_has_room_for_the_values_of_files_and_tables(tmp_path: Path):
    texts = [[f"{number} {value}" for value in range(100)] for number in range(2)]
    kind = pa.dictionary(pa.int8(), pa.string())
    file, table = (pa.table({"a": pa.array(some).dictionary_encode().cast(kind)}) for some in texts)
    pq.write_table(file, tmp_path / "in.parquet")
    recshuf.shuffle([tmp_path / "in.parquet", table], tmp_path / "out.parquet", verify=True)
    assert sorted(pq.read_table(tmp_path / "out.parquet")["a"].to_pylist()) == sorted(texts[0] + texts[1])


def read_shards(folder: Path, to: str) -> list[dict[str, Any]]:
    rows = []
    for path in sorted(folder.glob("*")):
        if to == "jsonl":
            rows += [json.loads(line) for line in path.read_text().splitlines()]
        elif to == "arrow":
            rows += pa.ipc.open_file(path).read_all().to_pylist()
        else:
            rows += rows_of(path)
    return rows


def test_what_others_have_no_place_for_stays_in_arrow_files(tmp_path: Path):
    table = make_table().replace_schema_metadata({"pandas": "{}", "own": "x"})
    recshuf.shuffle(table, tmp_path / "out.arrow", seed=1)
    written = pa.ipc.open_file(tmp_path / "out.arrow").read_all()
    assert written.schema.equals(table.schema, check_metadata=True)
    assert sorted(written["id"].to_pylist()) == table["id"].to_pylist()
    assert written.to_pylist()[3] == table.slice(written["id"][3].as_py(), 1).to_pylist()[0]


def test_a_store_of_tables_is_that_of_their_file(tmp_path: Path):
    pq.write_table(SMALL, tmp_path / "in.parquet")
    for name, inputs in (("a", tmp_path / "in.parquet"), ("b", SMALL)):
        recshuf.scatter(inputs, tmp_path / name, seed=4)
        recshuf.gather(tmp_path / name, tmp_path / f"{name}.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    with pytest.raises(UsageError, match="cannot be found again"):
        recshuf.PileLoader.from_files(SMALL, 4, cache=tmp_path / "cache")


@pytest.mark.parametrize("holder", ONCE)
def test_what_is_read_once_is_refused_where_it_is_read_again(tmp_path: Path, holder: str):
    whole = {"output": tmp_path / "out.parquet"}
    held = HOLDERS[holder](SMALL)
    uses: dict[str, Callable[[], object]] = {
        "verify=True.*<(reader|dataset) 0>": lambda: recshuf.shuffle(held, **whole, verify=True),
        "resume=True.*<(reader|dataset) 0>": lambda: recshuf.shuffle(held, **whole, resume=True),
        "engine.*<(reader|dataset) 0>": lambda: recshuf.shuffle(held, **whole, engine="ray"),
        "given twice": lambda: recshuf.shuffle([held, held], **whole),
        "verify: .*<(reader|dataset) 0> can be read once": lambda: recshuf.verify(held, tmp_path),
        "split: .*read once": lambda: recshuf.scatter(held, tmp_path / "s", split={"a": 0.5, "b": 0.5}),
    }
    for problem, use in uses.items():
        with pytest.raises(UsageError, match=problem):
            use()
    # Nothing of it has been read.
    assert recshuf.shuffle(held, **whole).records == 500


def test_a_reader_of_which_rows_were_taken_is_refused(tmp_path: Path):
    """The rows that it has looked at would be missing."""
    out = tmp_path / "out.parquet"
    uses: list[Callable[[Any], object]] = [
        lambda reader: recshuf.plan(reader, out),
        lambda reader: recshuf.shuffle(reader, tmp_path / "first.parquet"),
    ]
    for use in uses:
        reader = SMALL.to_reader(max_chunksize=90)
        use(reader)
        with pytest.raises(
            UsageError, match=r"an earlier call.* has taken rows of this reader; give a new one"
        ):
            recshuf.shuffle(reader, out)
    reader = SMALL.to_reader()
    with pytest.raises(UsageError, match="no column 'more'"):  # of which none was taken
        recshuf.shuffle(reader, out, columns="more")
    assert recshuf.shuffle(reader, out).records == 500
    duckdb = pytest.importorskip("duckdb")
    relation = duckdb.from_arrow(pa.table({"text": ["x" * 100] * 300_000}))
    recshuf.plan(relation, tmp_path / "all.parquet")  # a connection has one result at a time
    assert recshuf.shuffle(relation, tmp_path / "all.parquet").records == 300_000


def test_what_is_no_table_is_refused_with_a_remedy(tmp_path: Path):
    refused: list[tuple[object, str]] = [
        ({"a": [1]}, r"pyarrow.table\(\.\.\.\)"),
        ([{"a": 1}], r"from_pylist"),
        (pa.chunked_array([[1]]), r"one column"),
        (pads.dataset(SMALL).scanner(), r"Scanner .*to_reader\(\)"),
        ([pads.dataset(SMALL).scanner()], r"Scanner .*to_reader\(\)"),
        ([SMALL, 7], r"only paths are taken, .*and tables.*; here: int"),
    ]
    pandas = pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    refused += [
        (polars.LazyFrame({"a": [1]}), r"collect\(\) it"),
        (polars.Series([1]), r"to_frame\(\)"),
        (polars.DataFrame({"a": [object()]}, schema={"a": polars.Object}), r"cast or drop it"),
        (pandas.Series([1]), r"(to_frame\(\)|here: int)"),  # of pandas 2 it is any iterable
    ]
    for inputs, remedy in refused:
        with pytest.raises(UsageError, match=f"inputs: .*{remedy}"):
            recshuf.shuffle(inputs, tmp_path / "out.parquet")
    (tmp_path / "in.jsonl").write_text('{"id": 1}\n')
    rows = pa.RecordBatch.from_struct_array(pa.array([{}] * 3, pa.struct([])))
    wide = polars.DataFrame({"id": [1], "big": [2**100]}, schema={"id": polars.Int64, "big": polars.Int128})
    unfit: list[tuple[object, str]] = [
        (wide, r"<table 0>: column 'big': has no form in Arrow: .*; give each column .* that Arrow has"),
        (pandas.DataFrame({"a": [1, "x", b"y"]}), r"<table 0>: has no form in Arrow: .*column a.*; give each column"),
        ([tmp_path / "in.jsonl", SMALL], r"<table 1>: is a table, and .*in.jsonl is jsonl"),
        (rows, r"3 rows but no columns"),
        (pa.RecordBatchReader.from_batches(rows.schema, [rows]), r"<reader 0>: has no columns, so there is nothing to shuffle"),
        ([SMALL, pa.table({"id": ["x"]})], r"<table 1>: .*field 'id': type string does not fit type int64 in <table 0>"),
    ]  # fmt: skip
    for inputs, problem in unfit:
        with pytest.raises(InputError, match=problem):
            recshuf.shuffle(inputs, tmp_path / "out.parquet")
    with pytest.raises(InputError, match=r"is a table, and no text; leave out format"):
        recshuf.shuffle(SMALL, tmp_path / "out.txt", format="text")
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_errors_of_a_reader_name_it_and_keep_their_class(tmp_path: Path):
    def fail(error: Exception) -> pa.RecordBatchReader:
        def read():
            yield SMALL.to_batches()[0]
            raise error

        return pa.RecordBatchReader.from_batches(SMALL.schema, read())

    class OwnError(Exception):
        pass

    with pytest.raises(InputError, match=r"<reader 0>: row 500 or later: cannot be read: out of luck"):
        recshuf.shuffle(fail(ValueError("out of luck")), tmp_path / "out.arrow")
    with pytest.raises(OwnError, match="mine"):
        recshuf.shuffle(fail(OwnError("mine")), tmp_path / "out.arrow")
    assert not list(tmp_path.iterdir())


def test_dictionaries_of_a_reader_become_values(tmp_path: Path):
    listener = Listener()
    recshuf.shuffle(make_table().to_reader(), tmp_path / "out.arrow", seed=1, progress=listener)
    written = pa.ipc.open_file(tmp_path / "out.arrow").read_all()
    assert written.schema.field("kind").type == pa.string()
    assert any("kind" in warning for warning in listener.warnings)
    assert {row["id"]: row["kind"] for row in written.to_pylist()} == {
        number: f"k{number % 7}" for number in range(700)
    }


def test_the_indices_and_features_of_hugging_face_are_kept(tmp_path: Path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"id": datasets.Value("int32"), "label": datasets.ClassLabel(names=["no", "yes"])}
    )
    whole = datasets.Dataset.from_dict(
        {"id": range(90), "label": [k % 2 for k in range(90)]}, features=features
    )
    chosen = whole.shuffle(seed=1).select(range(40)).with_format("numpy", columns=["label"])
    recshuf.shuffle(chosen, tmp_path / "out.parquet", seed=2, verify=True)
    written = pq.read_table(tmp_path / "out.parquet")
    assert sorted(written["id"].to_pylist()) == sorted(chosen.with_format(None)["id"])
    assert datasets.Features.from_arrow_schema(written.schema) == features
    with pytest.raises(UsageError, match=r"dict of splits; give one, such as \['train'\]"):
        recshuf.shuffle(datasets.DatasetDict({"train": whole}), tmp_path / "x.parquet")
    whole = whole.add_column("path", [str(tmp_path / "x.parquet")] * len(whole))
    for column in (whole["path"], whole.to_iterable_dataset()["path"]):
        if not isinstance(column, list):  # as older versions give it
            with pytest.raises(
                UsageError, match=r"Column is no table; give the data set, or select_columns\("
            ):
                recshuf.shuffle(column, tmp_path / "y.parquet")


@pytest.mark.parametrize("late", [False, True])
def test_records_of_hugging_face_without_features_have_the_columns_of_the_first(tmp_path: Path, late: bool):
    """What a function maps has none; datasets gives types to each record, and joins some of them."""
    datasets = pytest.importorskip("datasets")
    first = 1024 if late else 3
    rows = [{"id": number} if number < first else {"id": number, "more": 1} for number in range(2048)]
    unlike = [rows, rows[::-1], [{"a": None}] * first + [{"a": 1}], [{"a": 1}] * first + [{"a": 0.5}]]
    # Arrow makes numbers of text and truth values, and the other way round.
    unlike += [[{"a": 1}] * first + [{"a": "007"}], [{"a": True}] * first + [{"a": 7}]] if late else []
    for given in unlike:
        held = datasets.IterableDataset.from_generator(lambda given=given: iter(given))
        with pytest.raises(
            InputError, match=r"^<dataset 0>: records differ in type: .*Dataset.from_generator\("
        ):
            recshuf.shuffle(held, tmp_path / "out.parquet")
    assert not list(tmp_path.iterdir())
    failing = datasets.IterableDataset.from_generator(lambda: iter(rows)).map(lambda row: row["none"])
    with pytest.raises(KeyError, match="none"):
        recshuf.shuffle(failing, tmp_path / "out.parquet")
    fits = [{"a": 0.5}] * 1024 + [{"a": 1}] * 1024 + [{"a": None}] * 3
    recshuf.shuffle(datasets.IterableDataset.from_generator(lambda: iter(fits)), tmp_path / "out.parquet")
    assert pq.read_table(tmp_path / "out.parquet")["a"].value_counts().field(1).to_pylist().count(1024) == 2


def test_types_that_parquet_lacks_are_refused_by_name_or_written_elsewhere(tmp_path: Path):
    table = pa.table({"id": [1], "coarse": pa.array([1000], pa.decimal128(10, -3))})
    with pytest.raises(ConversionError, match="field 'coarse': Parquet cannot hold type decimal128"):
        recshuf.shuffle(table, tmp_path / "out.parquet")
    recshuf.shuffle(table, tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").read_text() == '{"id":1,"coarse":1000}\n'


def test_the_index_of_pandas_is_kept(tmp_path: Path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "a": pandas.Categorical(["x", "y"] * 20),
            "b": pandas.Categorical(["lo", "hi"] * 20, ["lo", "mid", "hi"], ordered=True),
        },
        index=pandas.Index(range(10, 50), name="row"),
    )
    frame.to_parquet(tmp_path / "in.parquet")
    for name, inputs in (("a", tmp_path / "in.parquet"), ("b", frame)):
        recshuf.shuffle(inputs, tmp_path / f"{name}.parquet", seed=2)
    pandas.testing.assert_frame_equal(*(pandas.read_parquet(tmp_path / f"{name}.parquet") for name in "ab"))
    assert sorted(pandas.read_parquet(tmp_path / "b.parquet").index) == [*range(10, 50)]


def test_the_size_of_a_choice_is_known_though_its_first_batch_is_empty(tmp_path: Path) -> None:
    """Batches with dictionaries are not joined."""
    words = pa.array(["a", "b"] * 250).dictionary_encode()
    texts = ["x" * 100] * 500
    parts = [pa.table({"id": [at] * 500, "word": words, "text": texts}) for at in range(2)]
    chosen = pads.dataset(pa.concat_tables(parts)).filter(pads.field("id") == 1)
    assert [batch.num_rows for batch in chosen.to_batches()] == [0, 500]
    assert recshuf.plan(chosen, tmp_path / "out.arrow").byte_count > 500 * 100


def test_of_long_rows_few_are_looked_at_before_the_run(tmp_path: Path) -> None:
    given: list[int] = []

    def read(count: int) -> pa.RecordBatchReader:
        def make(number: int) -> pa.RecordBatch:
            given.append(number)
            return pa.record_batch([pa.array([number]), pa.array([bytes(1 << 20)])], names=["id", "data"])

        batches = map(make, range(count))
        return pa.RecordBatchReader.from_batches(pa.schema({"id": pa.int64(), "data": pa.binary()}), batches)

    recshuf.plan(read(60), tmp_path / "out.parquet", memory="1GB")
    assert len(given) < 30
    recshuf.shuffle(read(60), tmp_path / "out.parquet", memory="1GB", seed=1)
    assert sorted(pq.read_table(tmp_path / "out.parquet")["id"].to_pylist()) == list(range(60))


EXTENSIONS = {
    "uuid": (pa.uuid(), [b"a" * 16, None, b"b" * 16]),
    "document": (pa.json_(pa.string()), ['{"a": 1}', None, "[]"]),
    "view": (pa.json_(pa.string_view()), ['{"a": 1}', None, '["longer than twelve"]']),
}


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize("name", EXTENSIONS)
def test_extension_types_that_parquet_knows_are_verified(tmp_path: Path, name: str, suffix: str) -> None:
    kind, values = EXTENSIONS[name]
    table = pa.table({"a": pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))})
    recshuf.shuffle(table, tmp_path / f"out.{suffix}", seed=1, verify=True)
    recshuf.shuffle(tmp_path / f"out.{suffix}", tmp_path / f"again.{suffix}", seed=2, verify=True)
    out = pads.dataset(tmp_path / f"again.{suffix}", format=suffix).to_table()
    assert out.schema.equals(table.schema)
    found = sorted(map(str, out["a"].to_pylist()))
    assert found == sorted(map(str, table["a"].to_pylist()))
