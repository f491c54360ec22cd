"""Page headers that are read in step find what each does that is read alone."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recshuf.errors import InputError
from recshuf.formats.parquet.metadata import page_checks, page_headers
from recshuf.formats.parquet.metadata.file import OpenFile
from recshuf.formats.parquet.metadata.page_checks import check_pages
from recshuf.formats.parquet.metadata.page_headers import read_headers
from tests.support.hostile_parquet import I32, LIST, PLAIN, RLE, STRUCT, data_page, encode_struct

if TYPE_CHECKING:
    from pathlib import Path

GROUPS = 20
GROUP_ROWS = 7
LEAVES = range(5)


def store(path: Path, **options: Any) -> Path:
    """Store row groups of five columns, some of which are null throughout one of them."""
    rows = range(GROUPS * GROUP_ROWS)
    table = pa.table(
        {
            "number": pa.array(rows, pa.int64()),
            "text": pa.array([f"{row}" * (row % 60) for row in rows]),
            "label": pa.array([str(row % 3) for row in rows]),
            "lists": pa.array([[row] * (row % 4) for row in rows]),
            "gaps": pa.array([None if row // GROUP_ROWS % 3 else row / 7 for row in rows]),
        }
    )
    pq.write_table(table, path, row_group_size=GROUP_ROWS, **options)
    return path


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read in step also where it would not pay."""
    monkeypatch.setattr(page_headers, "MANY", 9)


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Places of the column chunks that are looked at by themselves, as it happens."""
    found: list[int] = []

    def find_problem(headers: Any, chunk: pq.ColumnChunkMetaData, leaf: int) -> str | None:
        found.append(chunk.data_page_offset)
        return given(headers, chunk, leaf)

    given = page_checks._find_problem
    monkeypatch.setattr(page_checks, "_find_problem", find_problem)
    return found


FORMS = [
    {"compression": "snappy"},
    {"compression": "none", "data_page_version": "2.0"},
    {"compression": "zstd", "write_statistics": False, "use_dictionary": False},
    {"write_page_checksum": True, "store_decimal_as_integer": True},
    {"data_page_size": 1, "write_batch_size": 2},
    {"data_page_size": 1, "write_batch_size": 3, "data_page_version": "2.0", "use_dictionary": False},
]


@pytest.mark.parametrize("options", FORMS)
def test_pages_of_sound_files_need_no_look_of_their_own(
    tmp_path: Path, looked_at: list[int], options: dict[str, Any]
) -> None:
    path = store(tmp_path / "in.parquet", **options)
    metadata = pq.read_metadata(path)
    with OpenFile("in.parquet", path) as file:
        claims = check_pages(file, range(GROUPS), LEAVES)
    assert claims == [
        [metadata.row_group(group).column(leaf).num_values for leaf in LEAVES] for group in range(GROUPS)
    ]
    many_shapes = "data_page_size" in options  # of the last pages there are few of a kind
    assert len(looked_at) <= (GROUPS * len(LEAVES) // 2 if many_shapes else 0)


@pytest.mark.parametrize("groups", [range(GROUPS), range(3, 17, 2)])
@pytest.mark.parametrize("leaves", [LEAVES, [1, 3], []])
def test_claims_are_those_of_the_footer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: range, leaves: list[int]
) -> None:
    monkeypatch.setattr(page_checks, "_GROUPS_AT_ONCE", 13)
    path = store(tmp_path / "in.parquet")
    rows = [pq.read_metadata(path).row_group(group) for group in groups]
    with OpenFile("in.parquet", path) as file:
        claims = check_pages(file, groups, leaves)
    assert claims == [[row.column(leaf).num_values for leaf in leaves] for row in rows]


def find_problem(path: Path) -> str | None:
    """Return the first problem of column chunks that are each given by themselves, and so never read in step."""
    for group in range(GROUPS):
        for leaf in LEAVES:
            with OpenFile("in.parquet", path) as file:
                try:
                    check_pages(file, [group], [leaf])
                except InputError as error:
                    return str(error)
    return None


def check_equal(path: Path) -> str | None:
    """Make sure that all column chunks together have the problem that they have by themselves, and return it."""
    problem = find_problem(path)
    with OpenFile("in.parquet", path) as file:
        if problem is None:
            check_pages(file, range(GROUPS), LEAVES)
        else:
            with pytest.raises(InputError) as error:
                check_pages(file, range(GROUPS), LEAVES)
            assert str(error.value) == problem
    return problem


@pytest.mark.parametrize("options", FORMS)
def test_of_damaged_headers_the_same_ones_are_found(tmp_path: Path, options: dict[str, Any]) -> None:
    path = store(tmp_path / "in.parquet", **options)
    content = path.read_bytes()
    metadata = pq.read_metadata(path)
    chunks = [metadata.row_group(group).column(leaf) for group in range(GROUPS) for leaf in LEAVES]
    rng = random.Random(7)
    problems = []
    for _ in range(100):
        changed = bytearray(content)
        chunk = rng.choice(chunks)
        place = chunk.data_page_offset + rng.randrange(min(24, chunk.total_compressed_size))
        changed[place] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        problems.append(check_equal(path))
    assert sum(problem is not None for problem in problems) > 20


class _Chunk:
    """A column chunk as pyarrow describes it."""

    dictionary_page_offset = None

    def __init__(self, place: int, size: int, values: int, encodings: tuple[str, ...]) -> None:
        self.data_page_offset = place
        self.total_compressed_size = size
        self.num_values = values
        self.encodings = encodings


class _Bytes:
    """A file as far as its bytes go."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def read_at(self, place: int, most_bytes: int) -> bytes:
        assert place >= 0
        assert most_bytes > 0
        return self._content[place : place + most_bytes]


