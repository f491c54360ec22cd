"""What is taken for the top of CSV: as other readers take it, or said in a note."""

from pathlib import Path
from typing import Any

import pytest

from recshuf.formats.csv import FORMAT, SKIP_LINES
from recshuf.formats.lines import HEADER
from tests.support.formats.format_tools import read_input, reading
from tests.support.formats.line_tools import give, records_in

TAKEN, LEFT, ABOVE = "header taken: ", "no header taken, but a record: ", "taken for no records"


def open_csv(folder: Path, content: bytes, name: str = "in.csv", **options: Any) -> Any:
    file = give(folder / name, content)
    return FORMAT.open_source([file], reading(**options))


HEADERS = [
    # Names over values of another type: certain, and nothing to say.
    (b"a,b\n1,2\n", b"a,b\n", ""),
    (b"id,2019\n7,x\n8,y\n", b"id,2019\n", ""),
    (b"day,v\n2020-01-01,5\n", b"day,v\n", ""),
    (b"name,flag\nann,true\nbob,false\n", b"name,flag\n", ""),
    (b"x,y\n1,\n,2\nn/a,3\n", b"x,y\n", ""),
    (b"i,x\n0,a\n1,b\n", b"i,x\n", ""),
    # All is text.
    (b"ann,rome\nbob,oslo\n", b"ann,rome\n", TAKEN + "ann,rome; --header none if it is a record"),
    (b"a\n", b"a\n", TAKEN),
    (b"2019,2020\na,b\n", b"2019,2020\n", TAKEN),
    # Numbers for names: of pandas with and without an index, and years.
    (b"0,1\ngood film,pos\nbad film,neg\n", b"0,1\n", TAKEN),
    (b",0,1\n0,0.6,0.2\n1,0.8,0.9\n", b",0,1\n", TAKEN),
    (b",0\n0,5\n1,7\n", b",0\n", TAKEN),
    (b"0,1,2\n7,8,9\n5,5,5\n", b"0,1,2\n", TAKEN),
    (b"0,1\n0.5,2\n1.5,4\n", b"0,1\n", TAKEN),
    (b"country,2019,2020\nfr,1,2\nde,3,4\n", b"country,2019,2020\n", TAKEN),
    (b",\n1,2\n", b",\n", TAKEN),
    # Records.
    (b"0,1\n1,2\n0,3\n", b"", LEFT),
    (b"0,1,2\n3,4,5\n6,7,8\n", b"", LEFT),
    (b"2019,2020\n2021,2022\n", b"", LEFT),
    (b"1,2\n3,4\n", b"", LEFT + "1,2; --header 1 if it is the header"),
    (b"ann,5\nbob,6\n", b"", LEFT),
    (b"2020-01-01,5\n2020-01-02,6\n", b"", LEFT),
    (b"-1e5,nan\n", b"", LEFT),
    (b",5\na,6\n", b"", LEFT),
]  # fmt: skip


def test_the_header_is_what_others_take_or_a_note_tells(tmp_path: Path) -> None:
    for content, header, note in HEADERS:
        source = open_csv(tmp_path, content)
        assert source.layout.header == header, content
        assert b"".join(records_in(read_input(source, 0, 100))) == content.removeprefix(header)
        assert len(source.notes) == bool(note), content
        assert all(one.startswith(f"in.csv: {note}") for one in source.notes), content


TABLE = b"id,name\n1,a\n2,b\n3,c\n"
ABOVE_TABLES = [
    b"# generated 2024\n# by tool\n", b"% one\n", b"Monthly report\n", b"Report\nMade by tool\n\n", b"\n\n",
    b"# a, b, c\n", b"# made, 2024\n# of, x\n", b"sep=,\n", b'"sep=,"\r\n', b"\xef\xbb\xbfsep=,\n",
]  # fmt: skip


