"""The interface of an output: a destination, and the transaction of one run that writes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, BinaryIO, Protocol

from recshuf.errors import ForeignFileError, OutputExistsError, UnfinishedOutputError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from recshuf.job.plan import Plan
    from recshuf.job.report import UploadReport
    from recshuf.output.entries import FinishedShard
    from recshuf.output.manifest import Manifest
    from recshuf.output.run_log import RunLog, TaskResults


class Destination(ABC):
    """Where an output goes: a set of shards, or one file."""

    is_directory: bool
    name: str
    """Its name in messages, with the suffixes of the file."""
    local_path: Path | None
    """Its path; None if it is not on this machine."""

    @property
    @abstractmethod
    def tasks(self) -> TaskResults:
        """The folder of the tasks of a run into it, in the folder that its machines share."""

    @abstractmethod
    def begin_task(self, run_id: str) -> TaskShards:
        """Return where a task of a run writes its shards."""

    @property
    def is_stream(self) -> bool:
        """Tell whether it is a device or a pipe, which is written to and never replaced."""
        return False

    def open_stream(self) -> BinaryIO:
        """Open a device or a pipe for writing."""
        raise NotImplementedError

    @abstractmethod
    def check(self, *, overwrite: bool) -> None:
        """Refuse an output that exists and may not be replaced, or cannot be written: an `OutputError`."""

    def _check_set(
        self, list_names: Callable[[Collection[str]], Collection[str]], *, overwrite: bool
    ) -> None:
        """Refuse to replace a set of shards; `list_names` returns the names in it, given the folders of its parts."""
        known = self._manifest_names()
        names = set(list_names({name.partition("/")[0] for name in known if "/" in name}))
        foreign = sorted(names - known)
        remains = self._find_remains() if foreign else None
        if remains is not None:
            raise UnfinishedOutputError(
                f"{self.name}: holds {foreign[0]!r}, which its manifest does not name, and an unfinished run left "
                f"{remains}; give --resume to complete it"
            )
        if foreign:
            raise ForeignFileError(
                f"{self.name}: holds {foreign[0]!r}, which is not from an earlier run; move it away, or choose another "
                "output"
            )
        if names and not overwrite:
            raise OutputExistsError(
                f"{self.name}: is not empty; give --overwrite to replace the shards in it"
            )

    def complete_removal(self) -> None:  # noqa: B027 - for others
        """Delete what a run left that has ended, if the process that began to remove it has died."""

    @abstractmethod
    def has_log(self) -> bool:
        """Tell whether a run has begun to write it, and is not complete. One by tasks has no journal before its commit."""

    @abstractmethod
    def _manifest_names(self) -> set[str]:
        """Return the names of the shards of an earlier run, from its manifest; none if it has none."""

    @abstractmethod
    def _find_remains(self) -> str | None:
        """Return the name of what a run left that died in its commit; None if nothing."""

    def report(self) -> UploadReport | None:
        """Return the figures of the requests made; None for a local output."""
        return None

    def count_memory_bytes(self, limit_bytes: int) -> int:  # noqa: ARG002 - for others
        """Return the memory that it takes to write there under a memory limit, besides that of sinks."""
        return 0

    def count_disk_bytes(self, output_bytes: int, plan: Plan, *, appends: bool) -> int:  # noqa: ARG002 - for others
        """Return how much local disk an output of some size takes, given how its shards are written."""
        return output_bytes

    @abstractmethod
    def is_complete(self) -> bool:
        """Tell whether the output exists; a set of shards only if its manifest fits the sizes of its shards."""

    @abstractmethod
    def begin(self) -> Stage:
        """Return a transaction that writes it; not for streams."""


class ShardWriter(Protocol):
    """Makes finished shards durable in the background."""

    def open_stream(self, name: str, shard_bytes: int) -> BinaryIO | None:
        """Return what takes the bytes of a shard in place of a file, until `add` is called; None if it must be a file."""
        ...

    def add(self, path: Path, shard: FinishedShard) -> None:
        """Queue a shard whose file, if it is one, is at this path. Many threads may call this.

        It may wait for earlier shards, and raise the error of one.
        """
        ...

    def finish(self) -> None:
        """Wait until all shards are durable; `add` must not be called afterwards."""
        ...

    def close(self) -> None:
        """Drop waiting shards, and wait for those in progress. Idempotent."""
        ...


class ShardPlace(ABC):
    """Where shards are written, before anybody sees them."""

    folder: Path
    """Folder of their files."""
    name_of: Callable[[str], str]
    """Returns the name of a shard: the given one, or that of the output if it is one file."""

    def path_of(self, name: str) -> Path:
        """Return the local path to write the shard of a name to, whose folder is made in `folder`."""
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        return path

    @abstractmethod
    def open_writer(self, on_kept: Callable[[FinishedShard], None], *, drop_page_cache: bool) -> ShardWriter:
        """Return what takes over finished shards, and drops them from the page cache if it is told to.

        `on_kept` is called with each durable shard, so that it is noted; not if a later run could not use it.
        """


class TaskShards(ShardPlace):
    """The shards of one task, in a folder of its own. A run takes them over, or they are discarded."""

    def finish(self) -> None:
        """Keep what a run needs to take them over, and nothing else. Idempotent."""

    @abstractmethod
    def discard(self) -> None:
        """Delete them: the task has failed, or another process has done it, too. Idempotent."""


class Stage(ShardPlace):
    """The output of one run. Nobody sees a part of it before `commit`, and what is finished stays for a later run.

    Held from `enter` to `release` or `remove`.
    """

    log: RunLog
    path: Path
    """Local folder of the files of the run, from `enter` on."""
    name: str
    """Name of its remains in messages, the same for a later run into this output."""
    keeps_files: bool
    """Whether a later run finds the files in `path`."""
    is_continued = False
    """Whether `enter` has taken over finished parts of an earlier run."""
    is_left = False
    """Whether `remove` did not delete everything, and what is left can be continued."""

    @property
    @abstractmethod
    def written(self) -> Path | None:
        """The file or folder that holds the written shards; None if they cannot be read before the commit."""

    @property
    @abstractmethod
    def is_committed(self) -> bool:
        """Whether an earlier run committed its shards."""

    @property
    def is_resumable(self) -> bool:
        """Whether a later run can continue from here."""
        return self.log.is_resumable

    @property
    @abstractmethod
    def removal(self) -> str | None:
        """How a user deletes what it keeps, as an infinitive; None if a later run is to complete it."""

    @abstractmethod
    def enter(self, warn: Callable[[str], None], *, resumes: bool) -> None:
        """Begin, or take over what a dead run has finished.

        It raises an `OutputError` if a dead run has finished tasks and `resumes` is not set, if nothing can be written, or if
        another run holds the output. `warn` gets a message when remains of an earlier run are removed.
        """

    @abstractmethod
    def adopt(self, shards: Sequence[FinishedShard]) -> list[FinishedShard]:
        """Take over shards that tasks have written, unless they are taken over or committed.

        Returns
        -------
        list
            Those that are missing or damaged.
        """

    @abstractmethod
    def find_unchanged(self, shards: Iterable[FinishedShard]) -> set[int]:
        """Return the numbers of those shards that are as they were written."""

    @abstractmethod
    def keep_only(self, names: set[str]) -> None:
        """Delete all shards but those with these names, unless they are committed."""

    @abstractmethod
    def find_sizes(self) -> dict[str, int]:
        """Return the size of each file of all shards, by its name."""

    @abstractmethod
    def commit(self, manifest: Manifest | None, documents: Mapping[str, bytes]) -> None:
        """Put all shards in place, unless an earlier run has done so, with the documents beside them, and then the manifest.

        One file has no manifest. The documents are contents by name.
        """

    @abstractmethod
    def release(self) -> None:
        """Leave finished tasks to a later run. Idempotent."""

    @abstractmethod
    def remove(self) -> None:
        """Delete everything but what was committed. Idempotent."""
