"""Reading inputs in threads: rows are numbered in order, and nobody is idle while a batch waits."""

import threading
from collections.abc import Iterator, Sequence
from itertools import takewhile
from random import Random

import pyarrow as pa
import pytest

from recshuf.errors import CheckError, Stopped
from recshuf.interfaces import Fragment, Joined
from recshuf.records.arrays import count_bytes
from recshuf.records.batch import RowCounter, concat_batches
from recshuf.records.keys import RowRange
from recshuf.records.reader import InputPart, InputReader, InputTask, ReadingPlan, group_inputs, whole_inputs
from tests.support.effort import some
from tests.support.formats.fake_source import FakeSource

BLOCK = 1 << 20
ROWS = [[b"%d" % row for row in range(40)], [], [b"a", b"b"]]


class JoiningSource(FakeSource):
    """Reads inputs at once, up to one that has five records, and no more than seven."""

    def read_joined(self, inputs: Sequence[int], block_bytes: int, max_record_bytes: int) -> Joined | None:
        """See `Source`."""
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


class Reading:
    """Reads inputs, and keeps what was visited together: the ranges, and records by input and row."""

    def __init__(
        self, source: FakeSource, workers: int, parts: list[InputPart] | None = None, block_bytes: int = BLOCK
    ):
        self.groups: list[tuple[list[RowRange], dict[tuple[int, int], bytes]]] = []
        self.sizes: list[int] = []
        """Bytes of each group."""
        self.finished: list[tuple[int, int]] = []
        """Inputs, and how many of their records were visited before."""
        self._lock = threading.Lock()
        plan = ReadingPlan(workers, block_bytes, BLOCK)
        self.reader = InputReader(source, plan, parts or whole_inputs(source), self._visit, self._finish)
        self.reader.run("read")

    def _visit(self, batch: pa.RecordBatch, ranges: list[RowRange]) -> None:
        rows = [(index, first + k) for index, first, count in ranges for k in range(count)]
        with self._lock:
            self.sizes.append(count_bytes(batch))
            self.groups.append((ranges, dict(zip(rows, batch.column(0).to_pylist(), strict=True))))

    def _finish(self, inputs: Sequence[int]) -> None:
        with self._lock:
            visited = [index for _, group in self.groups for index, _ in group]
            self.finished.extend((index, visited.count(index)) for index in inputs)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("kind", [FakeSource, JoiningSource])
def test_every_row_is_visited_once_before_its_input_is_finished_with_those_that_follow_it(
    kind: type[FakeSource], workers: int
):
    for seed in some(range(240), 12):
        random = Random(seed)
        most, inputs = random.choice([(60, random.randint(1, 30)), (9, random.randint(40, 80))])
        counts = [random.randint(0, most) for _ in range(inputs)]
        rows = [[b"%d %d" % (index, row) for row in range(count)] for index, count in enumerate(counts)]
        size, block_bytes = random.randint(1, 9), random.randint(1, 4000)
        source = kind(rows, fragment_rows=3 * size, batch_rows=size, counted=random.random() < 0.5)
        reading, visited = Reading(source, workers, block_bytes=block_bytes), []
        for (ranges, records), byte_count in zip(reading.groups, reading.sizes, strict=True):
            if kind is FakeSource and (len(ranges) > 1 or len(records) > size):
                assert byte_count <= block_bytes  # of several batches
            indices = [one.input_index for one in ranges]
            assert indices == sorted(set(indices))
            whole = [(k, row) for k in range(indices[0], indices[-1] + 1) for row in range(counts[k])]
            found = [*records]
            assert found == whole[whole.index(found[0]) :][: len(found)] if found else not whole
            visited += records.items()
        expected = {(index, row): one for index, ones in enumerate(rows) for row, one in enumerate(ones)}
        assert sorted(visited) == [*expected.items()]
        assert sorted(reading.finished) == list(enumerate(counts))