def look(
    pages: list[bytes], values: int = 3, encodings: tuple[str, ...] = ("PLAIN",), size: int = 0
) -> list[bool]:
    """Return which of column chunks, each of one of these pages, are sound."""
    places = [sum(map(len, pages[:index])) for index in range(len(pages))]
    chunks = [
        _Chunk(place, len(page) + size, values, encodings) for place, page in zip(places, pages, strict=True)
    ]
    found = read_headers(_Bytes(b"".join(pages)), chunks, 1)
    assert not found.have_levels.any()
    return [bool(one) for one in found.are_sound]


def page(values: int = 3, **claims: int) -> bytes:
    return data_page(b"12345678" * 3, values=values, **{"size": 24} | claims)


def test_only_the_odd_one_of_many_is_doubtful() -> None:
    for odd in (page(4), page(-3), page(1 << 50), page(stored=25), page(encoding=RLE)):
        assert look([*[page()] * 9, odd]) == [True] * 9 + [False]
    for broken in (page(stored=-1), page()[:9]):
        assert not look([*[page()] * 9, broken])[-1]
    assert look([page(encoding=3)] * 9, encodings=("PLAIN", "RLE")) == [True] * 9
    assert look([page(encoding=3)] * 9, encodings=()) == [True] * 9, "the footer lists none"
    assert look([page(encoding=64)] * 9, encodings=("PLAIN",)) == [False] * 9


def test_numbers_of_pages_never_wrap_around() -> None:
    many = page(1 << 39)
    parts = data_page(b"", values=1 << 54, size=0) * (1 << 10)
    assert look([many] * 9, values=1 << 39) == [True] * 9
    assert look([parts + page()] * 9) == [False] * 9


def test_a_page_never_ends_before_its_header() -> None:
    head_bytes = len(page(stored=-30)) - 24
    assert look([page(stored=-head_bytes)] * 9) == [False] * 9


def test_a_header_with_two_of_a_kind_is_left() -> None:
    fields = {1: (I32, 3), 2: (I32, PLAIN)}
    once = encode_struct({1: (I32, 0), 3: (I32, 0), 5: (STRUCT, fields)})
    twice = once[:-1] + bytes([STRUCT, 5 << 1]) + encode_struct({1: (I32, 3)}) + b"\0"
    assert look([once] * 9) == [True] * 9
    assert look([twice] * 9) == [False] * 9


