"""Reading one field of each record: the same values as among all others, and nothing else is read."""

import json
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import InputError, UsageError
from recshuf.formats import load_format
from recshuf.interfaces import InputFile, ReadOptions
from recshuf.records.arrays import find_value
from tests.support.formats.format_tools import place_batches, reading

COUNT = 3000
IDS = np.arange(COUNT)
TIMES = IDS[::-1] / 2
PATHS = ["id", "/id", "meta.time", "meta/time", "/meta/at/day"]


def write_parquet(path: Path) -> None:
    records = {"text": ["x" * 50] * COUNT, "id": IDS, "meta": list_meta()}
    pq.write_table(pa.table(records), path, row_group_size=1000, compression="none")


def write_jsonl(path: Path) -> None:
    records = ({"text": "x" * 50, "id": id_, "meta": meta} for id_, meta in enumerate(list_meta()))
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def write_hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["text"] = np.full((COUNT, 50), ord("x"), np.uint8)
        file["id"] = IDS
        file["meta/time"] = TIMES
        file["meta/at"] = IDS.astype([("day", "i8")])


def list_meta() -> list[dict[str, object]]:
    return [
        {"time": time, "at": {"day": day}} for time, day in zip(TIMES.tolist(), IDS.tolist(), strict=True)
    ]


WRITERS: dict[str, Callable[[Path], None]] = {
    "parquet": write_parquet,
    "jsonl": write_jsonl,
    "hdf5": write_hdf5,
}


@pytest.fixture(params=WRITERS)
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / f"data.{request.param}"
    WRITERS[request.param](path)
    return path


def read_table(path: Path, options: ReadOptions) -> pa.RecordBatch:
    source = load_format(path.suffix[1:]).open_source([InputFile(str(path), path)], options)
    batches = place_batches(source, 1 << 20)
    decoder = source.decoder()
    for batch, file, row in batches:
        decoder.observe(batch, file, row)
    decoder.finish()
    return pa.concat_batches([decoder.decode(batch) for batch, _, _ in batches])


def test_a_field_has_the_values_that_it_has_among_others(data: Path):
    whole = read_table(data, ReadOptions())
    for field in PATHS:
        alone = read_table(data, ReadOptions(field=field))
        assert find_value(alone, field).equals(find_value(whole, field))
        assert alone.num_columns == 1


def test_columns_and_datasets_that_are_left_out_hold_no_field(tmp_path: Path):
    write_hdf5(tmp_path / "in.hdf5")
    write_parquet(tmp_path / "in.parquet")
    for name, options in (
        ("in.hdf5", reading(datasets=("text", "/meta/time"), field="id")),
        ("in.parquet", ReadOptions(columns=("text", "meta"), field="id")),
    ):
        with pytest.raises(UsageError, match=r"no column 'id'; there are: text, /?meta"):
            read_table(tmp_path / name, options)


# What is not needed is not read


def test_damage_elsewhere_in_a_parquet_file_does_not_matter(tmp_path: Path):
    path = tmp_path / "in.parquet"
    write_parquet(path)
    text = pq.ParquetFile(path).metadata.row_group(1).column(0)
    content = bytearray(path.read_bytes())
    start = text.dictionary_page_offset or text.data_page_offset
    content[start : start + 8] = b"\xff" * 8
    path.write_bytes(content)
    with pytest.raises(InputError):
        recshuf.check(path, column="text")
    assert recshuf.check(path, column="id").records == COUNT


# Fields that tell records apart


@pytest.mark.parametrize(
    ("source", "to", "field"),
    [("parquet", "jsonl", "id"), ("jsonl", "hdf5", "meta.time"), ("hdf5", "parquet", "meta.time")],
)
def test_ids_are_read_alone_on_both_sides(tmp_path: Path, source: str, to: str, field: str):
    data, output = tmp_path / f"data.{source}", tmp_path / f"out.{to}"
    WRITERS[source](data)
    recshuf.shuffle(data, output, seed=1, to=to)
    report = recshuf.check(output, against=data, to=to, id_column=field)
    assert report.is_uniform
    assert (report.tested, report.missing, report.extra, report.duplicates) == (COUNT, 0, 0, 0)
    with pytest.raises(UsageError, match="no column 'nothing'"):
        recshuf.check(output, against=data, to=to, id_column="nothing")


def test_an_output_may_have_more_fields_than_the_inputs(tmp_path: Path):
    write_parquet(tmp_path / "in.parquet")
    lines = [
        json.dumps({"new": "x", "id": id_}) for id_ in np.random.default_rng(0).permutation(COUNT).tolist()
    ]
    (tmp_path / "out.jsonl").write_text("\n".join(lines) + "\n")
    assert (
        recshuf.check(tmp_path / "out.jsonl", against=tmp_path / "in.parquet", id_column="id").tested == COUNT
    )
    lines[5] = '{"new": "y", "id": "five"}'
    (tmp_path / "out.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match="line 6, field 'id': holds a value of type string"):
        recshuf.check(tmp_path / "out.jsonl", against=tmp_path / "in.parquet", id_column="id")


# Lines


def test_fields_of_lines_are_found_wherever_they_first_come(tmp_path: Path):
    """Also if what they lie in has come long before, and whatever the types of others are."""
    lines = ['{"other": 1, "meta": {"name": "x"}}\n'] * 10_000
    lines += [json.dumps({"meta": {"time": time}, "late": 1}) + "\n" for time in range(10_000)]
    lines[15_000] = '{"meta": {"time": 0.5}}\n'
    (tmp_path / "in.jsonl").write_text("".join(lines))
    table = read_table(tmp_path / "in.jsonl", ReadOptions(field="meta.time"))
    values = find_value(table, "meta.time").to_pylist()
    assert values == [None] * 10_000 + [0.5 if time == 5000 else time for time in range(10_000)]


def test_types_of_other_fields_need_not_agree(tmp_path: Path):
    lines = [json.dumps({"id": id_, "other": id_ if id_ < 10_000 else "x"}) + "\n" for id_ in range(20_000)]
    (tmp_path / "in.jsonl").write_text("".join(lines))
    with pytest.raises(InputError, match="holds a string, but a number"):
        read_table(tmp_path / "in.jsonl", ReadOptions())
    assert read_table(tmp_path / "in.jsonl", ReadOptions(field="id")).column(0).to_pylist() == list(
        range(20_000)
    )


@pytest.mark.parametrize("late", ["7", "null", '"y"', '{"b": 1}'])
def test_types_of_others_need_not_agree_before_the_field_comes_first(tmp_path: Path, late: str):
    """Among records of all kinds, in and between blocks."""
    others = ["1", '"x"', "[1, {}]", "NaN", "9007199254740993", "0.5", "null"]
    lines = [f'{{"other": {value}, "in": {{"id": 1}}}}\n' for value in others * 2000]
    key = '"id"' if late != "null" else r'"\u0069d"'
    lines += [f'{{"other": {value}, {key}: {late}}}\n' for value in others if value != "[1, {}]"]
    (tmp_path / "in.jsonl").write_text("".join(lines))
    found = read_table(tmp_path / "in.jsonl", ReadOptions(field="id")).column("id").to_pylist()
    assert found == [None] * 14_000 + [json.loads(late)] * 6
    with pytest.raises(UsageError, match="there is no column 'x'; there are: other, in"):
        read_table(tmp_path / "in.jsonl", ReadOptions(field="x"))
