"""Headers, and what is known of lines before they are read."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from recshuf.errors import InputError
from recshuf.formats import text
from recshuf.interfaces import InputFile, WriteOptions
from tests.support.formats.format_tools import read_input
from tests.support.formats.line_tools import give, open_text, records_in, split_records, write

MANY = 260
"""So many inputs that only each second one is sampled."""


def pack_members(data: bytes) -> bytes:
    """Return two members, the first of which ends within a header."""
    return gzip.compress(data[:2]) + gzip.compress(data[2:])


@pytest.mark.parametrize(
    ("block_bytes", "suffix", "separator"),
    [(1, ".csv", b"\n"), (7, ".csv.gz", b"\r\n"), (1000, ".csv", b"\r\n")],
)
def test_headers_are_no_records_and_top_each_shard(
    tmp_path: Path, block_bytes: int, suffix: str, separator: bytes
) -> None:
    pack = pack_members if suffix == ".csv.gz" else bytes
    header = b"a,b" + separator + b"--" + separator
    bodies = [b"1,2\n\n3,4" + separator, b"", b"5,6"]
    files = [give(tmp_path / f"{i}{suffix}", pack(header + body)) for i, body in enumerate(bodies)]
    files.insert(0, give(tmp_path / f"empty{suffix}", b""))
    source = open_text(files, header=2, separator=separator)
    assert source.layout.header == header
    batches = [read_input(source, index, block_bytes) for index in range(4)]
    assert [records_in(part) for part in batches] == [
        [],
        *(split_records(body, separator) for body in bodies),
    ]
    assert [one.record_count for one in source.inputs] == [len(records_in(part)) for part in batches]
    target = text.FORMAT.open_target(source.schema, source.layout, WriteOptions())
    assert target.suffix == (".txt.gz" if suffix == ".csv.gz" else ".txt")
    shard = tmp_path / f"out{target.suffix}"
    assert write(shard, [b"x"], target) == header + b"x"
    shard.unlink()
    assert write(shard, [], target) == header


def test_each_header_must_be_that_of_the_first_input(tmp_path: Path) -> None:
    files = [give(tmp_path / f"{name}.csv", head + b"\n1\n") for name, head in (("one", b"a"), ("two", b"a"))]
    files.append(give(tmp_path / "three.csv", b"b\n1\n"))
    with pytest.raises(InputError, match=r"three.csv: its header differs from that of one.csv"):
        open_text(files, header=1)
    files[1] = give(tmp_path / "crlf.csv", b"a\r\n1\r\n")
    with pytest.raises(
        InputError, match=r"its header differs from that of .* in nothing but line ends \(CRLF\)"
    ):
        open_text(files, header=1)


def test_a_header_may_lack_its_newline_and_no_line(tmp_path: Path) -> None:
    source = open_text(give(tmp_path / "in.csv", b"a\nb"), header=2)
    assert source.layout.header == b"a\nb\n"
    assert records_in(read_input(source, 0, 10)) == []
    for content in (b"a\nb\n", b"a\nb", b"a", b"\n"):
        with pytest.raises(InputError, match=r"in.csv: has fewer lines than its header, 3"):
            open_text(give(tmp_path / "in.csv", content), header=3)
    with pytest.raises(InputError, match=r"byte 2: .*--max-record-bytes"):
        open_text(give(tmp_path / "in.csv", b"a\n" + b"x" * 200_000), header=3, max_record_bytes=1000)


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_of_many_inputs_some_tell_what_the_others_hold(tmp_path: Path, suffix: str) -> None:
    pack = (lambda data: gzip.compress(data, 1)) if suffix == ".csv.gz" else bytes
    rng = np.random.default_rng(1)
    counts = [0, *rng.integers(200, 300, MANY - 2).tolist(), 0]
    bodies = [b"".join(b"%012d\n" % number for number in rng.integers(0, 10**9, count)) for count in counts]
    files = [give(tmp_path / f"{i}{suffix}", pack(b"head\n" + body)) for i, body in enumerate(bodies)]
    source = open_text(files, header=1)
    exact = [index for index, one in enumerate(source.inputs) if one.record_count_is_exact]
    assert exact == list(range(0, MANY, 2)), "only each second one is sampled"
    assert sum(one.record_count or 0 for one in source.inputs) == pytest.approx(sum(counts), rel=0.02)
    assert [one.record_count for one in source.inputs[2:-1]] == pytest.approx(counts[2:-1], rel=0.1)
    for index in (0, 1, 2, 99, MANY - 1):
        assert records_in(read_input(source, index, 1000)) == split_records(bodies[index])
    native = sum(len(body) + 8 * count for body, count in zip(bodies, counts, strict=True))
    assert sum(one.native_bytes or 0 for one in source.inputs) == pytest.approx(native, rel=0.02)


def test_among_many_inputs_what_is_no_file_of_lines_is_found(tmp_path: Path) -> None:
    files, path = [give(tmp_path / f"{index}.txt", b"line\n") for index in range(MANY)], tmp_path / "odd.txt"
    odd = give(path, b"line\n")
    for make, said in (
        (lambda: path.write_bytes(b"\x93NUMPY\x01\x00v\x00"), "begins like a NumPy array"),
        (path.unlink, "No such file"),
        (path.mkdir, "is a folder"),
        (lambda: (path.rmdir(), path.symlink_to(path.name)), "symbolic links"),
    ):
        make()
        for file in (odd, InputFile(odd.name, odd.path)):  # what was found in a folder has a stamp
            with pytest.raises(InputError, match=rf"odd.txt: .*{said}"):
                open_text([files[0], file, *files[1:]], refuses_foreign=True)


def test_what_happens_to_a_file_judged_by_its_size_is_noticed_when_it_is_read(tmp_path: Path) -> None:
    source, path = (
        open_text([give(tmp_path / f"{index}.txt", b"line\n") for index in range(MANY)]),
        tmp_path / "5.txt",
    )
    for change, said in (
        (lambda: path.write_bytes(b"more\nlines\n"), "changed while it was read"),
        (path.unlink, "No such file"),
        (path.mkdir, "is a folder"),
    ):
        change()
        with pytest.raises(InputError, match=rf"5.txt: .*{said}"):
            read_input(source, 5, 1000)


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz"])
def test_small_inputs_are_counted_and_large_ones_estimated(tmp_path: Path, suffix: str) -> None:
    pack = (lambda data: gzip.compress(data, 1)) if suffix == ".txt.gz" else bytes
    rng = np.random.default_rng(1)
    ends = np.cumsum(rng.integers(10, 400, 30_000)) + 1
    noise = rng.bytes(int(ends[-1])).replace(b"\n", b" ")
    lines = [noise[begin : end - 1] + b"\n" for begin, end in zip([0, *ends[:-1]], ends, strict=True)]
    for part, is_exact in ((lines[:100], True), (lines, False)):
        source = open_text(give(tmp_path / f"in{suffix}", pack(b"".join(part))))
        [summary] = source.inputs
        assert summary.record_count_is_exact == is_exact
        tolerance = 0 if is_exact else 0.1
        assert summary.record_count == pytest.approx(len(part), rel=tolerance)
        assert summary.native_bytes == pytest.approx(len(b"".join(part)) + 8 * len(part), rel=tolerance)
        assert summary.file_bytes == (tmp_path / f"in{suffix}").stat().st_size
    # It looks beyond the beginning of a plain file.
    [summary] = open_text(give(tmp_path / "in.txt", b"x" * (1 << 20) + b"line\n" * 400_000)).inputs
    assert (summary.record_count or 0) > 100_000
