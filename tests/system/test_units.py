"""Sizes as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recshuf.errors import UsageError
from recshuf.system.units import format_size, parse_size, round_up

SIZES = {
    "0": 0, "7": 7, "7B": 7, "1k": 1024, "1K": 1024, "1KiB": 1024, "1KB": 1000, "4G": 4 << 30, "4GiB": 4 << 30,
    "4gb": 4 * 10**9, " 2 MiB ": 2 << 20, "1.5M": 3 << 19, "0.1GB": 10**8, "1e3": 1000, "2E2KB": 200_000,
    "3T": 3 << 40, "3TB": 3 * 10**12, "1P": 1 << 50, "1PB": 10**15, "1PiB": 1 << 50,
}  # fmt: skip
"""As GNU coreutils read them: a letter alone is a power of 1024, one with B a power of 1000."""


def test_sizes_are_those_of_coreutils() -> None:
    assert {text: parse_size(text) for text in SIZES} == SIZES


def test_other_text_is_refused() -> None:
    for text in ["", "B", "-1", "1.", ".5", "1 2", "1X", "1KIBB", "1e999", "nan", "٣", "0x10", "1_000"]:
        with pytest.raises(UsageError, match="is not a size; write for example"):
            parse_size(text)


@given(
    st.integers(0, 9 * 10**15)
    | st.integers(1, 999).flatmap(lambda k: st.sampled_from([k * 10**6 - 1, 10**9 - k]))
)
def test_a_size_that_is_shown_is_a_size_of_three_digits(size: int) -> None:
    shown = format_size(size)
    assert "e" not in shown
    assert parse_size(shown) == pytest.approx(size, rel=0.005)


@given(size=st.integers(1, 10**15))
def test_a_size_that_is_shown_as_it_is_can_be_given(size: int) -> None:
    shown = parse_size(format_size(round_up(size)))
    assert size <= shown <= size * 1.011
    assert round_up(shown) == shown
