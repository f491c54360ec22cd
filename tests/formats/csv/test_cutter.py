"""What CSV inputs have at their top, and records without an end."""

import gzip
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from recshuf.errors import InputError
from recshuf.formats.csv import FORMAT
from recshuf.interfaces import WriteOptions
from tests.support.formats.format_tools import read_input, reading_csv
from tests.support.formats.line_tools import give, records_in, same_folder


def open_csv(folder: Path, *contents: bytes, **options: Any) -> Any:
    files = [give(folder / f"{index}.csv", content) for index, content in enumerate(contents)]
    return FORMAT.open_source(files, reading_csv(**options))


def test_a_quote_that_is_never_closed_is_named_where_a_record_is_too_long(tmp_path: Path) -> None:
    content = b'1,"' + b"x\n" * 100_000
    packed = {"in.csv": content, "in.csv.gz": gzip.compress(content)}
    for (name, data), header_lines in product(packed.items(), [0, 1]):
        file = give(tmp_path / name, data)
        options = reading_csv(header=header_lines, max_record_bytes=1000)
        problem = r"in\.csv.*: byte 0.*: .*longer than 1,000 bytes.* close a quoted field"
        with pytest.raises(InputError, match=problem):
            read_input(FORMAT.open_source([file], options), 0, 500)


@pytest.mark.parametrize("name", ["in.csv", "in.csv.gz"])
def test_a_quote_that_is_open_at_the_end_is_named_by_its_line(tmp_path: Path, name: str) -> None:
    for rest in (b'"', b'"\n', b'"open\n1,2\n', b'"' + b"x\n" * 2000):
        content = b'a,b\n1,"2\n3"\n' * 20 + b"4," + rest
        file = give(tmp_path / name, gzip.compress(content) if name.endswith(".gz") else content)
        for block_bytes, header_lines in ((7, 1), (100, 0), (1 << 20, 1)):
            source = FORMAT.open_source([file], reading_csv(delimiter=b",", header=header_lines))
            with pytest.raises(InputError, match=r"line 61: a quoted field .* is not closed; close it"):
                read_input(source, 0, block_bytes)


LINES = st.sampled_from([b"1,2\n", b'3,"4\n\n#"\n', b"\n", b"# 5,6\n", b"#\n"])


@same_folder
@given(
    st.lists(st.tuples(st.lists(LINES, max_size=5), st.sampled_from([b"", b"7,c"])), min_size=1, max_size=6)
)
@example([([b'3,"4\n\n#"\n'], b"7,c"), ([], b""), ([b"1,2\n"], b"")])
def test_small_files_read_at_once_are_without_comments_and_blank_lines_and_end_with_their_file(
    tmp_path: Path, files: list[tuple[list[bytes], bytes]]
) -> None:
    contents = [b"".join([b"a,b\n", *lines, rest]) for lines, rest in files]
    source = open_csv(tmp_path, *contents, delimiter=b",", header=1, comment=b"#")
    records = [
        [line for line in lines if b"," in line[:2]] + [rest + b"\n"] * bool(rest) for lines, rest in files
    ]
    joined = source.read_joined(range(len(files)), 1 << 20, 100)
    assert joined is not None
    assert joined.rows == [len(part) for part in records]
    assert records_in([joined.batch]) == [record for part in records for record in part]


def test_small_files_are_not_read_at_once_where_a_quote_is_open_at_the_end_of_one(tmp_path: Path) -> None:
    source = open_csv(tmp_path, b"3,d\n", b'4,"e', b'f"\n', delimiter=b",")
    for inputs in ([0, 1, 2], [0, 1]):  # as if it went on in the next file, or at the end of all
        assert source.read_joined(inputs, 1 << 20, 1 << 20) is None


