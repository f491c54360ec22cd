"""The plan of a run and its ingredients: sizes of inputs, limits, costs, the cut. Pure: integers in, integers out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from recshuf.dataclass import dataclass
from recshuf.errors import UsageError
from recshuf.records.keys import MAX_PILES, apportion

if TYPE_CHECKING:
    from fractions import Fraction

    from numpy.typing import NDArray


MAX_SHARDS = 10**6
_UNKNOWN = -1


class InputSize(NamedTuple):
    """Counts and sizes of one input; None if unknown."""

    record_count: int | None
    byte_count: int | None
    """Size of its records as slices, with keys."""
    file_bytes: int | None
    is_exact: bool = True
    """Whether `record_count` is exact, not estimated."""


class InputSizes(Sequence[InputSize]):
    """Counts and sizes of all inputs, as columns, because there may be millions.

    `numbers` are records, bytes of records and bytes of the file of each input, shape ``(3, n)``; -1 if unknown. `is_exact` tells
    whether the number of records is, shape ``(n,)``.
    """

    def __init__(self, numbers: NDArray[np.int64], is_exact: NDArray[np.bool_]) -> None:
        self._numbers = numbers
        self._is_exact = is_exact
        self.record_count, self.byte_count, self.file_bytes = map(_sum, numbers)
        """Of all inputs; None if that of one is unknown."""
        self.known_bytes = _sum(np.where(numbers[2] == _UNKNOWN, numbers[1], numbers[2]))
        """Bytes of all files, where they are unknown of their records; None if both are unknown of an input."""
        self.byte_counts: NDArray[np.int64] = np.maximum(numbers[1], 0)
        """Bytes of the records of each input, 0 if unknown, shape ``(n,)``."""
        self.are_exact = bool(is_exact.all())

    @classmethod
    def of(cls, inputs: Iterable[InputSize]) -> InputSizes:
        if isinstance(inputs, InputSizes):
            return inputs
        sizes = list(inputs)
        rows = [[_UNKNOWN if number is None else number for number in size[:3]] for size in sizes]
        numbers = np.array(rows, np.int64).reshape(-1, 3).T
        return cls(np.ascontiguousarray(numbers), np.array([size.is_exact for size in sizes], np.bool_))

    def __len__(self) -> int:
        return len(self._is_exact)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return InputSizes(self._numbers[:, index], self._is_exact[index])
        numbers = self._numbers[:, index].tolist()
        count, size, file_bytes = (None if number == _UNKNOWN else number for number in numbers)
        return InputSize(count, size, file_bytes, bool(self._is_exact[index]))

    def __iter__(self) -> Iterator[InputSize]:
        for index in range(len(self)):
            yield self[index]


def _sum(numbers: NDArray[np.int64]) -> int | None:
    return None if (numbers == _UNKNOWN).any() else int(numbers.sum())


INPUT_BYTES = 4 << 10
"""Memory for each input until the end of the run, whatever its size: name, path, counts and stamp."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a run may use."""

    memory_bytes: int
    workers: int
    max_record_bytes: int
    pile_count: int | None = None
    """Pile count chosen by the user."""
    spill_compression: str = "none"
    """How spilled records are compressed, one of `SPILL_COMPRESSIONS`."""
    input_count: int = 0
    """Number of inputs; `make_plan` sets it."""
    count_reserved_bytes: Callable[[int], int] = field(default=lambda _: 0)
    """Returns the memory for other things than records under a memory limit."""
    spills_all: bool = False
    """Whether no pile stays in memory."""
    processes: int = 0
    """Of how many processes each may use this; see `Job`."""

    @property
    def taken_bytes(self) -> int:
        """Memory for other things than records: names and counts of inputs, and what is reserved.

        Of names and counts at most a quarter counts, so that a small limit allows thousands of inputs.
        """
        inputs_bytes = min(INPUT_BYTES * self.input_count, self.memory_bytes // 4)
        return inputs_bytes + self.count_reserved_bytes(self.memory_bytes)

    @property
    def room_bytes(self) -> int:
        return self.memory_bytes - self.taken_bytes


@dataclass(frozen=True, slots=True)
class Costs:
    """Memory needs of the formats: functions of the block size and of the threads of a sink."""

    reading_bytes: Callable[[int], int]
    sink_bytes: Callable[[int], int]
    decoding_factor: float = 1.0
    """Size of a batch after conversion, as a multiple of its native size; 1 without a conversion."""
    added_bytes: int = 0
    """Bytes of provenance and of further words of keys per record."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How the output is cut into shards; exactly one of the first three fields is set."""

    shards: int | None = None
    """Of all parts together; at least as many as these."""
    shard_records: int | None = None
    shard_bytes: int | None = None
    shares: tuple[Fraction, ...] = ()
    """Of the parts of a split, no shard of which has records of two; empty if there are none."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Every number of a run.

    Attributes
    ----------
    record_count
        Records expected; None for streams.
    record_count_is_exact
        Whether it is exact, and no estimate.
    byte_count
        Expected bytes of the records; None for streams.
    output_count
        Most records to write (``--head-count``); None for all.
    pile_count
        Number of piles.
    pile_bytes
        Size above which a pile is split.
    set_of_input
        Pile set of each input; of one that several tasks read, that of its last part.
    block_bytes
        Bytes of an input that are read at once.
    max_record_bytes
        Longest record accepted.
    scatter_workers
        Threads of the first pass.
    gather_workers
        Threads of the second pass.
    shard_writers
        Shards that are written at the same time.
    sink_threads
        Threads that encode a shard.
    units_in_flight
        Piles being loaded, ordered or waiting to be written, for each shard writer.
    resident_bytes
        Most bytes of piles in memory; 0 if they are not expected to fit.
    spilled_bytes
        Expected bytes of spilled records, before compression.
    peak_memory_bytes
        Expected peak, without Python and libraries.
    peak_disk_bytes
        Expected peak without the inputs: spilled piles and output. The output is assumed to be as large as the input
        files or, if their size is unknown, as their records.
    descriptors
        Most file descriptors that are open at once.
    shard_count
        Number of shards; None if it depends on a number of records that is not known yet.
    spill_compression
        Compression of spilled records. No other number depends on it, because the ratio is not known.
    added_bytes
        Bytes of provenance and of further words of keys per record, included in `byte_count`.
    value_bytes
        Size of the largest pile that is ordered alone, with no others in memory. Records of one value are in one pile, and may
        need that.
    spilled_to
        Prefix in an object store to which each pile set is uploaded when it is written; empty if they stay on a disk.
    features
        What the run does besides the order, as in the manifest, without figures: ``group_by``, ``dedup``, ``split`` or
        ``sources``.
    processes
        Processes of this machine, each of which has these workers and this memory; 0 if there is none but this.
    """

    record_count: int | None
    record_count_is_exact: bool
    byte_count: int | None
    output_count: int | None
    pile_count: int
    pile_bytes: int
    set_of_input: tuple[int, ...]
    block_bytes: int
    max_record_bytes: int
    scatter_workers: int
    gather_workers: int
    shard_writers: int
    sink_threads: int
    units_in_flight: int
    resident_bytes: int
    spilled_bytes: int
    peak_memory_bytes: int
    peak_disk_bytes: int
    descriptors: int
    shard_count: int | None
    spill_compression: str = "none"
    added_bytes: int = 0
    value_bytes: int = 0
    spilled_to: str = ""
    features: Mapping[str, Any] = field(default_factory=dict)
    processes: int = 0

    @property
    def set_count(self) -> int:
        return max(self.set_of_input, default=0) + 1

    def count_parts(self) -> int:
        """Return into how many parts a pile is split when it is gathered, since it would not fit in memory; mostly 1."""
        size = (self.byte_count or 0) // self.pile_count
        return 1 if size <= self.pile_bytes else count_parts(size, self.pile_bytes)

    def to_json(self) -> dict[str, object]:
        sets = {"set_of_input": list(self.set_of_input), "set_count": self.set_count}
        values = asdict(self) | sets | {"region_piles": 1}  # other versions let small piles share a region
        del values["features"]
        return values | dict(self.features)


def count_parts(pile_bytes: int, most_bytes: int) -> int:
    """Return into how many piles one is split that is larger than `most_bytes`: of about half of that.

    >>> count_parts(100, 40), count_parts(41, 40)
    (5, 3)
    """
    return min(MAX_PILES, max(2, -(-2 * pile_bytes // most_bytes)))


def sum_known(values: Iterable[int | None]) -> int | None:
    """Return the sum of numbers; None if one is None.

    >>> sum_known([1, 2]), sum_known([1, None])
    (3, None)
    """
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def count_shards(cut: Cut, record_count: int | None, output_bytes: int | None) -> int | None:
    """Return the number of shards; None if it depends on a number that is None.

    >>> count_shards(Cut(shard_records=10), 21, None)
    3
    """
    if cut.shards is not None:
        return cut.shards
    if cut.shares:
        total = record_count if cut.shard_records else output_bytes
        sizes = [] if total is None else apportion(total, cut.shares)
        whole = replace(cut, shares=())
        return sum_known(count_shards(whole, size, size) for size in sizes) if sizes else None
    total, size = (record_count, cut.shard_records) if cut.shard_records else (output_bytes, cut.shard_bytes)
    if size is None:
        raise ValueError("a cut needs one of its fields")
    count = None if total is None else max(1, -(-total // size))
    if count is not None and count > MAX_SHARDS:
        flag, remedy = "--shard-bytes", "give more, with a unit, such as 512MB"
        if cut.shard_records:
            flag, remedy = "--shard-records", "give more"
        raise UsageError(f"{flag} {size}: makes {count:,} shards, and {MAX_SHARDS:,} are possible; {remedy}")
    return count


def cut_parts(cut: Cut, sizes: Sequence[int], output_bytes: int) -> list[list[int]]:
    """Return the first record of each shard of each part, of so many records in all, and the end of its last shard.

    >>> from fractions import Fraction
    >>> cut_parts(Cut(shards=4, shares=(Fraction(3, 4), Fraction(1, 4))), [30, 10], 0)
    [[0, 10, 20, 30], [30, 40]]
    """
    counts = cut.shards and [1 + more for more in apportion(cut.shards - len(sizes), cut.shares)]
    edges, begin, total = [], 0, max(1, sum(sizes))
    for part, size in enumerate(sizes):
        own = Cut(shards=counts[part]) if counts else replace(cut, shares=())
        edges.append([begin + edge for edge in shard_bounds(own, size, output_bytes * size // total)])
        begin += size
    return edges


def shard_bounds(cut: Cut, record_count: int, output_bytes: int) -> list[int]:
    """Return the first record of each shard in the shuffled order, and the number of records at the end.

    >>> shard_bounds(Cut(shards=3), 10, 0), shard_bounds(Cut(shard_records=4), 10, 0)
    ([0, 4, 7, 10], [0, 4, 8, 10])
    """
    shards = count_shards(cut, record_count, output_bytes) or 1
    if cut.shard_records is not None:
        return [*range(0, max(1, record_count), cut.shard_records), record_count]
    share, longer = divmod(record_count, shards)
    return [shard * share + min(shard, longer) for shard in range(shards + 1)]
