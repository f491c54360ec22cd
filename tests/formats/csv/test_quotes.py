"""The ends of CSV records against an automaton that looks at one byte after the other."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from recshuf.formats.csv import quotes
from recshuf.formats.csv.cutter import CsvCutter
from recshuf.formats.csv.quotes import Dialect, QuoteScanner, State
from tests.support.effort import examples
from tests.support.formats.format_tools import reading_csv

DIALECT = Dialect(b",", b'"')
nasty = st.text('a," \n\r', max_size=60) | st.lists(
    st.sampled_from(['"', '""', ",", " ", "\n", "x", '"a\nb"', 'a"b', '"a""b",', "\r\n"]), max_size=40
).map("".join)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the size of a piece, which is no option: short examples then reach over many of them."""
    monkeypatch.setattr(quotes, "PIECE_BYTES", 5)


def walk(data: bytes, *, is_padded: bool = False) -> tuple[list[int], list[bool]]:
    """Return the ends of records, and for each position whether it is inside of quotes."""
    state, ends, inside = "start", [], []
    for position, byte in enumerate(data):
        inside.append(state == "quoted")
        char = chr(byte)
        if state == "quoted":
            state = "closed" if char == '"' else "quoted"
        elif char == '"':
            state = "quoted" if state in ("start", "closed") else "plain"
        elif not (is_padded and char == " " and state == "start"):
            state = "start" if char in ",\n\r" else "plain"
            if char == "\n":
                ends.append(position + 1)
    return ends, [*inside, state == "quoted"]


def scan(data: bytes, *, is_padded: bool = False) -> tuple[list[int], State]:
    scanner = QuoteScanner(DIALECT._replace(is_padded=is_padded))
    pieces = list(scanner.find_ends(np.frombuffer(data, np.uint8), 0, State()))
    return [end for ends, _ in pieces for end in ends.tolist()], pieces[-1][1] if pieces else State()


@settings(max_examples=examples(800))
@given(nasty, st.booleans())
@example('"a\nb" "\n', True)  # the first piece ends behind a field, the next begins with a blank and a quote
def test_records_end_where_an_automaton_says(text: str, is_padded: bool) -> None:
    ends, inside = walk(text.encode(), is_padded=is_padded)
    found, state = scan(text.encode(), is_padded=is_padded)
    assert found == ends
    assert state.is_quoted == inside[-1]


def test_other_dialects_cut_records_alike() -> None:
    text = '1,"a, ""b""\nc",x\n2,pla"in,y\r\n3,"",;\t\n4,\'|\n"5\n6",;' * 3
    ends, _ = walk(text.encode())
    for delimiter, quote in (("\t", "'"), (";", '"'), ("|", "~"), ("'", ",")):
        table = str.maketrans(
            {",": delimiter, '"': quote, delimiter: "_", quote: "-"} | {",": delimiter, '"': quote}
        )
        data = np.frombuffer(text.translate(table).encode(), np.uint8)
        scanner = QuoteScanner(Dialect(delimiter.encode(), quote.encode()))
        found = [end for part, _ in scanner.find_ends(data, 0, State()) for end in part.tolist()]
        assert found == ends, (delimiter, quote)
    unquoted = QuoteScanner(Dialect(b",", b"")).find_ends(np.frombuffer(text.encode(), np.uint8), 0, State())
    assert sum(part.size for part, _ in unquoted) == text.count("\n")


@settings(max_examples=examples(800))
@given(nasty, nasty)
def test_a_sync_is_outside_of_quotes_whatever_comes_before(before: str, text: str) -> None:
    data = text.encode()
    sync = QuoteScanner(DIALECT).find_sync(np.frombuffer(data, np.uint8))
    if sync >= 0:
        assert data[sync : sync + 1] not in (b'"', b"")
        assert not walk(before.encode() + data)[1][len(before.encode()) + sync]


@settings(max_examples=examples(400))
@given(nasty)
def test_the_last_end_is_that_of_the_automaton(text: str) -> None:
    cutter = CsvCutter(reading_csv(delimiter=b","))
    data = np.frombuffer(text.encode(), np.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("recshuf.formats.csv.quotes._SYNC_BYTES", (3, 9))
        assert cutter.find_last_end(data) == max(walk(text.encode())[0], default=0)