def test_inputs_that_nothing_can_be_joined_with_are_visited_with_those_that_follow():
    """Visits cost some time for each column, as do batches that are kept: small files of many schemas."""

    class LonelySource(JoiningSource):
        def read_joined(
            self, inputs: Sequence[int], block_bytes: int, max_record_bytes: int
        ) -> Joined | None:
            return super().read_joined(inputs[:1], block_bytes, max_record_bytes)

    source = LonelySource([[b"a", b"b"]] * 200)
    runs = [*group_inputs(source, whole_inputs(source), BLOCK, 1)]
    assert len(Reading(source, 1).groups) == len(runs) < 20


@pytest.mark.parametrize(("workers", "counted"), [(1, False), (3, True), (3, False)])
def test_a_part_of_an_input_has_the_rows_that_it_has_in_the_whole(workers: int, *, counted: bool):
    source = FakeSource(ROWS, fragment_rows=3, batch_rows=2, counted=counted)
    found: dict[tuple[int, int], bytes] = {}
    first_rows = [fragment.first_row for fragment in source.fragments(0, BLOCK, BLOCK)]
    for start, stop in ((0, 2), (2, 5), (5, None)):
        reading, before = Reading(source, workers, [InputPart(0, start, stop, first_rows[start])]), len(found)
        for _, records in reading.groups:
            found |= records
        assert reading.reader.rows_of(0) == len(found) - before
    assert found == {(0, row): record for row, record in enumerate(ROWS[0])}


@pytest.mark.parametrize("workers", [1, 5])
def test_an_error_in_a_visit_ends_the_reading(workers: int):
    source = FakeSource(ROWS[:1], fragment_rows=40, batch_rows=1)

    def visit(_: pa.RecordBatch, ranges: list[RowRange]) -> None:
        if any(row <= 17 < row + rows for _, row, rows in ranges):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        InputReader(source, ReadingPlan(workers, BLOCK, BLOCK), whole_inputs(source), visit).run("read")


def test_an_input_is_not_finished_if_a_fragment_could_not_be_made():
    """The other threads find no more fragments then, and a pile set without its records was complete for `--resume`."""

    def make_fragments() -> Iterator[Fragment]:
        yield from FakeSource(ROWS[:1]).fragments(0, BLOCK, BLOCK)
        raise ZeroDivisionError

    task = InputTask([0], make_fragments())
    assert task.take() is not None
    assert not task.release()
    with pytest.raises(ZeroDivisionError):
        task.take()
    assert task.take() is None
    assert not task.release()


@pytest.mark.parametrize("count", [0, 2])
def test_a_fragment_of_other_records_than_it_said_is_an_error(monkeypatch: pytest.MonkeyPatch, count: int):
    """A row number that two records have, or none, would be an order that nobody can repeat."""
    source = FakeSource([[b"a"]])
    (fragment,) = source.fragments(0, BLOCK, BLOCK)
    fragment.record_count = count
    monkeypatch.setattr(source, "fragments", lambda *_: iter([fragment]))
    with pytest.raises(
        CheckError, match=f"^input 0: a fragment of {count} records yielded .1 of them; run again, and report"
    ):
        Reading(source, 1)


@pytest.mark.parametrize("kind", [FakeSource, JoiningSource])
@pytest.mark.parametrize("change", [-2, 1])
def test_an_input_of_other_records_than_were_counted_is_an_error(kind: type[FakeSource], change: int):
    """A format that yields too few fragments would lose records in silence."""
    for inputs in (1, 30):
        source = kind([[b"a", b"b", b"c"]] * inputs)
        wrong = source.inputs[-1]._replace(record_count=3 - change)
        source.inputs = (*source.inputs[:-1], wrong)
        said = rf"{wrong.name}: 3 records read, {3 - change} counted before; run again, and report this"
        with pytest.raises(CheckError, match=said):
            Reading(source, 2)
        source.inputs = (*source.inputs[:-1], wrong._replace(record_count_is_exact=False))
        Reading(source, 2)


def test_a_stopped_counter_lets_nobody_wait():
    counter = RowCounter()
    counter.stop()
    with pytest.raises(Stopped):
        counter.claim(3, 1)
