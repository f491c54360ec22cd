"""What begins and ends inputs of lines and is no record: byte order marks, and blank lines."""

import gzip
import io
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import recshuf
from recshuf.formats.jsonl import FORMAT
from recshuf.formats.lines.cutting import BLANK_END_BYTES
from recshuf.interfaces import ReadOptions
from tests.support.effort import examples, some
from tests.support.formats.format_tools import read_input
from tests.support.formats.line_tools import give, records_in, same_folder, split_records
from tests.support.small_runs import list_shards

MARK = b"\xef\xbb\xbf"
BLANKS = b" \t\r\n"


def find_records(data: bytes) -> list[bytes]:
    """Return the lines of JSONL that are records: the oracle."""
    records, begin = [], len(MARK) if data.startswith(MARK) else 0
    for record in split_records(data[begin:]):
        if data[begin:].strip(BLANKS) or begin < len(data) - BLANK_END_BYTES:
            records.append(record)
        begin += len(record)
    return records


@settings(same_folder, max_examples=examples(80))
@example(parts=[b"\n" * BLANK_END_BYTES, b" "], mark=b"", block_bytes=1 << 20)
@given(
    parts=st.lists(
        st.sampled_from(
            [b"{}\n", b'{"a": 1}\r\n', b"\n", b"  \n", b"\t\r\n", b" ", b"{} ", b"\n" * BLANK_END_BYTES]
        ),
        max_size=12,
    ),
    mark=st.sampled_from([b"", MARK]),
    block_bytes=st.sampled_from([1, 7, 64, 1 << 20]),
)
def test_every_way_to_read_finds_the_same_records(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], mark: bytes, block_bytes: int
) -> None:
    folder, data = tmp_path_factory.mktemp("in"), mark + b"".join(parts)
    plain = give(folder / "a.jsonl", data)
    packed = give(folder / "a.jsonl.gz", gzip.compress(data))
    source = FORMAT.open_source([plain, packed, plain], ReadOptions())
    records = find_records(data)
    for index in range(2):
        assert records_in(read_input(source, index, block_bytes)) == records
    joined = source.read_joined([0, 2], 1 << 20, 1 << 20)
    assert joined is None or (records_in([joined.batch]), joined.rows) == (records * 2, [len(records)] * 2)
    if len(data) < 1 << 16:
        assert [one.record_count for one in source.inputs] == [len(records)] * 3


def read_by_scatter(inputs: list[Path], folder: Path, **options: object) -> None:
    recshuf.scatter(inputs, folder / "store", seed=4, format=options.pop("format", None))
    recshuf.gather(folder / "store", folder / "out/", **options)


def read_at_once(inputs: list[Path], folder: Path, **options: object) -> None:
    recshuf.shuffle(inputs, folder / "out/", seed=4, verify=True, **options)


@pytest.mark.parametrize(
    ("marked", "suffix", "run"),
    [
        *some(
            product(
                [[0], [1], [2], [0, 1, 2]],
                [".jsonl", ".txt", ".csv", ".jsonl.gz"],
                [read_at_once, read_by_scatter],
            ),
            3,
        )
    ],
)
def test_a_byte_order_mark_stays_on_top_of_every_shard(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    marked: list[int],
    suffix: str,
    run: Callable[..., None],
) -> None:
    pack = gzip.compress if suffix.endswith(".gz") else bytes
    header = b"id\n" if suffix == ".csv" else b""
    inputs = [tmp_path / f"{index}{suffix}" for index in range(3)]
    for index, path in enumerate(inputs):
        lines = b"".join(b'{"id": %d}\n' % row for row in range(10 * index, 10 * index + 10))
        path.write_bytes(pack((MARK if index in marked else b"") + header + lines))
    run(inputs, tmp_path, shards=4, compression="none")
    shards = [shard.read_bytes() for shard in list_shards(tmp_path / "out")]
    assert len(shards) == 4
    # A header of CSV is that of the first input.
    top = (MARK if suffix != ".csv" or 0 in marked else b"") + header
    assert all(shard.startswith(top) and shard.count(MARK) == top.count(MARK) for shard in shards)
    rows = [line for shard in shards for line in shard.removeprefix(top).splitlines()]
    assert sorted(rows) == sorted(b'{"id": %d}' % row for row in range(30))


def test_inputs_of_which_some_have_a_mark_are_told(tmp_path: Path) -> None:
    for name, content in (("a.jsonl", b"{}\n"), ("b.jsonl", MARK + b"{}\n"), ("empty.jsonl", MARK)):
        (tmp_path / name).write_bytes(content)
    source = FORMAT.open_source(
        [give(tmp_path / "c.jsonl", b"{}"), give(tmp_path / "d.jsonl", MARK + b"{}")], ReadOptions()
    )
    (note,) = source.notes
    assert "d.jsonl begins with a byte order mark" in note
    for inputs in (["b.jsonl"], ["a.jsonl", "empty.jsonl"]):
        files = [give(tmp_path / name, (tmp_path / name).read_bytes()) for name in inputs]
        assert not FORMAT.open_source(files, ReadOptions()).notes


@pytest.mark.parametrize(
    "content",
    [MARK + b'{"a": 1}\n{"a": 2}\n', b'{"a": 1}\n{"a": 2}\n\n', MARK + b'{"a": 1}\r\n{"a": 2}\r\n \r\n\r\n'],
)
def test_marks_and_blank_ends_are_not_converted(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "in.jsonl").write_bytes(content)
    report = recshuf.shuffle([tmp_path / "in.jsonl"] * 2, tmp_path / "out.parquet", verify=True, workers=1)
    assert report.records == 4
    assert sorted(pq.read_table(tmp_path / "out.parquet")["a"].to_pylist()) == [1, 1, 2, 2]
    output = io.BytesIO()
    recshuf.shuffle("-", "-", stdin=io.BytesIO(content), stdout=output, format="jsonl", seed=1)
    recshuf.shuffle(tmp_path / "in.jsonl", tmp_path / "out.jsonl", seed=1)
    assert output.getvalue() == (tmp_path / "out.jsonl").read_bytes()


def test_a_blank_line_that_comes_last_in_a_shard_is_not_missed(tmp_path: Path) -> None:
    path, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    path.write_bytes(b'{"a":1}\n\n{"a":2}\n \n\n{"a":3}\n\n')
    ends = set()
    for seed in range(12):
        report = recshuf.shuffle(path, output, seed=seed, verify=True, overwrite=True)
        ends.add(output.read_bytes().endswith(b"}\n"))
        assert report.records == recshuf.verify(path, output).records == 6
        recshuf.shuffle(path, tmp_path / "out/", seed=seed, shards=3, verify=True, overwrite=True)
        assert recshuf.verify(path, tmp_path / "out").is_equal
    assert ends == {True, False}
    output.write_bytes(output.read_bytes().replace(b"\n\n", b"\n", 1))
    assert recshuf.verify(path, output).missing == 1
