"""What a run tells: its progress, and its figures when it is finished."""

from __future__ import annotations

import sys
import warnings
from abc import abstractmethod
from collections.abc import Mapping  # noqa: TC003 - for typing.get_type_hints
from dataclasses import asdict, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from recshuf.dataclass import dataclass
from recshuf.errors import RecshufWarning
from recshuf.job.plan import Plan  # noqa: TC001 - for typing.get_type_hints
from recshuf.system.units import count_of, format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from recshuf.storage.requests import Requests


@runtime_checkable
class Progress(Protocol):
    """Receives the progress of a run. Called from many threads."""

    def start(self, name: str, record_total: int | None, byte_total: int | None) -> None:
        """Begin a pass; totals are estimates, None if unknown."""

    def advance(self, records: int, byte_count: int) -> None:
        """Add records and bytes to the pass."""

    def warn(self, message: str) -> None:
        """Show a warning; the run continues."""

    def stop(self) -> None:
        """End the display, after success or failure. Idempotent."""


class SilentProgress:
    """Progress that ignores all calls."""

    def start(self, name: str, record_total: int | None, byte_total: int | None) -> None: ...
    def advance(self, records: int, byte_count: int) -> None: ...
    def warn(self, message: str) -> None: ...
    def stop(self) -> None: ...


class PythonWarnings(SilentProgress):
    """Progress that issues warnings of Python only, in the words that a function makes of them."""

    def __init__(self, words: Callable[[str], str] = str) -> None:
        self._words = words

    def warn(self, message: str) -> None:
        """Issue a `RecshufWarning` that names the line outside of recshuf which is running."""
        frame, level = sys._getframe(), 1  # noqa: SLF001 - as `warnings` does
        while frame.f_back is not None and f"{frame.f_globals.get('__name__')}.".startswith("recshuf."):
            frame, level = frame.f_back, level + 1
        warnings.warn(self._words(message), RecshufWarning, stacklevel=level)


_OPTIONAL = ("uploads", "downloads")


@dataclass(frozen=True, slots=True)
class PassReport:
    """Figures of one pass."""

    name: str
    """``scatter``, ``gather``, ``verify`` or ``commit``."""
    seconds: float
    records: int
    byte_count: int
    """Bytes of the records, as read."""

    @property
    def bytes_per_second(self) -> float:
        """Bytes per second of the pass; 0 if it took no time."""
        return self.byte_count / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class FileReport:
    """One input or one shard."""

    name: str
    records: int
    file_bytes: int | None
    """Size on disk; None for a stream."""
    quarantined: int = 0
    """Records of an input in quarantine; `records` includes them."""
    checksum: str | None = None
    """xxh3 checksum of a shard in a directory, 128 bits as hexadecimal digits; None for other files."""


@dataclass(frozen=True, slots=True)
class UploadReport:
    """Figures of the requests to the object store that holds the output."""

    requests: int
    """Requests made, with `retries`."""
    retries: int
    parts: int
    """Parts of shards that were uploaded."""
    byte_count: int
    """Bytes of these parts."""
    median_part_bytes: int


