"""Wide tables are shuffled and copied in turn, and each ratio is printed."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from benchmarks import wide


@pytest.mark.slow
def test_each_wide_table_is_compared_with_a_copy() -> None:
    done = CliRunner().invoke(wide.main, ["--small"])
    assert done.exit_code == 0, done.output
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.output.splitlines()]
    assert rows[0] == wide.HEADS
    assert [row[0] for row in rows[2:]] == [*wide.CASES]
    assert all(float(row[5]) > 0 for row in rows[2:])


def test_a_name_of_no_wide_table_is_refused() -> None:
    done = CliRunner().invoke(wide.main, ["none"])
    assert done.exit_code == 2
    assert "none: choose among parquet" in done.output
