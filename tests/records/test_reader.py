"""Reading inputs in threads: rows are numbered in order, and nobody is idle while a batch waits."""

from __future__ import annotations

import threading
from itertools import takewhile
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recshuf.errors import Stopped
from recshuf.interfaces import Joined
from recshuf.records.batch import RowCounter, concat_batches
from recshuf.records.reader import InputPart, InputReader, ReadingPlan, whole_inputs
from tests.support.effort import examples, mostly_slow
from tests.support.formats.fake_source import FakeSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from recshuf.records.keys import RowRange

    Group = tuple[pa.RecordBatch, list[RowRange]]

ROWS = [[b"%d" % row for row in range(40)], [], [b"a", b"b"]]


class JoiningSource(FakeSource):
    """Reads inputs at once, up to one that has five records, and no more than seven."""

    def read_joined(self, inputs: Sequence[int], block_bytes: int, max_record_bytes: int) -> Joined | None:
        """See `SupportsJoining`."""
        chosen = list(takewhile(lambda index: len(self.rows[index]) != 5, inputs))[:7]
        batches = [
            batch
            for index in chosen
            for fragment in self.fragments(index, block_bytes, max_record_bytes)
            for batch in fragment.batches()
        ]
        return (
            Joined(concat_batches(batches), [len(self.rows[index]) for index in chosen]) if batches else None
        )


def read(source: FakeSource, workers: int) -> tuple[dict[tuple[int, int], bytes], list[tuple[int, int]]]:
    """Return the records by input and row, and which inputs were finished, after how many records each."""
    found: dict[tuple[int, int], bytes] = {}
    finished: list[tuple[int, int]] = []
    lock = threading.Lock()

    def visit(batch: pa.RecordBatch, ranges: list[RowRange]) -> None:
        rows_read = [(file, row + i) for file, row, rows in ranges for i in range(rows)]
        with lock:
            found.update(zip(rows_read, batch.column(0).to_pylist(), strict=True))

    def finish(files: Sequence[int]) -> None:
        with lock:
            finished.extend((file, sum(1 for index, _ in found if index == file)) for file in files)

    inputs = whole_inputs(source)
    InputReader(source, ReadingPlan(workers, 1 << 20, 1 << 20), inputs, visit, finish).run("read")
    return found, finished


@pytest.mark.parametrize(
    ("workers", "counted", "fragment_rows", "batch_rows"),
    [
        (1, True, 40, 1),
        (2, False, 3, 2),
        (5, True, 1, 1),
        (1, False, 40, 40),
        (2, True, 3, 2),
        (5, False, 40, 1),
    ],
)
def test_every_row_is_visited_once_before_its_input_is_finished(
    workers: int, fragment_rows: int, batch_rows: int, *, counted: bool
):
    source = FakeSource(ROWS, fragment_rows=fragment_rows, batch_rows=batch_rows, counted=counted)
    found, finished = read(source, workers)
    assert found == {(file, row): record for file, rows in enumerate(ROWS) for row, record in enumerate(rows)}
    assert sorted(finished) == [(file, len(rows)) for file, rows in enumerate(ROWS)]


@pytest.mark.parametrize(("workers", "counted"), [(1, False), (3, True), (3, False)])
def test_a_part_of_an_input_has_the_rows_that_it_has_in_the_whole(workers: int, *, counted: bool):
    source = FakeSource(ROWS, fragment_rows=3, batch_rows=2, counted=counted)
    found: dict[tuple[int, int], bytes] = {}
    lock = threading.Lock()

    def visit(batch: pa.RecordBatch, ranges: list[RowRange]) -> None:
        rows_read = [(file, row + i) for file, row, rows in ranges for i in range(rows)]
        with lock:
            found.update(zip(rows_read, batch.column(0).to_pylist(), strict=True))

    first_rows = [fragment.first_row for fragment in source.fragments(0, 1 << 20, 1 << 20)]
    for start, stop in ((0, 2), (2, 5), (5, None)):
        part = InputPart(0, start, stop, first_rows[start])
        reader = InputReader(source, ReadingPlan(workers, 1 << 20, 1 << 20), [part], visit)
        before = len(found)
        reader.run("read")
        assert reader.rows_of(0) == len(found) - before
    assert found == {(0, row): record for row, record in enumerate(ROWS[0])}