@dataclass(frozen=True, slots=True)
class DownloadReport:
    """Figures of the requests to the object stores that hold the inputs."""

    requests: int
    """Requests made, with `retries`."""
    retries: int
    byte_count: int
    """Bytes of the inputs that were received."""
    median_request_bytes: int
    """Median of the bytes of a request that reads an input."""

    @classmethod
    def of(cls, stores: Sequence[Requests]) -> DownloadReport | None:
        """Return the sum of the requests to some stores; None if there are none."""
        sizes = sorted(size for store in stores for size in store.read_sizes)
        if not stores:
            return None
        return cls(
            sum(store.count for store in stores),
            sum(store.retries for store in stores),
            sum(sizes),
            sizes[len(sizes) // 2] if sizes else 0,
        )


_SHOWN = 5


class Report:
    """Figures of a finished job. Its `repr` is some lines; `to_json` has all of it."""

    __slots__ = ()
    warnings: tuple[str, ...]

    @abstractmethod
    def summarize(self) -> Iterator[str]:
        """Yield some lines."""

    def __repr__(self) -> str:
        more = len(self.warnings) - _SHOWN
        lines = [*self.summarize(), *(f"warning: {text}" for text in self.warnings[:_SHOWN])]
        lines += [count_of(more, "more warning")] if more > 0 else []
        return f"<{type(self).__name__}: " + "\n  ".join(lines) + ">"


def _describe_groups(groups: Any) -> str:
    alone = groups["without_value"]
    return f"{count_of(groups['groups'], 'group')} by {', '.join(groups['fields'])}" + (
        f", {alone:,} of them a record without a value" if alone else ""
    )


@dataclass(frozen=True, slots=True, repr=False)
class ShuffleReport(Report):
    """Figures of a finished run.

    Attributes
    ----------
    version
        Version of recshuf.
    order
        Version of the order stream.
    seed
        Seed of the order.
    format
        Format of the inputs.
    to
        Format of the output.
    records
        Records read.
    records_written
        Records written; fewer with ``head_count``.
    byte_count
        Bytes of the records read.
    spilled_bytes
        Bytes written to scratch files.
    seconds
        Wall time of the whole run.
    passes
        Figures of each pass: `name`, `seconds`, `records`, `byte_count`, `bytes_per_second`.
    inputs
        Each input: `name`, `records` (with those in quarantine), `file_bytes`, `quarantined`.
    shards
        Each shard: `name`, `records`, `file_bytes`, `checksum`.
    plan
        What was planned.
    predicted_peak_bytes
        Planned peak memory, without what the process held when the run began.
    measured_peak_bytes
        Peak physical memory of the process, with Python and libraries.
    base_bytes
        Physical memory that the process held when the run began, with libraries loaded.
    quarantined
        Records in quarantine because they do not parse.
    quarantine
        File of the quarantine; None if there is none.
    uploads
        Requests to the object store of the output; None unless it is in one.
    downloads
        Requests to the object stores of the inputs; None unless they are in some.
    features
        What the run did besides the order, as in the manifest: ``group_by``, ``dedup``, ``split`` or ``sources``.
    warnings
        What the run warned of, a sentence each.
    """

    version: str
    order: int
    seed: int
    format: str
    to: str
    records: int
    records_written: int
    byte_count: int
    spilled_bytes: int
    seconds: float
    passes: tuple[PassReport, ...]
    inputs: tuple[FileReport, ...]
    shards: tuple[FileReport, ...]
    plan: Plan
    predicted_peak_bytes: int
    measured_peak_bytes: int
    base_bytes: int
    quarantined: int = 0
    quarantine: str | None = None
    uploads: UploadReport | None = None
    downloads: DownloadReport | None = None
    features: Mapping[str, object] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def summarize(self) -> Iterator[str]:
        yield f"{self.records_written:,} of {count_of(self.records, 'record')}"
        yield f"{count_of(len(self.inputs), 'input')} of {self.format}, {count_of(len(self.shards), 'shard')} of {self.to}"
        if "group_by" in self.features:
            yield _describe_groups(self.features["group_by"])
        if self.quarantine is not None:
            yield f"{count_of(self.quarantined, 'bad record')} in {self.quarantine}"
        yield f"{format_size(self.byte_count)} in {self.seconds:.1f} s, seed {self.seed}"

    def to_json(self) -> dict[str, object]:
        values = asdict(self) | {
            "seed": str(self.seed),
            "passes": [asdict(done) | {"bytes_per_second": done.bytes_per_second} for done in self.passes],
            "plan": self.plan.to_json(),
        }
        del values["features"]
        kept = {name: value for name, value in values.items() if name not in _OPTIONAL or value is not None}
        return kept | dict(self.features)


@dataclass(frozen=True, slots=True, repr=False)
class ScatterReport(Report):
    """Figures of a finished scatter.

    Attributes
    ----------
    path
        Folder of the store.
    store
        Identifier of the store.
    snapshot
        Number of the snapshot that holds the records.
    seed
        Seed of the store.
    records
        Number of records.
    byte_count
        Bytes of the records.
    pile_count
        Number of piles.
    set_count
        Pile sets written.
    seconds
        Wall time.
    inputs
        Each input: `name`, `records`, `file_bytes`.
    parts
        Those of the stores of a split. `path` is then their folder, `store` and `snapshot` those of the first.
    downloads
        Requests to object stores; None if no input is there. Of the parts of a split, each has those of all.
    quarantined
        Records in quarantine because they do not parse; `records` does not include them.
    quarantine
        File of the quarantine; None if there is none.
    deviation
        Standard deviation of `records` of a part that values tell, about; None for others.
    warnings
        What the run warned of, a sentence each; that of a split has those of all parts.
    """

    path: str
    store: str
    snapshot: int
    seed: int
    records: int
    byte_count: int
    pile_count: int
    set_count: int
    seconds: float
    inputs: tuple[FileReport, ...]
    parts: tuple[ScatterReport, ...] = ()
    downloads: DownloadReport | None = None
    quarantined: int = 0
    quarantine: str | None = None
    deviation: int | None = None
    warnings: tuple[str, ...] = ()

    def summarize(self) -> Iterator[str]:
        counts = f"{count_of(self.records, 'record')} of {count_of(len(self.inputs), 'input')}"
        yield f"{counts} in {self.path}, snapshot {self.snapshot}"
        if self.quarantine is not None:
            yield f"{count_of(self.quarantined, 'bad record')} in {self.quarantine}"
        piles = count_of(self.pile_count, "pile")
        yield f"{format_size(self.byte_count)} in {self.seconds:.1f} s, {piles}, seed {self.seed}"

    def to_json(self) -> dict[str, object]:
        parts = [part.to_json() for part in self.parts]
        values = asdict(self) | {"seed": str(self.seed), "parts": parts}
        return {name: value for name, value in values.items() if name != "deviation" or value is not None}
