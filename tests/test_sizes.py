"""Sizes mean what GNU coreutils mean by them, and those that are shown can be given back."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from recshuf.errors import UsageError
from recshuf.system.units import format_size, parse_size, round_up

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Run

UNITS = {
    "": 1, "B": 1,
    "K": 2**10, "KiB": 2**10, "KB": 10**3,
    "M": 2**20, "MiB": 2**20, "MB": 10**6,
    "G": 2**30, "GiB": 2**30, "GB": 10**9,
    "T": 2**40, "TiB": 2**40, "TB": 10**12,
    "P": 2**50, "PiB": 2**50, "PB": 10**15,
}  # fmt: skip
"""As `info coreutils 'Block size'` has them."""


@given(
    st.integers(0, 10**6), st.sampled_from(["", ".5", ".25", "e2"]), st.sampled_from(sorted(UNITS)), st.data()
)
def test_a_size_is_its_number_times_its_unit(whole: int, rest: str, unit: str, data: st.DataObject) -> None:
    cased = data.draw(st.sampled_from([unit, unit.upper(), unit.lower()]))
    text = data.draw(st.sampled_from(["{}{}", "{} {}", " {}{} "])).format(f"{whole}{rest}", cased)
    assert parse_size(text) == int(Fraction(f"{whole}{rest}") * UNITS[unit])


@pytest.mark.parametrize(
    "text", ["", "B", "-1", "1 2", "1X", "1KBB", "1,5GB", "1e+3MB", "0x10", "\u0661GB", "nan"]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size; write for example 300MB"):
        parse_size(text)


@given(st.integers(0, 10**19))
@example(999_499)
@example(999_500)
@example(999_500_000)
@example(999_999_999_999)
@example(10**16)
def test_a_size_that_is_shown_can_be_given_back(count: int) -> None:
    shown = format_size(count)
    number, unit = shown.split()
    assert abs(parse_size(shown) - count) <= count * Fraction(1, 199)
    assert len(number.replace(".", "")) <= 3 or unit == "TB"
    assert count <= round_up(count) <= count * Fraction(102, 100) + 1
    if unit != "TB":
        assert parse_size(format_size(round_up(count))) == round_up(count)


@pytest.mark.parametrize(("text", "memory"), [("1G", 2**30), ("1GB", 10**9), ("1.5GiB", 3 * 2**29)])
def test_the_command_takes_memory_in_these_units(call: Run, tmp_path: Path, text: str, memory: int) -> None:
    (tmp_path / "in.txt").write_bytes(b"a\n" * 9)
    plans = [
        json.loads(call(tmp_path / "in.txt", "--memory", given, "--plan", "--report", "-").stdout)
        for given in (text, str(memory), str(memory - 10**8))
    ]
    assert plans[0] == plans[1] != plans[2]
