"""Parquet files made to do harm: a clean error that names them, in bounded memory and time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
import zstandard

from tests.support.formats.hostile_parquet import (
    BINARY,
    LIST,
    Struct,
    chunk,
    data_page,
    encode_list,
    footer,
    group,
    leaf,
    row_group,
    wrap,
)
from tests.support.formats.hostile_tools import GB, refusal
from tests.support.formats.parquet_tools import load, open_source, read_alone, shuffled, store
from tests.support.processes.command_server import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def child() -> Iterator[Server]:
    """Return what runs the command line in a process with 3 GB of address space and half a minute of time."""
    with Server(seconds=30, memory_bytes=3 * GB) as server:
        yield server


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


@pytest.mark.parametrize(
    ("memory", "problem"),
    [
        ("300MB", "its pages unpack to"),
        pytest.param("200GB", "reading it asks for more memory than", marks=pytest.mark.slow),
    ],
)
def test_a_page_beyond_all_memory_is_an_error(
    tmp_path: Path, child: Server, memory: str, problem: str
) -> None:
    """Six columns whose pages unpack to 1 GiB each, in a process that may have 3 GB."""
    pages_file(tmp_path / "in.parquet", [GB], columns=6)
    line = refusal(child.run(["in.parquet", "-o", "out/", "--memory", memory], tmp_path), tmp_path)
    assert f"in.parquet: row group 0: {problem}" in line


@pytest.mark.parametrize(
    "way",
    [
        pytest.param("alone", marks=pytest.mark.slow),
        "in a later row group",
        pytest.param("in a small file among others", marks=pytest.mark.slow),
    ],
)
def test_a_page_beyond_the_memory_limit_is_refused_before_it_is_unpacked(
    tmp_path: Path, child: Server, way: str
) -> None:
    """A file of some KB whose page unpacks to 2 GB."""
    sizes = [80, (1 << 31) - 10] if way == "in a later row group" else [(1 << 31) - 10]
    pages_file(tmp_path / "in.parquet", sizes)
    for name in ("a.parquet", "z.parquet"):
        pages_file(tmp_path / name, [80, 80])
    inputs = ["a.parquet", "in.parquet", "z.parquet"] if way.startswith("in a small") else ["in.parquet"]
    line = refusal(child.run([*inputs, "-o", "out/", "--memory", "300MB"], tmp_path), tmp_path)
    assert f"in.parquet: row group {len(sizes) - 1}: its pages unpack to 4.29 GB of memory" in line
    assert "raise --memory" in line
