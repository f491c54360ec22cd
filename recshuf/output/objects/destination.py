"""A destination in a bucket, and the check that it may be written."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING

from recshuf.errors import OutputError, OutputExistsError, UsageError
from recshuf.job.report import UploadReport
from recshuf.output.objects.log import ObjectLog, ObjectResults
from recshuf.output.objects.place import OutputKeys, OutputPlace, format_clean_command, has_unfinished
from recshuf.output.objects.stage import UploadedTaskShards, Uploads
from recshuf.output.objects.uploader import UploadLimits, UploadTarget, count_slots
from recshuf.output.stage import Destination
from recshuf.storage.writing.bucket import Match
from recshuf.storage.writing.buckets import WRITTEN_SCHEMES, check_prefix, open_bucket

if TYPE_CHECKING:
    from pathlib import Path

    from recshuf.storage.settings import StorageOptions
    from recshuf.storage.urls import Url
    from recshuf.storage.writing.bucket import Bucket


class ObjectDestination(Destination):
    """A prefix for shards, or one object, in a bucket.

    `temp_dir` is the folder of shards that are written or uploaded; None for the default one. At most `workers` are written at
    once.
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
    ) -> None:
        if url.scheme not in WRITTEN_SCHEMES:
            raise UsageError(f"{url}: is only read; write to s3://, gs://, az:// or a local folder")
        check_prefix(url, str(url), "shuffled")
        self._url, self._options = url, options
        self.temp_dir = temp_dir
        self._workers = workers
        self._limits = self._limit_uploads(memory_bytes)
        self.is_directory = wants_shards or url.key.endswith("/") or self._has_objects_below()
        self.keys = OutputKeys(url, self.is_directory, parts)

    @cached_property
    def place(self) -> OutputPlace:
        return OutputPlace(self.bucket, self.keys, self.name, format_clean_command(self.name, self._options))

    @cached_property
    def bucket(self) -> Bucket:
        return open_bucket(self._url, self._options, OutputKeys(self._url, is_directory=False).journal)

    def _has_objects_below(self) -> bool:
        try:
            return any(True for _ in self.bucket.list(f"{self._url.key}/"))
        except OutputError as error:  # names the prefix, which nobody has given
            raise type(error)(str(error).replace(f"{self.name}/:", f"{self.name}:", 1)) from error

    @property
    def name(self) -> str:
        return str(self._url)

    @property
    def local_path(self) -> None:
        return

    def _limit_uploads(self, memory_bytes: int) -> UploadLimits:
        return UploadLimits.within(memory_bytes // 4, self._workers)

    def count_memory_bytes(self, limit_bytes: int) -> int:
        """Return the memory of the parts in flight, and of those that are filled."""
        return self._limit_uploads(limit_bytes).memory_bytes

    def count_disk_bytes(
        self, output_bytes: int, shard_count: int | None, writers: int, *, appends: bool
    ) -> int:
        """Return the bytes of the files that are written or uploaded at the same time."""
        shard_bytes = output_bytes // (shard_count or 1)
        if appends and self._limits.can_stream(shard_bytes):
            return 0
        return min(output_bytes, shard_bytes * (writers + count_slots(shard_bytes)))

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
        manifest = self.place.read_manifest(has_shards=bool(self.place.before.etags))
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
        """Tell whether the output exists; a set of shards only if its manifest fits the sizes of its shards."""
        sizes = {one.key: one.byte_count for one in self.bucket.list(self.keys.prefix)}
        if not self.is_directory:
            return self.keys.prefix in sizes
        try:
            manifest = self.place.read_manifest(has_shards=bool(sizes))
        except OutputError:
            return False
        return manifest is not None and all(
            sizes.get(self.keys.of_shard(shard.name)) == shard.file_bytes for shard in manifest.shards
        )
