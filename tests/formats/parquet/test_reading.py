"""Fragments follow blocks and row groups; records and files that are too long, damaged, made to do harm or no Parquet are refused by name."""

import gc
import os
import re
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import recshuf
from recshuf.errors import InputError, MemoryLimitError
from recshuf.formats.parquet import FORMAT
from tests.support.effort import mostly_slow
from tests.support.formats.hostile_parquet import (
    BINARY,
    I32,
    LIST,
    Struct,
    chunk,
    data_page,
    edit_chunks,
    edit_footer,
    encode_list,
    footer,
    group,
    leaf,
    row_group,
    wrap,
)
from tests.support.formats.parquet_tools import (
    BLOCK,
    LONGEST,
    chunk_of,
    load,
    open_source,
    read_all,
    read_alone,
    shuffled,
    store,
    watched_memory,
    write_all,
)
from tests.support.processes.command_line import GB, refusal
from tests.support.processes.command_server import Server


def test_batches_of_expanding_dictionaries_stay_small(tmp_path: Path) -> None:
    words = pa.array(["x" * 50_000, "y" * 10])
    indices = pa.array([0, 1, 1, 0] * 500, pa.int32())
    path = store(tmp_path / "in.parquet", {"w": words.take(indices)}, compression="zstd")
    assert path.stat().st_size < 20_000
    source = open_source(path)
    with watched_memory() as memory:
        sizes = [b.nbytes for f in source.fragments(0, BLOCK, LONGEST) for b in f.batches()]
    assert max(sizes) <= BLOCK
    assert memory.max_memory() <= source.reading_bytes(BLOCK)
    assert source.inputs[0].native_bytes == pytest.approx(sum(sizes), rel=0.1)
    assert read_all(source)["w"].to_pylist() == words.take(indices).to_pylist()


def test_row_groups_without_rows_are_passed_over(tmp_path: Path) -> None:
    """Codecs and sizes are those of the first one that has any; rows are counted on."""
    table = pa.table({"n": range(9), "t": ["x" * 4000] * 9})
    path = tmp_path / "in.parquet"
    with pq.ParquetWriter(path, table.schema, compression="gzip") as writer:
        for start, stop in ((0, 0), (0, 4), (4, 4), (4, 9), (9, 9)):
            writer.write_table(table.slice(start, stop - start))
    source = open_source(path)
    assert read_all(source).equals(table)
    assert source.inputs[0].record_count == 9
    assert chunk_of(write_all(source, tmp_path / "out.parquet")).compression == "GZIP"
    with pytest.raises(InputError, match="row group 1, row 0"):
        read_all(source, longest=1000)


@pytest.mark.parametrize(("row", "group_rows", "count"), [(25, 10, 4000), (3, 2, 5), (0, 9, 9)])
def test_a_record_that_is_too_long_is_named_with_its_row(
    tmp_path: Path, row: int, group_rows: int, count: int
) -> None:
    text = ["x" * (5000 if index == row else 10) for index in range(count)]
    source = open_source(store(tmp_path / "in.parquet", {"t": text}, row_group_size=group_rows))
    with pytest.raises(
        InputError, match=rf"in\.parquet: row group {row // group_rows}, row {row}: .* 1,000 bytes"
    ) as caught:
        read_all(source, longest=1000)
    size = int(re.findall(r"a record of ([\d,]+) bytes", str(caught.value))[0].replace(",", ""))
    assert read_all(source, longest=size)["t"].to_pylist() == text
    with pytest.raises(InputError, match=f"row {row}: .* {size - 1:,} bytes"):
        read_all(source, longest=size - 1)


def test_fixed_and_plain_columns_are_counted_exactly(tmp_path: Path) -> None:
    columns = {"a": range(5000), "t": [str(number) * 3 for number in range(5000)]}
    source = open_source(store(tmp_path / "in.parquet", columns, use_dictionary=False))
    assert source.inputs[0].native_bytes == pytest.approx(read_all(source).nbytes, rel=0.03)


