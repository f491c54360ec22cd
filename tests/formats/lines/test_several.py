"""Records of several lines: so many each, or from a line that begins with a text to the next."""

import gzip
import io
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import recshuf
from recshuf.errors import ConversionError, InputError, UsageError
from recshuf.formats.compression import recognise_compression
from recshuf.formats.lines import cutting
from recshuf.interfaces import ReadOptions, WriteOptions
from tests.conftest import Run
from tests.formats.text import test_suite
from tests.support.effort import examples
from tests.support.formats.format_tools import OneWayReader, decompress_file
from tests.support.formats.line_tools import give, read, same_folder

MARK = b"\xef\xbb\xbf"


def split_starts(content: bytes, start: bytes) -> list[bytes]:
    """Return the records of whole lines that begin with a text: the oracle."""
    records: list[bytes] = []
    for line in re.findall(rb"[^\n]*\n|[^\n]+", content):
        if line.startswith(start):
            records.append(line)
        else:
            records[-1] += line
    return records


def split_counts(content: bytes, count: int) -> list[bytes]:
    lines = re.findall(rb"[^\n]*\n|[^\n]+", content)
    return [b"".join(lines[first : first + count]) for first in range(0, len(lines), count)]


class TestCounts(test_suite.TestText):
    """A variant of lines: only what reads records of its own is tried each time."""

    read_options = ReadOptions(own=(("record_lines", 4),))
    write_options = WriteOptions(own=(("record_lines", 4),))
    run_options: Mapping[str, Any] = {"record_lines": 4}
    converts = False  # without these options; see below
    bulk_rows = 10_000

    def make_content(self, index: int, count: int) -> bytes:
        return b"".join(
            b"@%d:%d\n%s\n+\n%s\n" % (index, row, b"AC" * (row % 30), b"I" * 9) for row in range(count)
        )

    def read_back(self, path: Path) -> list[bytes]:
        return [record.removesuffix(b"\n") for record in split_counts(decompress_file(path), 4)]

    def records_of(self, batch: pa.RecordBatch) -> list[bytes]:
        return [record.removesuffix(b"\n") for record in batch.column("record").to_pylist()]


@pytest.mark.slow
class TestStarts(TestCounts):
    read_options = ReadOptions(own=(("record_start", b">"),))
    write_options = WriteOptions(own=(("record_start", b">"),))
    run_options: Mapping[str, Any] = {"record_start": ">"}

    def make_content(self, index: int, count: int) -> bytes:
        return b"".join(b">%d:%d > x\n%s" % (index, row, b"A>C\n" * (row % 30)) for row in range(count))

    def read_back(self, path: Path) -> list[bytes]:
        return [record.removesuffix(b"\n") for record in split_starts(decompress_file(path), b">")]


