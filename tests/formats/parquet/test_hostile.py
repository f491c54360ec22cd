"""Parquet files made to do harm, or changed under the reader: a clean error that names them, in bounded memory."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import recshuf
from recshuf.errors import InputError, RecshufError
from recshuf.formats import parquet
from recshuf.formats.parquet.file import check_nesting
from recshuf.formats.parquet.thrift import ThriftReader
from recshuf.interfaces import InputFile, ReadOptions
from tests.fuzzing.server import Server
from tests.support.formats import hostile_parquet as hostile
from tests.support.formats.format_tools import read_input
from tests.support.formats.hostile_parquet import (
    chunk,
    data_page,
    encode_list,
    encode_struct,
    footer,
    group,
    leaf,
    row_group,
    wrap,
)
from tests.support.formats.hostile_tools import GB, refusal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from recshuf.interfaces import Source


@pytest.fixture(scope="module")
def child() -> Iterator[Server]:
    """Return what runs the command line in a process with 3 GB of address space and half a minute of time."""
    with Server(seconds=30, memory_bytes=3 * GB) as server:
        yield server


ROOT = [group("schema", 1), leaf("a")]


def one_column(page: bytes, *, rows: int, size: int, codec: str = "none", stored: int | None = None) -> bytes:
    held = chunk(["a"], values=rows, size=size, stored=len(page) if stored is None else stored, codec=codec)
    return wrap(page, footer(ROOT, [row_group([held], rows=rows, size=size)], rows=rows))


def plain_page(rows: int = 10, **claims: int) -> bytes:
    return data_page(b"12345678" * rows, values=rows, **{"size": 8 * rows} | claims)


CLAIMS = {
    "row groups by the billion": wrap(b"", footer(ROOT, [], rows=0, claimed_groups=(1 << 31) - 1)),
    "schema elements by the billion": wrap(b"", footer(ROOT, [], rows=0, claimed_schema=(1 << 31) - 1)),
    "children by the billion": wrap(b"", footer([group("schema", (1 << 31) - 1), leaf("a")], [], rows=0)),
    "groups in groups": wrap(
        b"", footer([group("schema", 1), *[group("g", 1)] * 50_000, leaf("a")], [], rows=0)
    ),
    "lists of lists": wrap(
        b"", footer([group("schema", 1), *[group("g", 1, repetition=2)] * 50_000, leaf("a")], [], rows=0)
    ),
    "columns by the hundred thousand": wrap(
        b"", footer([group("schema", 100_001), *[leaf("a")] * 100_001], [], rows=0)
    ),
    "a footer longer than the file": b"PAR1" + b"\0" * 20 + b"\xff\xff\xff\x7fPAR1",
    "more rows than are there": one_column(plain_page(), rows=1 << 20, size=80),
    "more rows than any file has": one_column(plain_page(), rows=1 << 60, size=80),
    "fewer than no rows": one_column(plain_page(), rows=-1, size=80),
    "a column chunk of exabytes": one_column(plain_page(), rows=10, size=1 << 60, stored=1 << 60),
    "a stored page of 2 GiB": one_column(
        plain_page(stored=(1 << 31) - 1, size=(1 << 31) - 1), rows=10, size=80
    ),
    "a page of fewer than no bytes": one_column(plain_page(stored=-1, size=-1), rows=10, size=80),
    "a compressed page of 2 GiB": one_column(
        data_page(zstandard.compress(b"x" * 80), values=10, size=(1 << 31) - 1),
        rows=10,
        size=80,
        codec="zstd",
    ),
    "a page of fewer than no values": one_column(data_page(b"x" * 80, values=-1, size=80), rows=10, size=80),
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_what_a_footer_claims_is_not_believed(tmp_path: Path, child: Server, claim: str) -> None:
    (tmp_path / "in.parquet").write_bytes(CLAIMS[claim])
    line = refusal(child.run(["in.parquet", "-o", "out/", "--memory", "300MB"], tmp_path), tmp_path)
    assert line.startswith("recshuf: error: in.parquet: ")


def test_wide_and_nested_schemas_are_no_bombs(tmp_path: Path) -> None:
    wide = pa.table({f"c{index}": pa.array([{"a": [{"b": 1.0}]}]) for index in range(600)})
    pq.write_table(wide, tmp_path / "in.parquet")
    recshuf.shuffle(tmp_path / "in.parquet", tmp_path / "out.parquet")
    assert pq.read_table(tmp_path / "out.parquet").equals(wide)
    for count, is_refused in ((98, False), (100, True)):
        chain = [
            group("schema", 1002),
            *[leaf(f"c{i}") for i in range(1001)],
            *[group("g", 1)] * count,
            leaf("a"),
        ]
        (tmp_path / "deep.parquet").write_bytes(wrap(b"", footer(chain, [], rows=0)))
        with (
            pytest.raises(InputError, match="levels deep") if is_refused else contextlib.nullcontext(),
            (tmp_path / "deep.parquet").open("rb") as stream,
        ):
            check_nesting("deep.parquet", stream, (tmp_path / "deep.parquet").stat().st_size)


HEADER: hostile.Struct = {
    1: (hostile.I32, -7),
    2: (hostile.BINARY, b"x" * 200),
    5: (hostile.STRUCT, {1: (hostile.I64, 1 << 60), 40: (hostile.LIST, (hostile.I32, [1, 2, 300]))}),
    6: (hostile.LIST, (hostile.STRUCT, [{1: (hostile.I32, 5)}] * 20)),
    8: (hostile.I32, 300),
}


def test_thrift_is_read_to_the_end_of_a_struct_and_not_beyond_that_of_the_bytes() -> None:
    content = encode_struct(HEADER)
    reader = ThriftReader(b"before" + content + b"behind", 6)
    found = reader.read_struct()
    assert found.numbers == {1: -7, 8: 300}
    assert found.structs[5].numbers == {1: 1 << 60}
    assert reader.place == 6 + len(content)
    for length in range(len(content)):
        with pytest.raises(IndexError):
            ThriftReader(content[:length]).read_struct()


@pytest.mark.parametrize("kind", [0, 13, 15])
def test_items_of_no_type_by_the_quintillion_take_no_time(kind: int) -> None:
    items = bytes([1 << 4 | hostile.LIST]) + encode_list(kind, [], claimed=1 << 60)
    with pytest.raises(IndexError):
        ThriftReader(items).read_struct()


def test_the_hand_made_file_is_valid_but_for_its_claims(tmp_path: Path) -> None:
    (tmp_path / "in.parquet").write_bytes(one_column(plain_page(), rows=10, size=80))
    recshuf.shuffle(tmp_path / "in.parquet", tmp_path / "out.parquet")
    assert (
        pq.read_table(tmp_path / "out.parquet")["a"].to_pylist()
        == [int.from_bytes(b"12345678", "little")] * 10
    )


def pages_file(path: Path, sizes: list[int], *, columns: int = 1) -> Path:
    """Write a file with a row group for each size, a page of zeros in each column; its footer claims small pages."""
    names = [f"c{index}" for index in range(columns)]
    data, groups = b"", []
    for size in sizes:
        page = data_page(zstandard.compress(bytes(size)), values=10, size=size)
        options = {"values": 10, "size": 80, "stored": len(page), "offset": 4 + len(data), "codec": "zstd"}
        groups.append(row_group([chunk([name], **options) for name in names], rows=10, size=80))
        data += page
    path.write_bytes(
        wrap(data, footer([group("schema", columns), *map(leaf, names)], groups, rows=10 * len(sizes)))
    )
    return path


@pytest.mark.parametrize(
    ("memory", "problem"), [("300MB", "its pages unpack to"), ("200GB", "asks for more memory")]
)
def test_a_page_beyond_all_memory_is_an_error(tmp_path: Path, memory: str, problem: str) -> None:
    """Six columns whose pages unpack to 1 GiB each, in a process that may have 3 GB."""
    pages_file(tmp_path / "in.parquet", [GB], columns=6)
    with Server(seconds=60, memory_bytes=3 * GB) as child:
        line = refusal(child.run(["in.parquet", "-o", "out/", "--memory", memory], tmp_path), tmp_path)
    assert f"in.parquet: row group 0: {problem}" in line


@pytest.mark.parametrize("way", ["alone", "in a later row group", "in a small file among others"])
def test_a_page_beyond_the_memory_limit_is_refused_before_it_is_unpacked(tmp_path: Path, way: str) -> None:
    """A file of some KB whose page unpacks to 2 GB, in a process that may not have so much."""
    sizes = [80, (1 << 31) - 10] if way == "in a later row group" else [(1 << 31) - 10]
    pages_file(tmp_path / "in.parquet", sizes)
    for name in ("a.parquet", "z.parquet"):
        pages_file(tmp_path / name, [80, 80])
    inputs = ["a.parquet", "in.parquet", "z.parquet"] if way.startswith("in a small") else ["in.parquet"]
    with Server(seconds=60, memory_bytes=1 * GB) as child:
        line = refusal(child.run([*inputs, "-o", "out/", "--memory", "300MB"], tmp_path), tmp_path)
    assert f"in.parquet: row group {len(sizes) - 1}: its pages unpack to 4.29 GB of memory" in line
    assert "raise --memory" in line


def test_large_pages_are_planned_for(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    table = pa.table({"a": range(4 << 20)})
    pq.write_table(table, path, use_dictionary=False, data_page_size=GB, row_group_size=4 << 20)
    with pytest.raises(RecshufError, match="raise memory"):
        recshuf.plan(path, tmp_path / "out.parquet", memory="65MB")
    small, large = (recshuf.plan(path, tmp_path / "out.parquet", memory=size) for size in ("200MB", "2GB"))
    assert small.peak_memory_bytes > 2 * 8 * table.num_rows
    assert large.record_count == table.num_rows


def test_invalid_utf8_in_names_is_an_error_and_in_values_passes(tmp_path: Path) -> None:
    element = hostile.leaf("a") | {4: (hostile.BINARY, b"\xff\xfe")}
    (tmp_path / "names.parquet").write_bytes(wrap(b"", footer([group("schema", 1), element], [], rows=0)))
    with pytest.raises(InputError, match=r"names.parquet: .*not valid UTF-8"):
        recshuf.shuffle(tmp_path / "names.parquet", f"{tmp_path}/out/")
    raw = pa.array([b"\xff\xfe", b"ok"])
    pq.write_table(pa.table({"a": raw.view(pa.string())}), tmp_path / "values.parquet")
    recshuf.shuffle(tmp_path / "values.parquet", tmp_path / "out.parquet")
    column = pq.read_table(tmp_path / "out.parquet")["a"].combine_chunks()
    assert column.type == pa.string()
    assert sorted(column.view(pa.binary()).to_pylist()) == [b"ok", b"\xff\xfe"]


# Files that change under the reader


def many_groups(path: Path) -> Path:
    pq.write_table(
        pa.table({"a": range(50_000), "b": ["x"] * 50_000}), path, row_group_size=5000, use_dictionary=False
    )
    return path


def open_parquet(path: Path) -> Source:
    return parquet.FORMAT.open_source([InputFile(path.name, path)], ReadOptions())


@pytest.mark.parametrize("change", ["shrinks", "is emptied", "vanishes"])
@pytest.mark.parametrize("moment", ["before", "between fragments", "between batches"])
def test_a_parquet_file_that_goes_away_is_named(tmp_path: Path, change: str, moment: str) -> None:
    """Shrunk files are read through the system, so that what is gone is an error and no signal."""
    path = many_groups(tmp_path / "in.parquet")
    source = open_parquet(path)

    def alter() -> None:
        if change == "vanishes":
            path.unlink()
        else:
            os.truncate(path, path.stat().st_size // 3 if change == "shrinks" else 0)

    def read() -> int:
        if moment == "before":
            alter()
        fragments = source.fragments(0, 4096, GB)
        first = next(fragments).batches()
        rows = next(first).num_rows
        if moment != "before":
            rows += 0 if moment == "between batches" else sum(batch.num_rows for batch in first)
            alter()
        rows += sum(batch.num_rows for batch in first)
        return rows + sum(batch.num_rows for fragment in fragments for batch in fragment.batches())

    with pytest.raises(InputError, match=r"^in\.parquet: "):
        read()


def test_a_parquet_file_that_is_written_anew_between_the_looks_is_an_error(tmp_path: Path) -> None:
    path = many_groups(tmp_path / "in.parquet")
    source = open_parquet(path)
    pq.write_table(pa.table({"a": range(9)}), path)
    with pytest.raises(InputError, match=r"^in\.parquet: was changed while it was being read"):
        read_input(source, 0, 1 << 20)