CONTENTS = {
    "no quotes": [b"%d,plain text without any\n" % row for row in range(20_000)],
    "quotes": [b'%d,"a ""%d"""\n' % (row, row) if row % 3 else b'%d,"\n\n"\n' % row for row in range(30_000)],
    "rare quotes": [b'%d,"\n,"\n' % row if row % 9000 == 7 else b"%d,x\n" % row for row in range(40_000)],
    "quotes in plain fields": [b'%d,5" tall\n' % row for row in range(30_000)],
    "a long field, then no quotes": [b'1,"%s"\n' % (b"2,3\n" * 400_000), *[b"4,5\n"] * 100_000],
    "long fields": [b"1,2\n", b'3,"%s"\n' % (b'x""\n,' * 400_000), b'4,"\n"\n', b"5,%s\n" % bytes(1 << 20), b"6,7\n"],
}  # fmt: skip


@pytest.mark.parametrize("what", CONTENTS)
def test_files_are_cut_between_records_only(tmp_path: Path, what: str) -> None:
    content = b"a,b\n" + b"".join(CONTENTS[what])
    for name, data in (("in.csv", content), ("in.csv.gz", gzip.compress(content, 1))):
        source = FORMAT.open_source([give(tmp_path / name, data)], reading_csv(header=None))
        for block_bytes in (40_000, 2 << 20):
            assert records_in(read_input(source, 0, block_bytes)) == CONTENTS[what]


def test_a_header_may_lack_its_newline_but_no_record(tmp_path: Path) -> None:
    for content, lines, header in (
        (b"a,b", 1, b"a,b\n"),
        (b'"a\nb",c', 1, b'"a\nb",c\n'),
        (b"\xef\xbb\xbfa,b\n1,2", 2, b"\xef\xbb\xbfa,b\n1,2\n"),
    ):
        source = open_csv(tmp_path, content, header=lines)
        assert source.layout.header == header
        assert records_in(read_input(source, 0, 100)) == []
    for content, lines in ((b"a,b\n", 2), (b"a,b", 2), (b'a,"b\n1,2\n', 1), (b"a,b\n\n", 3)):
        with pytest.raises(
            InputError, match=r"has fewer complete records than its header, \d; check --header"
        ):
            open_csv(tmp_path, content, header=lines)


def test_a_header_may_be_longer_than_the_head_that_is_looked_at(tmp_path: Path) -> None:
    names = [f"{'column' * 20}\n{index}" for index in range(1_200)]
    header = ",".join(f'"{name}"' for name in names).encode() + b"\n"
    assert len(header) > 1 << 17
    record = b",".join([b"1"] * len(names)) + b"\n"
    source = open_csv(tmp_path, header + record, header=None)
    assert source.layout.header == header
    assert source.decoder().finish().names == names
    assert records_in(read_input(source, 0, 100)) == [record]


def test_the_delimiter_found_cuts_records_and_is_kept(tmp_path: Path) -> None:
    """A quote opens a field behind the delimiter only; a record is cut in the middle of the head."""
    for delimiter in (b",", b"\t", b";", b"|"):
        records = [b'%d,"a\n%d"\n' % (row, row) for row in range(6000)]
        content = b"".join([b"id,t\n", *records]).replace(b",", delimiter)
        source = open_csv(tmp_path, content, header=None)
        assert source.decoder().finish().names == ["id", "t"]
        found = records_in(read_input(source, 0, 1000))
        assert found == [record.replace(b",", delimiter) for record in records]
        suffix = ".tsv" if delimiter == b"\t" else ".csv"
        assert FORMAT.open_target(source.schema, source.layout, WriteOptions()).suffix == suffix


def test_files_of_tabs_have_tabs_unless_another_delimiter_is_asked_for(tmp_path: Path) -> None:
    file = give(tmp_path / "in.tsv", b"a,b\tc,d\n1,2\t3,4\n")
    for options, names in (({}, ["a,b", "c,d"]), ({"delimiter": b","}, ["a", "b\tc", "d"])):
        source = FORMAT.open_source([file], reading_csv(header=1, **options))
        assert source.decoder().finish().names == names


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    source = open_csv(tmp_path, b"a,b,a\n1,2,3\n", header=None)
    with pytest.raises(InputError, match="two columns are named 'a'"):
        source.decoder()
