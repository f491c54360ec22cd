"""Records of text and JSONL are exactly the bytes between separators, however they are read."""

import errno
import gzip
import io
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from recshuf.errors import InputError
from recshuf.formats.lines import cutting
from recshuf.formats.lines.cutting import MARK, find_ends, find_first, find_last_end
from recshuf.interfaces import InputFile
from tests.support.effort import examples
from tests.support.formats.format_tools import LONGEST, OneWayReader, read_input
from tests.support.formats.line_tools import (
    HOSTILE,
    SEPARATORS,
    ends_ambiguously,
    give,
    open_text,
    read,
    records_in,
    same_folder,
    split_records,
    texts,
)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the size of a piece, which is no option: short examples then reach over many of them."""
    monkeypatch.setattr(cutting, "PIECE_BYTES", 7)


@same_folder
@given(data=st.data(), separator=st.sampled_from(SEPARATORS))
def test_separators_are_found_as_split_finds_them(
    small_pieces: None, data: st.DataObject, separator: bytes
) -> None:
    content = data.draw(texts(separator))
    array = np.frombuffer(content, np.uint8)
    lengths = [len(part) + len(separator) for part in content.split(separator)[:-1]]
    ends = np.concatenate([np.zeros(1, np.int64), *find_ends(array, 0, separator)])
    assert np.diff(ends).tolist() == lengths
    assert find_last_end(array, separator) == sum(lengths)
    for begin in range(len(content) + 1):
        assert find_first(array, separator, begin) == content.find(separator, begin)


def test_separators_anywhere_around_the_end_of_a_piece_are_found(small_pieces: None) -> None:
    for separator, before, behind in product(SEPARATORS, range(9), range(9)):
        content = b"x" * before + separator + b"y" * behind
        array, end = np.frombuffer(content, np.uint8), before + len(separator)
        assert np.concatenate([*find_ends(array, 0, separator)]).tolist() == [end]
        assert (find_first(array, separator, 0), find_last_end(array, separator)) == (before, end)


@same_folder
@given(
    data=st.data(),
    separator=st.sampled_from(SEPARATORS),
    block_bytes=st.integers(1, 70),
    pack=st.sampled_from([bytes, gzip.compress, zstandard.compress]),
)
def test_any_bytes_are_read_as_split_cuts_them(
    tmp_path: Path, data: st.DataObject, separator: bytes, block_bytes: int, pack: Callable[[bytes], bytes]
) -> None:
    content = data.draw(texts(separator))
    assume(not ends_ambiguously(content, separator))
    suffix = {bytes: ".txt", gzip.compress: ".txt.gz"}.get(pack, ".txt.zst")
    file = give(tmp_path / f"in{suffix}", pack(content))
    records = split_records(content.removeprefix(MARK), separator)  # a mark is no part of a record
    assert read(file, block_bytes, separator=separator) == records


@settings(same_folder, max_examples=examples(100))
@given(data=st.data(), separator=st.sampled_from([b"\n", b"\0", b"\xff"]), header_lines=st.integers(0, 1))
def test_small_files_read_at_once_hold_what_each_does(
    small_pieces: None, tmp_path: Path, data: st.DataObject, separator: bytes, header_lines: int
) -> None:
    header = b"header" + separator
    contents = data.draw(st.lists(texts(separator), min_size=1, max_size=6))
    files = [give(tmp_path / f"{i}.txt", header * header_lines + one) for i, one in enumerate(contents)]
    source = open_text(files, separator=separator, header=header_lines)
    joined = source.read_joined(range(len(files)), 1 << 20, LONGEST)
    assert joined is not None
    expected = [split_records(content, separator) for content in contents]
    assert joined.rows == [len(records) for records in expected]
    assert records_in([joined.batch]) == [record for records in expected for record in records]


def test_a_last_line_gets_the_end_of_the_line_before_wherever_reading_begins(tmp_path: Path) -> None:
    file = give(tmp_path / "in.txt", b"aa\r\nb")
    for block_bytes in range(1, 7):
        assert read(file, block_bytes) == [b"aa\r\n", b"b\r\n"]
    files = [give(tmp_path / f"{index}.txt", b"head\r\nb") for index in range(2)]
    source = open_text(files, header=1)
    joined = source.read_joined([0, 1], 1 << 20, LONGEST)
    assert joined is not None
    assert records_in([joined.batch]) == [b"b\r\n"] * 2


def test_small_files_are_not_read_at_once_where_one_alone_tells_more(tmp_path: Path) -> None:
    files = [give(tmp_path / name, b"a\n" * 1000) for name in ("1.txt", "2.txt")]
    packed = give(tmp_path / "3.txt.zst", zstandard.compress(b"a\n"))
    for inputs, options, block_bytes, longest, is_read in (
        (files, {}, 1 << 20, 2, True),
        (files, {}, 1 << 20, 1, False),  # a record is too long
        (files, {}, 1 << 14, 2, False),  # so many records take more memory than a block
        (files, {"max_record_bytes": 1}, 1 << 20, 2, False),
        ([packed, files[0]], {}, 1 << 20, 2, False),
        (files, {"separator": b"\n\n"}, 1 << 20, LONGEST, False),
    ):
        joined = open_text(inputs, **options).read_joined([0, 1], block_bytes, longest)
        assert (joined is not None) == is_read, (options, block_bytes, longest)


def test_every_line_is_in_one_range_only_however_long(tmp_path: Path) -> None:
    sizes = (5, 300_000, 0, 70_000, 65_536, 1, 200_000, 2_500_000, 7)
    lines = [b"%d " % size + b"x" * size + b"\n" for size in sizes]
    file = give(tmp_path / "in.txt", b"".join(lines))
    fragments = list(open_text(file).fragments(0, 50_000, LONGEST))
    with ThreadPoolExecutor(8) as pool:
        batches = list(pool.map(lambda fragment: list(fragment.batches()), fragments))
    assert any(not part for part in batches), "some range lies inside a line"
    assert records_in([batch for part in batches for batch in part]) == lines


MIDDLE, LAST = b"short\n" * 3 + b"y" * 500 + b"\nshort\n", b"short\n" * 3 + b"y" * 500


@pytest.mark.parametrize(
    ("suffix", "content", "block_bytes"),
    [(".txt", MIDDLE, 10), (".txt.gz", MIDDLE, 1000), (".txt", MIDDLE, 1 << 20), (".txt", LAST, 10)],
)
def test_a_record_that_is_too_long_is_refused_with_its_place(
    tmp_path: Path, suffix: str, content: bytes, block_bytes: int
) -> None:
    file = give(tmp_path / f"in{suffix}", gzip.compress(content) if suffix == ".txt.gz" else content)
    assert read(file, block_bytes, max_record_bytes=501) == split_records(content)
    place = "byte 18 of the decompressed data" if suffix == ".txt.gz" else "byte 18"
    with pytest.raises(
        InputError, match=f"^in{suffix}: {place}: .* than 500 bytes; raise --max-record-bytes$"
    ):
        read(file, block_bytes, max_record_bytes=500)
    with pytest.raises(InputError, match=f"{place}: .* than 400 bytes; raise --memory$"):
        read_input(open_text(file), 0, block_bytes, max_record_bytes=400)


def test_a_last_record_that_its_separator_would_cut_elsewhere_is_refused(tmp_path: Path) -> None:
    file = give(tmp_path / "in.txt", b"1aa2a")
    with pytest.raises(InputError, match=r"in.txt: byte 3: .*append the separator"):
        read(file, separator=b"aa")
    packed = give(tmp_path / "in.txt.gz", gzip.compress(b"1aa2a" * 999))
    with pytest.raises(InputError, match=r"in.txt.gz: byte \d+ of the decompressed data: .*append"):
        read(packed, separator=b"aa")
    assert read(give(tmp_path / "in.txt", b"1aa2aa"), separator=b"aa") == [b"1aa", b"2aa"]


def test_a_stream_is_read_once_with_its_compression_told_by_content() -> None:
    stream = OneWayReader(gzip.compress(b"head\n" + HOSTILE))
    file = InputFile(name="standard input", path=None, stream=io.BufferedReader(stream))
    source = open_text(file, header=1)
    [summary] = source.inputs
    assert (summary.file_bytes, summary.record_count, summary.native_bytes) == (None, None, None)
    assert source.layout.header == b"head\n"
    assert records_in(read_input(source, 0, 20)) == split_records(HOSTILE)
    assert not stream.closed
    with pytest.raises(RuntimeError, match="once"):
        source.fragments(0, 20, LONGEST)
    standing = io.BytesIO(b"read before\nrest\n")
    standing.readline()
    assert read(InputFile(name="standard input", path=None, stream=standing)) == [b"rest\n"]


def test_a_stream_that_fails_is_an_error_and_no_end() -> None:
    class Failing(OneWayReader):
        def readinto(self, buffer: Any) -> int:
            count = super().readinto(buffer)
            if not count:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return count

    for content in (b"a\n", b"line\n" * 10_000):
        stream = InputFile(name="standard input", path=None, stream=Failing(content))
        with pytest.raises(InputError, match=r"standard input: Input/output error"):
            read(stream, 100)


def test_a_file_that_changes_before_or_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    """It grows or is rewritten before, or its size changes after the first range."""
    path, content = tmp_path / "in.txt", b"line\n" * 100_000
    for more, later in ((b"more\n", 0), (b"", 1)):
        source = open_text(give(path, content))
        status = path.stat()
        path.write_bytes(content + more)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + later))
        with pytest.raises(InputError, match=r"in.txt: changed while"):
            read_input(source, 0, 1000)
    by_ranges, from_the_beginning = {}, {"separator": b"ne\n"}
    for options, count in product((by_ranges, from_the_beginning), (1, 80_000, 140_000)):
        fragments = open_text(give(path, content), **options).fragments(0, 1000, LONGEST)
        list(next(fragments).batches())
        path.write_bytes(b"line\n" * count)
        with pytest.raises(InputError, match=r"in.txt: changed while"):
            _ = [list(fragment.batches()) for fragment in fragments]


@pytest.mark.parametrize("joined", [False, True])
def test_a_file_that_shrinks_between_its_opening_and_a_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, joined: bool
) -> None:
    file = give(tmp_path / "in.txt", b"line\n" * 1000)
    source = open_text([file, file])
    real = os.preadv

    def shrink(descriptor: int, buffers: list[Any], position: int) -> int:
        os.truncate(tmp_path / "in.txt", 1007)
        return real(descriptor, buffers, position)

    monkeypatch.setattr(os, "preadv", shrink)
    read = partial(source.read_joined, [0, 1]) if joined else partial(read_input, source, 0)
    with pytest.raises(InputError, match=r"in.txt: changed while"):
        read(1 << 20, max_record_bytes=LONGEST)


def test_a_zstd_window_must_fit_the_memory_or_be_known_to_the_plan(tmp_path: Path) -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=26, enable_ldm=True)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    long = compressor.compress(b"line\n" * 1000) + compressor.flush()
    known = open_text(give(tmp_path / "in.txt.zst", long))
    small = open_text(give(tmp_path / "small.txt.zst", zstandard.compress(b"line\n")))
    assert known.reading_bytes(1000) - small.reading_bytes(1000) > (1 << 26) - (1 << 20)
    assert len(records_in(read_input(known, 0, 1000, max_record_bytes=1000))) == 1000
    hidden = zstandard.compress(os.urandom(6 << 20)) + long
    hiding = open_text(give(tmp_path / "hiding.txt.zst", hidden))
    with pytest.raises(InputError, match=r"hiding.txt.zst: its zstd window needs 67,108,864 bytes"):
        read_input(hiding, 0, 1 << 20, max_record_bytes=1 << 25)
