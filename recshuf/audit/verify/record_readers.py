"""Reading all records of a set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recshuf.audit.verify.memory_budget import READING_SHARE
from recshuf.job.plan import Limits, sum_known
from recshuf.job.reading_planner import halve_blocks, plan_reading
from recshuf.records.reading.input_tasks import whole_inputs
from recshuf.records.reading.reader import InputReader
from recshuf.records.rows import split_ranges
from recshuf.storage.reading.objects import count_read_bytes
from recshuf.system.memory import release_freed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from recshuf.audit.verify.record_sets import RecordSet
    from recshuf.audit.verify.word_hashing import HashKey
    from recshuf.interfaces import InputSummary
    from recshuf.job.job import Job
    from recshuf.job.progress import Progress
    from recshuf.records.rows import RowRange

    VisitHashes = Callable[[NDArray[np.uint64], int, int], None]
    """Takes hashes of consecutive records, shape ``(n, 2)``, their file's index and the first row; called in threads."""
    VisitTable = Callable[[pa.RecordBatch, int, int], None]
    """The same with a table in place of hashes."""

_DECODING_FACTOR = 4.0
"""Memory of decoding a batch, as a multiple of its size."""
_HASHING_BYTES = 12 << 20
"""What hashing takes in each thread beside the batch."""
BLOCKS = halve_blocks(1 << 20)
"""Sizes of the blocks in which records may be read: small ones leave memory to long records."""
_LARGER_BLOCKS = halve_blocks(8 << 20)[:-1]
"""The same for long records, of which a block should hold some: a batch takes some 100 us for every column."""
_LONG_RECORDS = 16
_LARGER_SHARE = 8
"""Larger blocks take at most this part of the memory limit, so that as long records fit as without them."""
_RECORD_COPIES = 8
"""Verify keeps no piles, so it takes longer records than the shuffle that wrote them."""


class RecordReader:
    """Reads all records of a set in many threads, as often as asked.

    Parameters
    ----------
    key
        Key of the hashes, one for all sets that are compared.
    """

    def __init__(self, record_set: RecordSet, key: HashKey, job: Job, progress: Progress) -> None:
        self.record_set = record_set
        self._key = key
        self._progress = progress
        copies = 1 + (_DECODING_FACTOR if record_set.decoder else 0)

        def worker_bytes(block: int) -> int:
            return record_set.source.reading_bytes(block) + int(copies * block) + _HASHING_BYTES

        are_objects = any(file.opener for file in record_set.files)
        limits = Limits(
            job.memory_bytes,
            job.workers,
            job.read.max_record_bytes,
            count_reserved_bytes=lambda memory: count_read_bytes(memory, job.workers) if are_objects else 0,
        )
        larger = [
            block
            for block in _LARGER_BLOCKS
            if block <= _LONG_RECORDS * _average_record(record_set.source.inputs)
            and job.workers * worker_bytes(block) * _LARGER_SHARE <= job.memory_bytes
        ]
        blocks = [*larger, *BLOCKS]
        self._plan = plan_reading(worker_bytes, limits, blocks, READING_SHARE, record_copies=_RECORD_COPIES)

    @property
    def max_record_bytes(self) -> int:
        """Longest record that the memory limit allows."""
        return self._plan.max_record_bytes

    def infer_schema(self) -> pa.Schema | None:
        """Return the schema of the tables; reads all records if no file states it. None without a decoder."""
        decoder = self.record_set.decoder
        if decoder is None:
            return None
        if decoder.schema is None:
            self._read("learn", self.record_set.observe)
        return decoder.finish()

    def read_hashes(self, verb: str, visit: VisitHashes) -> None:
        """Call `visit` with the hashes of all records; `verb` names the pass for progress."""

        def hash_and_visit(batch: pa.RecordBatch, file: int, first_row: int) -> None:
            visit(self.record_set.hash(batch, file, first_row, self._key), file, first_row)

        self._read(verb, hash_and_visit)

    def read_tables(self, visit: VisitTable) -> None:
        """Call `visit` with all records, decoded to tables."""

        def decode_and_visit(batch: pa.RecordBatch, file: int, first_row: int) -> None:
            visit(self.record_set.decode(batch, file, first_row), file, first_row)

        self._read("read", decode_and_visit)

    def _read(self, verb: str, visit: VisitTable) -> None:
        source = self.record_set.source
        total = sum_known([one.record_count for one in source.inputs])
        self._progress.start(f"{verb} {self.record_set.name}", total, None)

        def visit_parts(batch: pa.RecordBatch, ranges: list[RowRange]) -> None:
            for part, file, row in split_ranges(batch, ranges):
                visit(part, file, row)
                self._progress.advance(part.num_rows, int(part.nbytes))

        release_freed()  # what matching, statistics or another reading left behind
        InputReader(source, self._plan, whole_inputs(source), visit_parts).run("verify")
        release_freed()


def _average_record(inputs: Sequence[InputSummary]) -> int:
    """Return the bytes of a record on average; 0 if they are not known."""
    records = sum_known([one.record_count for one in inputs])
    native_bytes = sum_known([one.native_bytes for one in inputs])
    return native_bytes // records if records and native_bytes else 0