@settings(same_folder, max_examples=examples(120))
@given(
    words=st.lists(
        st.sampled_from([b"\n", b"\n", b">", b"]>", b"\r\n", b"x", b"y" * 9, b"\n\n"]), max_size=60
    ),
    block_bytes=st.sampled_from([1, 5, 64, 1 << 20]),
    count=st.integers(1, 5),
)
def test_records_are_those_of_the_oracle_wherever_blocks_end(
    tmp_path_factory: pytest.TempPathFactory, words: list[bytes], block_bytes: int, count: int
) -> None:
    content, folder = b"".join(words), tmp_path_factory.getbasetemp()
    assume(content.strip(b"\r\n"))
    assume(recognise_compression(content) == "none")
    whole = b"".join(split_counts(content, count)[: content.count(b"\n") // count])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cutting, "PIECE_BYTES", 7)
        if whole:
            found = read(give(folder / "a", whole), block_bytes, own=(("record_lines", count),))
            assert found == split_counts(whole, count)
        for start in (b">", b"]>"):
            text = start + content + b"\n"
            assert read(
                give(folder / "a", text), block_bytes, own=(("record_start", start),)
            ) == split_starts(text, start)


def shuffle(path: Path, out: Path, content: bytes, **options: Any) -> bytes:
    path.write_bytes(content)
    recshuf.shuffle(path, out, overwrite=True, verify=True, **options)
    return decompress_file(out)


CUT = {
    "end of a line": (b"@a\nA\n@b\nC", b"@a\nA\n@b\nC\n", {"record_lines": 2}),
    "end of a line of CRLF": (b"@a\r\nA\r\n@b\r\nC\r", b"@a\r\nA\r\n@b\r\nC\r\n", {"record_lines": 2}),
    "blank line": (b"@a\nA\n\r\n", b"@a\nA\n", {"record_lines": 2}),
    "record of two blank lines": (b"@a\nA\n\r\n\n", b"@a\nA\n\r\n\n", {"record_lines": 2}),
    "end of a record": (b">a\r\nA\r\n>b", b">a\r\nA\r\n>b\r\n", {"record_start": ">"}),
    "blank line between records": (
        b"[E 1\n\nx\n\n[E 2\n\ny",
        b"[E 1\n\nx\n\n[E 2\n\ny\n\n",
        {"record_start": "[E "},
    ),
    "mark": (MARK + b">a\nA\n>b\n", MARK + b">a\nA\n>b\n", {"record_start": b">"}),
    "header": (b"x\ny\n>a\nA\n>b\n", b"x\ny\n>a\nA\n>b\n", {"record_start": ">", "header": 2}),
    "header of counted lines": (b"x\n@a\nA\n@b\nC\n", b"x\n@a\nA\n@b\nC\n", {"record_lines": 2, "header": 1}),
    "nothing": (b"", b"", {"record_start": ">"}),
}


@pytest.mark.parametrize("what", CUT)
def test_the_ends_of_inputs(tmp_path: Path, what: str) -> None:
    content, whole, options = CUT[what]
    written = shuffle(tmp_path / "a", tmp_path / "b.gz", content, **options)
    assert sorted(written) == sorted(whole)
    assert written[: len(whole) - len(whole.lstrip(MARK))] == whole[: len(whole) - len(whole.lstrip(MARK))]
    if "header" in options:
        assert written.startswith(b"".join(re.findall(rb"[^\n]*\n", whole)[: options["header"]]))


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"@a\nA\n@b\n", {"record_lines": 2}, "the last record has 1 of 2 lines; complete"),
        (b"@a\nA\n@b\n@c", {"record_lines": 4, "header": 1}, "the last record has 3 of 4 lines; complete"),
        (b"x\n\n>a\n", {"record_start": ">"}, "line 1: no record begins before line 3; give header=2 if"),
        (b"x\n\n>a\n", {"record_start": ">", "header": 1}, "line 2: no record begins before line 3; give header=2"),
        (b"x\n>\n", {"record_start": "@"}, "has no line that begins with '@'"),
    ],
)  # fmt: skip
def test_bytes_of_no_record_are_refused(
    tmp_path: Path, content: bytes, options: dict[str, Any], message: str
) -> None:
    for path in (tmp_path / "a", tmp_path / "a.gz"):
        path.write_bytes(gzip.compress(content) if path.suffix else content)
        with pytest.raises(InputError, match=re.escape(message)):
            recshuf.shuffle(path, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_options_that_contradict_each_other(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a\n")
    (tmp_path / "b.jsonl").write_bytes(b"{}\n")
    for options, message in (
        ({"record_lines": 2, "record_start": ">"}, "record_lines and record_start contradict"),
        ({"record_lines": 2, "separator": "x"}, "record_lines and separator"),
        ({"record_start": ">", "zero_terminated": True}, "record_start and separator"),
        ({"record_lines": 0}, "record_lines=0 is not possible: it must be at least 1"),
        ({"record_start": ""}, "record_start.* is not possible: give text within a line"),
        ({"record_start": "a\nb"}, "record_start.* is not possible: give text within a line"),
    ):
        with pytest.raises(UsageError, match=message):
            recshuf.shuffle(tmp_path / "a", tmp_path / "out", **options)
    with pytest.raises(UsageError, match="record_lines"):
        recshuf.shuffle(tmp_path / "b.jsonl", tmp_path / "out.jsonl", record_lines=2)


MATES = [b"".join(b"@r%d/%d\n%s\n+\n%s\n" % (row, mate, b"ACGT" * (row % 9 * mate), b"I" * (row % 7)) for row in range(900)) for mate in (1, 2)]  # fmt: skip


def test_two_mate_files_stay_aligned_by_one_seed(tmp_path: Path) -> None:
    """Whatever the compression, the memory, the threads, and the road by a store."""
    (tmp_path / "r1.fastq").write_bytes(MATES[0])
    (tmp_path / "r2.fq.gz").write_bytes(gzip.compress(MATES[1]))
    options: dict[str, Any] = {"record_lines": 4, "seed": 7}
    recshuf.shuffle(tmp_path / "r1.fastq", tmp_path / "o1.fastq", memory="64MB", workers=3, **options)
    recshuf.shuffle(tmp_path / "r2.fq.gz", tmp_path / "o2.fq", workers=1, **options)
    names = [
        [record.split(b"/")[0] for record in split_counts(path.read_bytes(), 4)]
        for path in (tmp_path / "o1.fastq", tmp_path / "o2.fq")
    ]
    assert names[0] == names[1]
    assert len({*names[0]}) == 900
    recshuf.scatter(tmp_path / "r2.fq.gz", tmp_path / "store", **options)
    recshuf.gather(tmp_path / "store", tmp_path / "o3.fq")
    assert sorted(split_counts((tmp_path / "o3.fq").read_bytes(), 4)) == sorted(split_counts(MATES[1], 4))
    loader = recshuf.PileLoader(tmp_path / "store", batch_size=900)
    (batch,) = loader
    assert len(np.unique(np.asarray(next(iter(batch.values()))))) == 900
    out = io.BytesIO()
    recshuf.shuffle("-", "-", stdin=OneWayReader(MATES[0]), stdout=out, **options)
    assert out.getvalue() == (tmp_path / "o1.fastq").read_bytes()


def test_the_column_of_a_table_and_back(tmp_path: Path) -> None:
    content = b">a\nAC\nG\n>b\nT\n"
    (tmp_path / "a.fa").write_bytes(content)
    recshuf.shuffle(tmp_path / "a.fa", tmp_path / "a.parquet", record_start=">", verify=True)
    table = pq.read_table(tmp_path / "a.parquet")
    assert sorted(table["text"].to_pylist()) == [">a\nAC\nG", ">b\nT"]
    recshuf.shuffle(tmp_path / "a.parquet", tmp_path / "b.fa", to="text", record_start=">", verify=True)
    assert sorted(split_starts((tmp_path / "b.fa").read_bytes(), b">")) == split_starts(content, b">")
    for options in ({}, {"record_lines": 2}, {"record_start": "A"}, {"record_start": ">a"}):
        with pytest.raises(ConversionError, match=r"a value (is no record|holds the separator)"):
            recshuf.shuffle(tmp_path / "a.parquet", tmp_path / "c.txt", **options)
    (tmp_path / "bad.fq").write_bytes(b"@a\nA\n@b\n\xff\n")
    with pytest.raises(InputError, match=r"bad\.fq: record 2: is not UTF-8"):
        recshuf.shuffle(tmp_path / "bad.fq", tmp_path / "d.parquet", record_lines=2)


TOLD = {
    "x.fastq": (b"@r0\nACGT\n+\nIIII\n@r1\nNNA\n+\nIII\n", 2),
    "x.fa": (b">chr1\nACGTNNacgt\nACG\n>chr2\nA\n", 2),
    "x.pgn": (b'[Event "a"]\n[Site "b"]\n\n1. e4 1-0\n\n[Event "b"]\n[Site "b"]\n\n1-0\n\n', 2),
    "x.conll": (b"EU B-ORG\nrejects O\n\nPeter B-PER\n\n", 2),
    "y": (b"EU B-ORG\r\nrejects O\r\n\r\nPeter B-PER\r\n\r\n", 2),
    "x.gbk": (b"LOCUS       A 1\nORIGIN\n//\nLOCUS       B 1\n//\n", 2),
    "x.mbox": (b"From a@b Thu Jan  1 00:00:00 1970\nFrom: a\n\nx\nFrom b@c Thu Jan  1 00:00:00 1970\nA: b\n\n", 2),
    "x.bib": (b"@book{a,\n a = 1}\n\n@misc{b,\n b = 1}\n", 2),
}  # fmt: skip


@pytest.mark.parametrize("name", TOLD)
def test_the_command_that_a_refusal_names_works_when_pasted(tmp_path: Path, call: Run, name: str) -> None:
    content, count = TOLD[name]
    (tmp_path / name).write_bytes(content)
    command = [tmp_path / name, "-o", tmp_path / "out"]
    refused = call(*command)
    assert refused.returncode == 1
    remedy = re.search(
        r"give (--record-lines \d|--(?:record-start|separator) '[^']+')", refused.stderr.decode()
    )
    assert remedy is not None
    done = call(*command, *shlex.split(remedy[1]), "--verify")
    assert f"{count} records" in done.stderr.decode()
    assert sorted((tmp_path / "out").read_bytes()) == sorted(content)


@pytest.mark.parametrize(
    ("name", "options"),
    [("a.fq", {"record_lines": 2}), ("a.fa", {"record_start": ">"}), ("a.dat", {"dtype": "u2", "record_shape": 2})],
)  # fmt: skip
def test_options_that_say_what_records_are_choose_files_of_a_folder(
    tmp_path: Path, name: str, options: dict[str, Any]
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).write_bytes(b">a\n1" * 40 + b">a\n1")
    (tmp_path / "in" / "README.md").write_bytes(b"of no records")
    recshuf.shuffle(tmp_path / "in", tmp_path / "out", seed=1, verify=True, **options)
    assert recshuf.verify(tmp_path / "in", tmp_path / "out", **options)
    with pytest.raises(InputError, match="holds no readable files, "):
        recshuf.shuffle(tmp_path / "in", tmp_path / "no")