def test_headers_of_other_shapes_are_read_in_step_with_each_other_or_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fields = {1: (I32, 3), 2: (I32, PLAIN), 3: (I32, RLE), 4: (I32, RLE)}
    checked = encode_struct({1: (I32, 0), 2: (I32, 24), 3: (I32, 24), 4: (I32, 77), 5: (STRUCT, fields)})
    long_step = encode_struct({1: (I32, 0), 3: (I32, 24), 5: (STRUCT, fields), 30: (I32, 9)})
    listed = encode_struct({1: (I32, 0), 3: (I32, 24), 5: (STRUCT, fields), 9: (LIST, (I32, [1]))})
    body = b"x" * 24
    assert look([page(), checked + body, long_step + body] * 9) == [True] * 27
    assert look([page()] * 9 + [listed + body] * 9) == [True] * 9 + [False] * 9
    assert look([page()] * 9 + [checked + body] * 3) == [True] * 9 + [False] * 3, "too few to pay"
    monkeypatch.setattr(page_headers, "_MOST_SHAPES", 2)
    assert look([page(), checked + body, long_step + body] * 9) == [True, True, False] * 9


@pytest.mark.parametrize("columns", [1, 2])
def test_chunks_that_lie_far_apart_or_claim_to_are_left(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    size, count = len(page()), 4 * columns * page_headers.MANY
    half = count // 2
    content = _Bytes(page(3) * half + page(5) * half)
    usual = [_Chunk(index * size, size, 3 if index < half else 5, ("PLAIN",)) for index in range(count)]
    assert read_headers(content, usual, columns).are_sound.all()
    assert read_headers(content, [*usual[half:], *usual[:half]], columns).are_sound.all(), "later ones first"
    claims = [(1 << 62, size, 3), (-9, size, 3), (size, -(1 << 63), 3), (size, (1 << 63) - 1, 0), (0, 0, 3)]
    for place, total, values in claims:
        odd = _Chunk(place, total, values, ("PLAIN",))
        for index in (0, half, count - 1):
            found = read_headers(content, [*usual[:index], odd, *usual[index + 1 :]], columns)
            assert not found.are_sound[index]
    nothing = [_Chunk(0, 0, 3, ("PLAIN",))] * count
    assert not read_headers(content, nothing, columns).are_sound.any()
    monkeypatch.setattr(page_headers, "_MOST_BYTES", 2 * page_headers.MANY * size)
    assert read_headers(content, usual, columns).are_sound.all(), "part by part"
    assert not read_headers(content, usual, count).are_sound.any(), "a row group of many columns"
    monkeypatch.setattr(page_headers, "_MOST_BYTES", size - 1)
    assert not read_headers(content, usual, columns).are_sound.any()


def test_levels_are_sound_only_where_a_column_may_have_them(tmp_path: Path, looked_at: list[int]) -> None:
    rows = range(GROUPS * GROUP_ROWS)
    fields = [pa.field(name, pa.int64(), nullable=name == "b") for name in "abcde"]
    table = pa.table([pa.array(rows, pa.int64())] * 5, pa.schema(fields))
    path = tmp_path / "in.parquet"
    pq.write_table(table, path, row_group_size=GROUP_ROWS, data_page_version="2.0", compression="none")
    with OpenFile("in.parquet", path) as file:
        check_pages(file, range(GROUPS), LEAVES)
        assert not looked_at
        groups = [file.metadata.row_group(group) for group in range(GROUPS)]
        chunks = [group.column(leaf) for group in groups for leaf in LEAVES]
        found = read_headers(file, chunks, len(LEAVES))
    assert found.have_levels.reshape(GROUPS, 5).tolist() == [[False, True, False, False, False]] * GROUPS
    content = path.read_bytes()
    problems = []
    for place in range(chunks[50].data_page_offset, chunks[50].data_page_offset + 24):
        changed = bytearray(content)
        changed[place] ^= 2
        path.write_bytes(changed)
        problems.append(check_equal(path))
    assert any("claims levels" in str(problem) for problem in problems)
