"""What the cutter of CSV says about records that are too long."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from recshuf.errors import InputError
from recshuf.formats.csv import FORMAT
from recshuf.interfaces import ReadOptions
from tests.support.format_tools import read_input
from tests.support.line_tools import give

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