def test_files_that_are_not_parquet_say_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "bad.parquet"
    for content, problem in (
        (b"", "empty"),
        (b"hello, world, this is text", "not a Parquet file"),
        (b"PAR1 and then nothing more", "cut off.*; fetch or write the file again$"),
        (b"PAR1 some bytes and then \x04\x00\x00\x00PARE", "encrypted"),
        (
            b"PAR1garbage!\x08\x00\x00\x00PAR1",
            "cannot be read as Parquet: .*; fetch or write the file again$",
        ),
        (b"PAR1\xff\xff\xff\x7fPAR1", "cannot be read as Parquet: .*; fetch or write the file again$"),
    ):
        path.write_bytes(content)
        with pytest.raises(InputError, match=f"bad.parquet: .*{problem}"):
            open_source(path)
    heads = [b"PAR1", b"PARE\x10\x20\0\0", b"PARENT, a word", b"PAR", b""]
    assert [FORMAT.recognises(head) for head in heads] == [True, True, False, False, False]
    os.mkfifo(tmp_path / "pipe")
    for odd, problem in (
        ("none", "No such file"),
        (".", "directory"),
        ("pipe", "pipe: is not a regular file"),
    ):
        with pytest.raises(InputError, match=problem):
            open_source(tmp_path / odd)


@pytest.mark.parametrize("joined", [False, True])
def test_a_file_that_changes_between_the_passes_is_an_error(tmp_path: Path, joined: bool) -> None:
    for other in ({"a": [1, 2, 3]}, {"b": [1, 2]}, {"a": ["1", "2"]}, {"a": [1, 2], "b": [3, 4]}):
        path = store(tmp_path / "in.parquet", {"a": [1, 2]})
        source = open_source(path, path) if joined else open_source(path)
        store(path, other)
        with pytest.raises(InputError, match=r"^in\.parquet: was changed while it was being read"):
            read_all(source)


@pytest.mark.parametrize("is_begun", [False, True])
@pytest.mark.parametrize("kept", [0.3, 0, None])
def test_a_file_that_goes_away_is_named(tmp_path: Path, kept: float | None, is_begun: bool) -> None:
    """Shrunk files are read through the system, so that what is gone is an error and no signal."""
    columns = {"a": range(50_000), "b": ["x"] * 50_000}
    path = store(tmp_path / "in.parquet", columns, row_group_size=5000, use_dictionary=False)
    fragments = [fragment.batches() for fragment in open_source(path).fragments(0, 4096, LONGEST)]
    if is_begun:
        next(fragments[0])
    path.unlink() if kept is None else os.truncate(path, int(path.stat().st_size * kept))
    with pytest.raises(InputError, match=r"^in\.parquet: "):
        deque(chain(*fragments), maxlen=0)


def test_a_summary_of_other_files_is_refused(tmp_path: Path) -> None:
    collected: list[pq.FileMetaData] = []
    pq.write_table(pa.table({"a": [1]}), tmp_path / "part.parquet", metadata_collector=collected)
    collected[0].set_file_path("part.parquet")
    collected[0].write_metadata_file(tmp_path / "_metadata")
    with pytest.raises(InputError, match="holds only the metadata"):
        open_source(tmp_path / "_metadata")
    pq.write_metadata(pa.schema([("a", pa.int64())]), tmp_path / "_common_metadata")
    assert open_source(tmp_path / "_common_metadata").inputs[0].record_count == 0


# Memory


def test_memory_grows_with_the_columns(tmp_path: Path) -> None:
    """Each further column adds the same to the plan, at least what was measured."""
    needs = []
    for count in (100, 200, 400):
        store(tmp_path / f"{count}.parquet", {f"c{column:03}": [1.5, 2.5] for column in range(count)})
        needs.append(open_source(tmp_path / f"{count}.parquet").reading_bytes(BLOCK))
    first, second = needs[1] - needs[0], needs[2] - needs[1]
    assert first >= 100 * 20_000
    assert second == pytest.approx(2 * first, rel=0.02)


def test_more_columns_than_memory_allows_are_refused_before_any_is_read(tmp_path: Path) -> None:
    path = store(tmp_path / "in.parquet", {f"c{column}": [1] for column in range(3_000)})
    content = bytearray(path.read_bytes())
    pages = slice(4, len(content) - 8 - int.from_bytes(content[-8:-4], "little"))
    content[pages] = bytes(pages.stop - pages.start)  # what was read would be damaged
    path.write_bytes(content)
    for call in (recshuf.shuffle, recshuf.verify):
        with pytest.raises(
            MemoryLimitError, match=r"in\.parquet: .* 3,000 columns needs at least .*; raise memory"
        ):
            call(path, tmp_path / "out.parquet", memory="64MB")
    assert [path.name for path in tmp_path.iterdir()] == ["in.parquet"]


