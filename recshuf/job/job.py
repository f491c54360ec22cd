"""A job: everything a user may ask of a run, validated once at the edge."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from recshuf.errors import UsageError
from recshuf.interfaces import ReadOptions, WriteOptions
from recshuf.piles.layout import SPILL_COMPRESSIONS
from recshuf.records.keys import MAX_PILES, MAX_SEED
from recshuf.system.memory import available_bytes

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

    from recshuf.job.plan import Cut

SMALLEST_MEMORY = 64 * 10**6


@dataclass(frozen=True, slots=True)
class Job:
    """What to shuffle, where to, and how.

    Raises
    ------
    UsageError
        When a value is out of range or options contradict each other.
    """

    inputs: tuple[str, ...]
    """Files, directories, globs, or ``-`` for standard input; none means standard input."""
    output: str | None
    """A file, a directory, or ``-`` or None for standard output."""
    format: str | None = None
    to: str | None = None
    cut: Cut | None = None
    """How the output is cut; None for one shard for each input in a directory, and one in a file."""
    seed: int | None = None
    """None to draw one, or to take that of the run that is continued."""
    memory_bytes: int = field(default_factory=lambda: max(SMALLEST_MEMORY, available_bytes() // 2))
    workers: int = 1
    temp_dir: Path | None = None
    spill_compression: str = "none"
    """How records that are spilled are compressed, one of `SPILL_COMPRESSIONS`."""
    head_count: int | None = None
    pile_count: int | None = None
    overwrite: bool = False
    resume: bool = False
    """Go on from what an earlier run of the same job has finished."""
    verify: bool = False
    """Compare the shards with the inputs before they are put in place."""
    provenance: bool = False
    """Add where each record was read to the output."""
    check_space: bool = True
    """Refuse a run that the disk has no room for."""
    quarantine: Path | None = None
    """Where lines go that do not parse; None where they are errors."""
    read: ReadOptions = field(default_factory=ReadOptions)
    write: WriteOptions = field(default_factory=WriteOptions)
    stdin: BinaryIO | None = None
    stdout: BinaryIO | None = None

    def __post_init__(self) -> None:
        _check("--seed", self.seed, 0, MAX_SEED)
        _check("--memory", self.memory_bytes, SMALLEST_MEMORY, None)
        _check("--workers", self.workers, 1, 1024)
        _check("--head-count", self.head_count, 0, None)
        _check("--piles", self.pile_count, 1, MAX_PILES)
        _check("--header", self.read.header_lines, 0, None)
        _check("--max-record-bytes", self.read.max_record_bytes, 1, 2**32 - 1)
        if self.cut is not None:
            _check("--shards", self.cut.shards, 1, 10**6)
            _check("--shard-records", self.cut.shard_records, 1, None)
            _check("--shard-bytes", self.cut.shard_bytes, 1, None)
        if self.spill_compression not in SPILL_COMPRESSIONS:
            raise UsageError(
                f"--spill-compression {self.spill_compression} is not possible; choose one of "
                f"{', '.join(SPILL_COMPRESSIONS)}"
            )
        if not self.read.separator:
            raise UsageError("--separator is empty; give at least one byte")
        if self.resume and (self.reads_stdin or self.writes_stdout):
            raise UsageError(
                "--resume: a run can be continued between files only, not from standard input or to standard output"
            )
        if self.verify and (self.reads_stdin or self.writes_stdout):
            raise UsageError(
                "--verify: both sides are read again, which standard input and output cannot be; name files"
            )
        if self.verify and self.quarantine is not None:
            raise UsageError("--verify and --on-bad-record quarantine: exclude each other; give one of them")
        if "-" in self.inputs and len(self.inputs) > 1:
            raise UsageError("standard input (-) cannot be mixed with other inputs; give it alone")

    @property
    def reads_stdin(self) -> bool:
        """Tell whether the only input is standard input."""
        return self.inputs in ((), ("-",))

    @property
    def writes_stdout(self) -> bool:
        """Tell whether the output goes to standard output."""
        return self.output in (None, "-")


def _check(option: str, value: int | None, least: int, most: int | None) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise UsageError(f"{option} {value!r} is not a whole number")
    if value < least or (most is not None and value > most):
        limits = f"at least {least}" if most is None else f"from {least} to {most}"
        raise UsageError(f"{option} {value} is out of range; it must be {limits}")
