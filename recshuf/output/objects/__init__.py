"""Outputs in object stores: the destination, the check that it may be written, and what dead runs left of it."""

from __future__ import annotations

import secrets
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING

from recshuf.errors import OutputError, OutputExistsError, UsageError
from recshuf.job.report import UploadReport
from recshuf.output import Destination
from recshuf.output.objects.log import ObjectLog, ObjectResults
from recshuf.output.objects.place import OutputKeys, OutputPlace, format_clean_command, has_unfinished
from recshuf.output.objects.stage import UploadedTaskShards, Uploads
from recshuf.output.objects.uploader import UploadLimits, UploadTarget, count_slots
from recshuf.output.run_log import PILES_PREFIX, RUN, Entry, is_result
from recshuf.storage.writing import WRITTEN_SCHEMES, Match, check_key, check_prefix, open_bucket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from recshuf.job.plan import Plan
    from recshuf.storage import StorageOptions, Url
    from recshuf.storage.writing import Bucket, OpenUpload


_UNKNOWN_SETS = (
    f"so the spilled records of these tasks stay: give recshuf clean of the URL that was their --temp-dir, or delete "
    f"the folder {PILES_PREFIX}... in the folder that was"
)


class ObjectDestination(Destination):
    """A prefix for shards, or one object, in a bucket.

    `temp_dir` is the folder of shards that are written or uploaded; None for the default one. At most `workers` are written at
    once. `warn` gets a line if the store does not answer for long.
    """

    def __init__(
        self,
        url: Url,
        options: StorageOptions,
        *,
        wants_shards: bool = False,
        parts: tuple[str, ...] = (),
        temp_dir: Path | None = None,
        memory_bytes: int = 1 << 30,
        workers: int = 1,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        if url.scheme not in WRITTEN_SCHEMES:
            raise UsageError(f"{url}: is only read; write to s3://, gs://, az:// or a local folder")
        check_prefix(url, str(url), "shuffled")
        self._url, self._options = url, options
        self.name, self.local_path = str(url), None
        self.temp_dir = temp_dir
        self._workers, self._warn = workers, warn
        self._limits = self._limit_uploads(memory_bytes)
        self.is_directory = wants_shards or url.key.endswith("/") or any(self.bucket.list(f"{url.key}/"))
        self.keys = OutputKeys(url, self.is_directory, parts)

    @cached_property
    def place(self) -> OutputPlace:
        return OutputPlace(self.bucket, self.keys, self.name, format_clean_command(self.name, self._options))

    @cached_property
    def bucket(self) -> Bucket:
        bucket = open_bucket(self._url, self._options, OutputKeys(self._url, is_directory=False).journal)
        bucket.requests.warn_late = self._warn
        return bucket

    def _limit_uploads(self, memory_bytes: int) -> UploadLimits:
        return UploadLimits.within(memory_bytes // 4, self._workers)

    def count_memory_bytes(self, limit_bytes: int) -> int:
        return self._limit_uploads(limit_bytes).memory_bytes

    def count_disk_bytes(self, output_bytes: int, plan: Plan, *, appends: bool) -> int:
        """Return the bytes of the files that are written or uploaded at the same time."""
        shard_bytes = output_bytes // (plan.shard_count or 1)
        if appends and self._limits.can_stream(shard_bytes):
            return 0
        return min(output_bytes, shard_bytes * (plan.shard_writers + count_slots(shard_bytes)))

    def report(self) -> UploadReport:
        sizes = self.bucket.part_sizes
        return UploadReport(
            self.bucket.requests.count,
            self.bucket.requests.retries,
            len(sizes),
            sum(sizes),
            int(median(sizes)) if sizes else 0,
        )

    @property
    def tasks(self) -> ObjectResults:
        url = replace(self._url, key=self.keys.tasks)
        return ObjectResults(self.bucket, url, self._options, self.name)

    def begin(self) -> Uploads:
        return Uploads(self.place, self.tasks, self.temp_dir, self._limits)

    def begin_task(self, run_id: str) -> UploadedTaskShards:
        etags = self.place.look().etags
        target = UploadTarget(self.bucket, self.keys.of_shard, lambda key: Match(etags.get(key)), run_id)
        return UploadedTaskShards(self.keys, target, self._limits)

    def check(self, *, overwrite: bool) -> None:
        found = self.place.look()
        if self.is_directory:
            prefix = self.keys.prefix
            names = {key.removeprefix(prefix) for key in found.etags if key.startswith(prefix)}
            self._check_set(lambda _: names, overwrite=overwrite)
        elif found.etags and not overwrite:
            raise OutputExistsError(f"{self.name}: exists already; give --overwrite to replace it")

    def _manifest_names(self) -> set[str]:
        manifest = self.place.read_manifest()
        return manifest.names if manifest else set()

    def has_log(self) -> bool:
        return self._load_log().has_remains

    def _find_remains(self) -> str | None:
        runs = self._load_log().runs
        return self.begin().name if has_unfinished(runs, self.bucket, self.keys) else None

    def _load_log(self) -> ObjectLog:
        journal = ObjectLog(self.bucket, self.keys.journal, self.begin().name)
        journal.load()
        return journal

    def is_complete(self) -> bool:
        sizes = {one.key: one.byte_count for one in self.bucket.list(self.keys.prefix)}
        if not self.is_directory:
            return self.keys.prefix in sizes
        try:
            manifest = self.place.read_manifest()
        except OutputError:
            return False
        return manifest is not None and all(
            sizes.get(self.keys.of_shard(shard.name)) == shard.file_bytes for shard in manifest.shards
        )


class Remains:
    """The open uploads and the journal of an output, or the pile sets below a prefix, as `find` found them.

    The URL is that of the output, a prefix also without the slash at its end, or the prefix for spilled records.
    """

    def __init__(self, url: Url, options: StorageOptions) -> None:
        if url.scheme not in WRITTEN_SCHEMES:
            raise UsageError(f"{url}: no output is written there; give the URL of one")
        if not url.key.strip("/"):
            raise UsageError(f"{url}: is a whole bucket; give the prefix or the object that was the output")
        check_key(url, str(url))
        self._url = url
        whole = replace(url, key=url.key.rstrip("/"))
        self._keys = [OutputKeys(whole, is_directory=is_directory) for is_directory in (False, True)]
        prefix = self._keys[0].journal
        self._bucket = open_bucket(url, options, prefix)
        self._log = ObjectLog(self._bucket, prefix, self._keys[0].show(prefix))
        self._uploads: list[OpenUpload] = []
        self._tasks = ObjectResults(self._bucket, replace(url, key=self._keys[0].tasks), options, str(url))
        self._left_by_tasks: set[str] = set()
        self._sets: list[str] = []

    def find(self) -> bool:
        sets = f"{self._keys[1].prefix}{PILES_PREFIX}"
        self._sets = [one.key for one in self._bucket.list(sets)]
        self._log.load()
        known = self._log.list_uploads(self._find_key)
        many = OutputKeys(self._keys[1].url, is_directory=True, parts=self._find_parts())
        found = self._bucket.find_uploads(self._keys[0].prefix, known)
        self._uploads = [
            one
            for one in found
            if one.key.startswith(sets) or any(keys.is_shard(one.key) for keys in (self._keys[0], many))
        ]
        self._left_by_tasks = self._tasks.find_names()
        return bool(self._uploads or self._sets or self._left_by_tasks) or self._log.has_remains

    def _find_parts(self) -> tuple[str, ...]:
        """Return the names of the parts of the output, which are below its prefix; none if it has none, or that is lost."""
        headers = [self._log.header]
        with suppress(OutputError):  # it is damaged
            headers.append(self._tasks.read(RUN))
        shares = [header["job"]["options"].get("--split") for header in headers if header and "job" in header]
        return tuple(next(filter(None, shares), ()))

    def _find_key(self, name: str) -> str:
        one, many = self._keys
        return (one if name == one.name else many).of_shard(name)

    def describe(self) -> Iterator[str]:
        for run in self._log.runs:
            yield f"{self._keys[0].show(self._keys[0].journal)}: {_describe_run(run)}"
        for one in self._uploads:
            begun = f", begun {one.begun}" if one.begun else ""
            yield f"{self._keys[0].show(one.key)}: open upload{begun}"
        if self._left_by_tasks:
            count = sum(map(is_result, self._left_by_tasks))
            yield f"{self._tasks.address}: results of tasks: {count}"
            if self._tasks.find_sets() is None:
                yield f"{self._tasks.address}run.json: is missing or damaged, {_UNKNOWN_SETS}"
        for folder, count in Counter(key.rpartition("/")[0] for key in self._sets).items():
            yield f"{self._keys[0].show(folder)}/: spilled records, objects: {count}"

    def has_commit(self) -> bool:
        """Tell whether a commit has begun, which only ``--resume`` may complete."""
        return has_unfinished(self._log.runs, self._bucket, self._keys[0])

    def remove(self) -> None:
        """Abort the uploads, and delete the journal. A run that still writes them fails."""
        if self.has_commit():
            raise OutputError(
                f"{self._url}: the commit of a run has begun, and shards may be visible; complete it with the same command "
                "and --resume"
            )
        self._bucket.delete(self._sets)
        self._tasks.clear()
        self._log.begin({"run": secrets.token_hex(16)})
        self._log.withdraw_claims()
        for one in self._uploads:
            self._bucket.abort_upload(one.key, one.upload_id)
        self._log.delete()


def _describe_run(run: Entry) -> str:
    if "commit" in run:
        return "commit of the run before"
    return f"run on {run.get('host', 'an unknown machine')}, process {run.get('pid', 'unknown')}"