def list_groups(source: FakeSource, workers: int, block_bytes: int = 1 << 20) -> list[Group]:
    """Return what is visited together."""
    groups: list[Group] = []
    inputs = whole_inputs(source)

    def visit(batch: pa.RecordBatch, ranges: list[RowRange]) -> None:
        groups.append((batch, ranges))

    InputReader(source, ReadingPlan(workers, block_bytes, 1 << 20), inputs, visit).run("read")
    return groups


@pytest.mark.parametrize(("kind", "workers"), [(FakeSource, 3), (JoiningSource, 1)])
@settings(max_examples=examples(200))
@given(
    counts=st.lists(st.integers(0, 60), min_size=1, max_size=30),
    batch_rows=st.integers(1, 9),
    block_bytes=st.integers(1, 4000),
    counted=st.booleans(),
)
def test_what_is_visited_together_follows_each_other(
    kind: type[FakeSource],
    workers: int,
    counts: list[int],
    batch_rows: int,
    block_bytes: int,
    *,
    counted: bool,
):
    rows = [[b"%d" % row for row in range(count)] for count in counts]
    source = kind(rows, fragment_rows=3 * batch_rows, batch_rows=batch_rows, counted=counted)
    rows_read = []
    for batch, ranges in list_groups(source, workers, block_bytes):
        inputs = [one.input_index for one in ranges]
        assert inputs == sorted(set(inputs))
        assert batch.num_rows == sum(one.rows for one in ranges)
        whole = [(i, row) for i in range(inputs[0], inputs[-1] + 1) for row in range(counts[i])]
        found = [(i, first + k) for i, first, count in ranges for k in range(count)]
        assert found == whole[whole.index(found[0]) :][: len(found)] if found else not whole
        rows_read += found
    assert sorted(rows_read) == [(i, row) for i, count in enumerate(counts) for row in range(count)]


@pytest.mark.parametrize("workers", mostly_slow([1, 3], 3))
@settings(max_examples=examples(100))
@given(counts=st.lists(st.integers(0, 9), min_size=40, max_size=80))
def test_inputs_read_at_once_are_finished_after_all_of_their_records(workers: int, counts: list[int]):
    rows = [[b"%d %d" % (index, row) for row in range(count)] for index, count in enumerate(counts)]
    found, finished = read(JoiningSource(rows), workers)
    assert found == {(file, row): one for file, ones in enumerate(rows) for row, one in enumerate(ones)}
    assert sorted(finished) == list(enumerate(counts))


@pytest.mark.parametrize("workers", [1, 5])
def test_an_error_in_a_visit_ends_the_reading(workers: int):
    source = FakeSource(ROWS[:1], fragment_rows=40, batch_rows=1)

    def visit(_: pa.RecordBatch, ranges: list[RowRange]) -> None:
        if any(row <= 17 < row + rows for _, row, rows in ranges):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        InputReader(source, ReadingPlan(workers, 1 << 20, 1 << 20), whole_inputs(source), visit).run("read")


@pytest.mark.parametrize("count", [0, 2])
def test_a_fragment_of_other_records_than_it_said_is_an_error(monkeypatch: pytest.MonkeyPatch, count: int):
    """A row number that two records have, or none, would be an order that nobody can repeat."""

    source = FakeSource([[b"a"]])
    (fragment,) = source.fragments(0, 1 << 20, 1 << 20)
    fragment.record_count = count
    monkeypatch.setattr(source, "fragments", lambda *_: iter([fragment]))
    with pytest.raises(RuntimeError, match=f"a fragment of {count} records yielded"):
        read(source, 1)


# Row numbers


def test_a_stopped_counter_lets_nobody_wait():
    counter = RowCounter()
    counter.stop()
    with pytest.raises(Stopped):
        counter.claim(3, 1)
