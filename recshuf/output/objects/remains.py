"""What dead runs left of an output in a bucket."""

from __future__ import annotations

import secrets
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from recshuf.errors import MissingBucketError, OutputError, UsageError
from recshuf.output.objects.log import ObjectLog, ObjectResults
from recshuf.output.objects.place import OutputKeys, has_unfinished
from recshuf.output.pile_sets import PILES_PREFIX
from recshuf.output.run_log import RUN
from recshuf.storage.writing.buckets import WRITTEN_SCHEMES, check_key, open_bucket

if TYPE_CHECKING:
    from collections.abc import Iterator

    from recshuf.output.run_log import Entry
    from recshuf.storage.settings import StorageOptions
    from recshuf.storage.urls import Url
    from recshuf.storage.writing.bucket import OpenUpload


_UNKNOWN_SETS = (
    f"so the spilled records of these tasks stay: give recshuf clean of the URL that was their --temp-dir, or delete "
    f"the folder {PILES_PREFIX}... in the folder that was"
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
        self._result_count = 0
        self._has_tasks = False
        self._sets: list[str] = []
        """Keys of pile sets."""

    def find(self) -> bool:
        """Look for them; return whether there are any."""
        try:
            return self._find()
        except MissingBucketError as error:
            raise MissingBucketError(f"{str(error).partition(';')[0]}; check the name") from error
        except OutputError as error:
            # Its requests are about prefixes that the user did not give; an error of the whole bucket names that.
            place, _, problem = str(error).partition(": ")
            if not place.startswith(self._keys[0].show("")):
                raise
            raise OutputError(f"{self._url}: {problem}") from error

    def _find(self) -> bool:
        sets = f"{self._keys[1].prefix}{PILES_PREFIX}"
        self._sets = [one.key for one in self._bucket.list(sets)]
        self._log.load()
        known = self._log.list_uploads(self._find_key)
        many = replace(self._keys[1], parts=self._find_parts())
        found = self._bucket.find_uploads(self._keys[0].prefix, known)
        self._uploads = [
            one
            for one in found
            if one.key.startswith(sets) or any(keys.is_shard(one.key) for keys in (self._keys[0], many))
        ]
        self._result_count = self._tasks.count()
        self._has_tasks = self._tasks.has_any
        return bool(self._uploads or self._sets or self._has_tasks) or self._log.has_remains

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
        if self._has_tasks:
            yield f"{self._tasks.address}: results of tasks: {self._result_count}"
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