def test_lines_above_the_header_stay_there_and_are_no_records(tmp_path: Path) -> None:
    for above in ABOVE_TABLES:
        source = open_csv(tmp_path, above + TABLE)
        assert source.layout.header == above + b"id,name\n"
        assert records_in(read_input(source, 0, 100)) == [b"1,a\n", b"2,b\n", b"3,c\n"]
        assert source.decoder().finish().names == ["id", "name"]
        assert len(source.notes) == bool(above.strip()), above
        assert all("--skip-lines 0" in note for note in source.notes)
        found = source.options
        assert (SKIP_LINES.of(found), HEADER.of(found)) == (above.count(b"\n"), 1)
        again = open_csv(tmp_path, above + TABLE, skip_lines=above.count(b"\n"), header=1)
        assert (again.layout.header, again.notes) == (source.layout.header, ())
        kept = open_csv(tmp_path, above + TABLE, skip_lines=0)
        assert len(records_in(read_input(kept, 0, 100))) > 3 - (b"\n\n" in above)


def test_the_line_of_excel_names_the_delimiter(tmp_path: Path) -> None:
    source = open_csv(tmp_path, b"sep=|\na;b|c;d\n1;2|3\n")
    assert source.decoder().finish().names == ["a;b", "c;d"]


def test_a_name_of_tabs_without_any_is_told(tmp_path: Path) -> None:
    (note,) = open_csv(tmp_path, b"id;x\n1;2\n3;4\n", "in.tsv", header=0).notes
    assert note == "in.tsv: no tab in the first records; --delimiter ';' if that is between fields"
    for content in (b"id;x\ty\n1;2\t3\n", b"Hello, you\nOne\n", b"id\n1\n"):
        assert not open_csv(tmp_path, content, "in.tsv", header=0).notes


def test_a_first_line_with_fields_is_no_title(tmp_path: Path) -> None:
    for content in (b"# id,x\n1,2\n3,4\n", b"tag,n\n#a,1\n", b"x,y\n1,2,3\n4,5,6\n7,8,9\n"):
        assert open_csv(tmp_path, content).layout.header == content[: content.index(b"\n") + 1]


QUOTES = {
    "blank before": (b'c1, c2\n0, "one\ntwo"\n1, "c, ""d"\n', 2, "quotes behind blanks taken for quotes"),
    "unbalanced": (b'one\tuno\n"two\tdos\nthree "x"\ttres\nfour\tvier\n', 3, "quotes taken for text, as in line 3"),
    "open for good": (b'a,b\n1,"x\n2,y\n3,z\n', 3, "quotes taken for text, as in line 2"),
    "needed": (b'a,b\n1,"x, y"z\n2,"p, q"\n', 2, "text behind a quoted field in line 2; --quote none"),
    "escaped": (b'a,b\n1,"x \\"y\\" z"\n2,"p"\n', 2, "text behind a quoted field in line 2"),
    "inches": (b'id,size\n1,5"\n2,"6"" pipe"\n', 2, None),
    "all fields": (b'"a"\t"b"\n"x"\t"1"\n"y\ty" \t"2"\n', 2, None),
    "a blank behind": (b'a,b\n"x" ,1\n"y" ,2\n', 2, None),
}  # fmt: skip


@pytest.mark.parametrize("what", QUOTES)
def test_quotes_are_quotes_unless_the_first_records_show_otherwise(tmp_path: Path, what: str) -> None:
    content, count, note = QUOTES[what]
    name = "in.tsv" if b"\t" in content else "in.csv"
    source = open_csv(tmp_path, content, name)
    for block_bytes in (4, 7, 1000):
        records = records_in(read_input(source, 0, block_bytes))
        assert (len(records), b"".join(records)) == (count, content[content.index(b"\n") + 1 :])
    notes = [one for one in source.notes if "quote" in one]
    assert [one.startswith(f"{name}: {note}") for one in notes] == [True] * (note is not None)
    if what == "blank before":
        batch = read_input(source, 0, 1000)[0]
        decoder = source.decoder()
        decoder.observe(batch, 0, 0)
        assert decoder.decode(batch).to_pydict() == {"c1": [0, 1], "c2": ["one\ntwo", 'c, "d']}