def test_footers_that_were_read_do_not_add_up(tmp_path: Path) -> None:
    columns = {"a": [f"{row:04000}" for row in range(80)], "b": np.arange(80).astype("datetime64[us]")}
    path = store(tmp_path / "in.parquet", columns, row_group_size=1)
    footer_bytes = pq.read_metadata(path).serialized_size
    gc.collect()
    gc.disable()
    try:
        for _ in range(3 + (4 << 20) // footer_bytes):
            read_alone(open_source(path))
        alive = sum(type(one) is pq.FileMetaData for one in gc.get_objects())
    finally:
        gc.enable()
    assert alive * footer_bytes < 4 << 20


# What files claim: a clean error that names them, in bounded memory and time


MB = 1 << 20
ROOT = [group("schema", 1), leaf("a")]
COLUMNS = [leaf(f"c{index}") for index in range(1001)]


def one_column(page: bytes, *, rows: int, size: int, codec: str = "none", stored: int | None = None) -> bytes:
    held = chunk(["a"], values=rows, size=size, stored=len(page) if stored is None else stored, codec=codec)
    return wrap(page, footer(ROOT, [row_group([held], rows=rows, size=size)], rows=rows))


def no_rows(*elements: Struct, **claims: int) -> bytes:
    return wrap(b"", footer(list(elements), [], rows=0, **claims))


def plain_page(rows: int = 10, **claims: int) -> bytes:
    return data_page(b"12345678" * rows, values=rows, **{"size": 8 * rows} | claims)


def with_unknown(value: bytes) -> bytes:
    """Return a footer that begins with a list that no reader knows."""
    return bytes([1 << 4 | LIST]) + value + footer(ROOT, [], rows=0)


CLAIMS: dict[str, bytes | Callable[[], bytes]] = {
    "row groups by the billion": no_rows(*ROOT, claimed_groups=(1 << 31) - 1),
    "schema elements by the billion": no_rows(*ROOT, claimed_schema=(1 << 31) - 1),
    "children by the billion": no_rows(group("schema", (1 << 31) - 1), leaf("a")),
    "groups in groups": partial(no_rows, group("schema", 1), *[group("g", 1)] * 50_000, leaf("a")),
    "lists of lists": partial(
        no_rows, group("schema", 1), *[group("g", 1, repetition=2)] * 50_000, leaf("a")
    ),
    "columns by the hundred thousand": partial(no_rows, group("schema", 100_001), *[leaf("a")] * 100_001),
    "more than 100 levels": no_rows(group("schema", 1002), *COLUMNS, *[group("g", 1)] * 100, leaf("a")),
    "a name that is not UTF-8": no_rows(group("schema", 1), leaf("a") | {4: (BINARY, b"\xff\xfe")}),
    "items of no type by the quintillion": wrap(b"", with_unknown(encode_list(0, [], claimed=1 << 60))),
    "lists of no type by the quintillion": wrap(b"", with_unknown(encode_list(13, [], claimed=1 << 60))),
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
    content = CLAIMS[claim]
    (tmp_path / "in.parquet").write_bytes(content() if callable(content) else content)
    line = refusal(child.run(["in.parquet", "-o", "out/", "--memory", "300MB"], tmp_path), tmp_path)
    assert line.startswith("recshuf: error: in.parquet: ")


def test_a_column_chunk_of_another_type_than_the_schema_is_refused(tmp_path: Path, child: Server) -> None:
    store(tmp_path / "in.parquet", {"a": pa.array([1.0, 2.0])})
    edit_chunks(tmp_path / "in.parquet", lambda column: column.update({1: (I32, 21)}))
    line = refusal(child.run(["in.parquet", "-o", "out/"], tmp_path), tmp_path)
    assert line.startswith("recshuf: error: in.parquet: row group 0: cannot be read as Parquet: ")


def give_length(metadata: Struct) -> None:
    metadata[2][1][1][1][2] = (I32, 60)


def give_type(metadata: Struct) -> None:
    for column in metadata[4][1][1][0][1][1][1]:
        column[3][1][1] = (I32, 1)


@pytest.mark.parametrize("change", [give_length, give_type])
def test_statistics_that_do_not_fit_their_type_do_not_end_the_process(
    tmp_path: Path, child: Server, change: Callable[[Struct], None]
) -> None:
    """What files with other types make recshuf count is nulls, and pyarrow aborts on a least value that is too short."""
    columns = {"a": pa.array([b"four"], pa.binary(4)), "b": pa.array([1.5])}
    for name in ("first.parquet", "in.parquet"):
        store(tmp_path / name, columns)
    edit_footer(tmp_path / "in.parquet", change)
    store(tmp_path / "last.parquet", {**columns, "b": ["text"]})
    names = ["first.parquet", "in.parquet", "last.parquet"]
    line = refusal(child.run([*names, "-o", "out/"], tmp_path), tmp_path)
    assert re.match(r"recshuf: error: (in|last)\.parquet: ", line)


def test_what_a_parquet_file_made_by_hand_holds_is_read(tmp_path: Path) -> None:
    """It is valid but for its claims; invalid UTF-8 in values passes, and 99 levels are read."""
    path = tmp_path / "in.parquet"
    path.write_bytes(one_column(plain_page(), rows=10, size=80))
    assert read_alone(open_source(path))["a"].to_pylist() == [int.from_bytes(b"12345678", "little")] * 10
    path.write_bytes(no_rows(group("schema", 1002), *COLUMNS, *[group("g", 1)] * 98, leaf("a")))
    assert open_source(path).inputs[0].record_count == 0
    store(path, {"a": pa.array([b"\xff\xfe", b"ok"]).view(pa.string())})
    column = load(shuffled(path))["a"].combine_chunks()
    assert sorted(column.view(pa.binary()).to_pylist()) == [b"ok", b"\xff\xfe"]


def pages_file(path: Path, sizes: list[int], *, columns: int = 1) -> Path:
    """Write a file with a row group for each size, a page of zeros in each column; its footer claims small pages."""
    names = [f"c{index}" for index in range(columns)]
    data, groups = b"", []
    for size in sizes:
        frames = zstandard.compress(bytes(MB)) * (size // MB) + zstandard.compress(bytes(size % MB))
        page = data_page(frames, values=10, size=size)
        options = {"values": 10, "size": 80, "stored": len(page), "offset": 4 + len(data), "codec": "zstd"}
        groups.append(row_group([chunk([name], **options) for name in names], rows=10, size=80))
        data += page
    path.write_bytes(
        wrap(data, footer([group("schema", columns), *map(leaf, names)], groups, rows=10 * len(sizes)))
    )
    return path


BEYOND = "its pages unpack to 4.29 GB of memory, more than"
HUGE: dict[str, tuple[list[int], int, str, str]] = {
    "six columns": ([GB], 6, "300MB", "its pages unpack to"),
    "more than there is": ([GB], 6, "200GB", "reading it asks for more memory than"),
    "alone": ([(1 << 31) - 10], 1, "300MB", BEYOND),
    "in a later row group": ([80, (1 << 31) - 10], 1, "300MB", BEYOND),
    "in a small file among others": ([(1 << 31) - 10], 1, "300MB", BEYOND),
}


@pytest.mark.parametrize("way", mostly_slow(HUGE, "six columns", "in a later row group"))
def test_pages_beyond_memory_are_refused_before_they_are_unpacked(
    tmp_path: Path, child: Server, way: str
) -> None:
    """Files of some KB, in a process that may have 3 GB."""
    sizes, columns, memory, problem = HUGE[way]
    pages_file(tmp_path / "in.parquet", sizes, columns=columns)
    for name in ("a.parquet", "z.parquet"):
        pages_file(tmp_path / name, [80, 80])
    inputs = ["a.parquet", "in.parquet", "z.parquet"] if way.startswith("in a small") else ["in.parquet"]
    line = refusal(child.run([*inputs, "-o", "out/", "--memory", memory], tmp_path), tmp_path)
    assert f"in.parquet: row group {len(sizes) - 1}: {problem}" in line
    assert ("raise --memory" in line) == (memory == "300MB")
