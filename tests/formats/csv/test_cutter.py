"""Inputs of CSV with nothing in them, and records that are too long."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from recshuf.errors import InputError
from recshuf.formats.csv import FORMAT
from recshuf.interfaces import ReadOptions
from tests.support.formats.format_tools import read_input
from tests.support.formats.line_tools import give

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("header_lines", [0, 1])
def test_a_quote_that_is_never_closed_is_named_where_a_record_is_too_long(
    tmp_path: Path, header_lines: int
) -> None:
    file = give(tmp_path / "in.csv", b'1,"' + b"x\n" * 100_000)
    with pytest.raises(InputError, match=r"in\.csv: byte 0: .*longer than 1000 bytes.* close a quoted field"):
        read_input(
            FORMAT.open_source([file], ReadOptions(header_lines=header_lines, max_record_bytes=1000)), 0, 500
        )


def test_a_byte_order_mark_alone_is_an_empty_input(tmp_path: Path) -> None:
    files = [give(tmp_path / "mark.csv", b"\xef\xbb\xbf"), give(tmp_path / "in.csv", b"a,b\n1,2\n")]
    source = FORMAT.open_source(files, ReadOptions(finds_header=True))
    assert [sum(batch.num_rows for batch in read_input(source, index, 100)) for index in range(2)] == [0, 1]
    assert source.layout.header == b"a,b\n"  # type: ignore[attr-defined]
