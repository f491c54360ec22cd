"""One run that writes shards to a bucket: open uploads, completed by the commit, and the manifest last.

Before the commit, nobody sees anything under the prefix of the output. The commit first makes an object in the journal
that says what it does, so that a later run can complete it if this one dies.
"""

from __future__ import annotations

import os
import platform
import secrets
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from recshuf.errors import AlreadyCompleteError, OutputError
from recshuf.output import Stage, TaskShards
from recshuf.output.entries import FinishedShard, find_shards
from recshuf.output.objects.log import ObjectLog, ObjectResults
from recshuf.output.objects.place import FoundOutput, OutputKeys, OutputPlace, find_placed, has_unfinished
from recshuf.output.objects.uploader import ShardUploader, UploadLimits, UploadTarget
from recshuf.storage.requests import ask_at_once
from recshuf.storage.writing import Conflict, Match, MissingUpload, Part, UploadFolder
from recshuf.system.paths import choose_temp_dir
from recshuf.system.threads import NoAnswerError, call_while_stopping

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from recshuf.output.manifest import Manifest
    from recshuf.output.run_log import Entry


class UploadedTaskShards(TaskShards):
    """The shards of a task, written to the temporary folder of this machine, and left as open uploads."""

    def __init__(self, keys: OutputKeys, target: UploadTarget, limits: UploadLimits) -> None:
        self._scratch = UploadFolder(choose_temp_dir(None), keys.show(keys.prefix))
        self.folder = self._scratch.path
        self._keys, self._target, self._limits = keys, target, limits
        self.name_of = keys.name_of
        self._uploads: list[tuple[str, str]] = []

    def open_writer(self, on_kept: Callable[[FinishedShard], None], **_: bool) -> ShardUploader:
        """See `ShardPlace`; files are deleted, and with them their pages."""

        def keep(shard: FinishedShard) -> None:
            self._uploads.append((self._keys.of_shard(shard.name), str(shard.place["upload"])))
            on_kept(shard)

        return ShardUploader(self._target, keep, self._limits)

    def finish(self) -> None:
        self._scratch.close()

    def discard(self) -> None:
        self.finish()
        while self._uploads:
            with suppress(OutputError):  # the run aborts all at its end
                self._target.bucket.abort_upload(*self._uploads.pop())


class Uploads(Stage):
    """The uploads of one output, from `enter` to `release` or `remove`.

    `temp_dir` is the folder of shards that are written or uploaded; None for the default one.
    """

    keeps_files = False
    written = None
    is_committed = False  # `enter` completes the commit of an earlier run

    def __init__(
        self, place: OutputPlace, tasks: ObjectResults, temp_dir: Path | None, limits: UploadLimits
    ) -> None:
        self._place, self._temp_dir, self._limits = place, temp_dir, limits
        self._tasks = tasks
        self._bucket, self._keys = place.bucket, place.keys
        self.name_of = self._keys.name_of
        self.name = self._keys.show(self._keys.journal)
        self.log: ObjectLog = ObjectLog(self._bucket, self._keys.journal, self.name)
        self._token = secrets.token_hex(16)
        self._warn: Callable[[str], None] = print
        self._scratch: UploadFolder | None = None
        self._has_begun = False

    @property
    def removal(self) -> str | None:
        """How a user deletes what it keeps; None if a commit has begun, which `clean` leaves."""
        return self._tasks.removal if self.log.last("commit") is None else None

    @property
    def is_resumable(self) -> bool:
        if not self._has_begun or self.log.is_deleted or self._has_lost_log():
            return False
        return super().is_resumable or self._has_results()

    def _has_lost_log(self) -> bool:
        """Tell whether others have deleted the journal or taken it over, as far as the store answers."""
        try:
            return self.log.find_loss() or not self.log.is_latest()
        except OutputError:
            return False

    def _has_results(self) -> bool:
        try:
            return self._tasks.count() > 0
        except OutputError:
            self.is_left = True
            return False

    def enter(self, warn: Callable[[str], None], *, resumes: bool) -> None:
        self._warn = warn
        try:
            self._scratch = UploadFolder(choose_temp_dir(self._temp_dir), self._place.name)
            self.path = self.folder = self._scratch.path
            self._begin(resumes=resumes)
        except BaseException:
            self.release()
            raise

    def _begin(self, *, resumes: bool) -> None:
        finished = self.log.load()
        result_count = self._tasks.count()
        if (self.log.has_remains or result_count) and not resumes:
            tasks = f", tasks: {result_count}" if result_count else ""
            way = f"continue it, or remove it with {self._place.clean_command}"
            if has_unfinished(self.log.runs, self._bucket, self._keys):
                way = "complete it"
            raise OutputError(
                f"{self._place.name}: another run is writing it, or an unfinished run left {self.name}, finished "
                f"shards: {finished}{tasks}; give --resume to {way}"
            )
        try:
            self.log.begin({"run": self._token, "host": platform.node(), "pid": os.getpid()})
        finally:
            self._has_begun = self.log.has_begun
        if not resumes:
            return
        self.log.load()
        self.is_continued = bool(self.log.entries or result_count)
        claim = next((run for run in reversed(self.log.runs) if "commit" in run), None)
        if claim is not None and self._try_to_complete(claim):
            self.remove()
            raise AlreadyCompleteError(
                f"{self._place.name}: complete; the commit that an unfinished run had begun was completed"
            )

    def _try_to_complete(self, claim: Entry) -> bool:
        """Complete the commit of an earlier run, unless some of its uploads are lost."""
        try:
            self._complete(claim)
        except _LostUploadError as error:
            self._warn(f"{error}; it is written again")
            self._place.before = self._find_replaced(claim["commit"])
            return False
        return True

    def _find_replaced(self, claim: Entry) -> FoundOutput:
        """Return what the next commit replaces: what `claim` did, and shards of it that are written again."""
        tokens = {
            self._keys.of_shard(shard.name): shard.place["token"]
            for shard in find_shards(self.log.read()).values()
        }
        now = self._place.look().etags
        again = [key for key, token in claim["tokens"].items() if key in now and tokens.get(key) != token]
        placed = find_placed(self._bucket, claim["tokens"], again)
        # Others may have deleted some.
        old = {key: etag for key, etag in claim["old"].items() if key in now}
        return FoundOutput(old | {key: now[key] for key in placed}, claim["old_manifest"])

    def open_writer(self, on_kept: Callable[[FinishedShard], None], **_: bool) -> ShardUploader:
        """See `ShardPlace`; files are deleted, and with them their pages."""
        target = UploadTarget(self._bucket, self._keys.of_shard, self._match, self._token)
        return ShardUploader(target, on_kept, self._limits)

    def _match(self, key: str) -> Match:
        return Match(self._place.before.etags.get(key))

    def adopt(self, shards: Sequence[FinishedShard]) -> list[FinishedShard]:
        whole = self.find_unchanged(shards)
        noted = {shard.place["upload"] for shard in find_shards(self.log.read()).values()}
        new = [
            shard.to_json()
            for shard in shards
            if shard.number in whole and shard.place["upload"] not in noted
        ]
        ask_at_once(self.log.note, new)
        return [shard for shard in shards if shard.number not in whole]

    def find_unchanged(self, shards: Iterable[FinishedShard]) -> set[int]:
        """Return the numbers of those shards whose upload is open and whole."""
        some = list(shards)
        are_whole = ask_at_once(self._is_whole, some)
        return {shard.number for shard, is_whole in zip(some, are_whole, strict=True) if is_whole}

    def _is_whole(self, shard: FinishedShard) -> bool:
        key, place = self._keys.of_shard(shard.name), shard.place
        try:
            parts = [Part(*part) for part in place["parts"]]
            return self._bucket.is_whole(key, place["upload"], parts, shard.byte_count)
        except MissingUpload:
            return self._bucket.find_token(key) == str(place["token"])

    def keep_only(self, names: set[str]) -> None:  # noqa: ARG002 - others are written again
        """Delete local files; other shards get new entries, and their old uploads are aborted at the end."""
        for path in self.path.rglob("*"):
            if path.is_file():
                path.unlink()

    def _abort_all(self) -> None:
        known = self.log.list_uploads(self._keys.of_shard)
        found = self._bucket.find_uploads(self._keys.prefix, known)
        uploads = (one for one in found if self._keys.is_shard(one.key))
        ask_at_once(lambda one: self._bucket.abort_upload(one.key, one.upload_id), uploads)

    def _find_shards(self) -> dict[str, tuple[str, Entry]]:
        """Return name and content of the last journal entry of each shard, by the name of the shard."""
        return {
            entry["name"]: (name, entry) for name, entry in self.log.named_entries.items() if "shard" in entry
        }

    def find_sizes(self) -> dict[str, int]:
        return {name: entry["bytes"] for name, (_, entry) in self._find_shards().items()}

    def commit(self, manifest: Manifest | None, documents: Mapping[str, bytes]) -> None:
        if self.log.last("commit") is None:
            self._place.check_unchanged()
        found = self._place.before
        shards = {self._keys.of_shard(name): one for name, one in self._find_shards().items()}
        claim = {
            "shards": {key: name for key, (name, _) in shards.items()},
            "tokens": {key: entry["token"] for key, (_, entry) in shards.items()},
            "manifest": None if manifest is None else manifest.render(),
            "documents": {self._keys.of_shard(name): content.decode() for name, content in documents.items()},
            "old_manifest": found.manifest_etag,
            "old": found.etags,
        }
        self.log.claim({"run": self._token, "commit": claim})
        self._complete({"commit": claim})

    def _complete(self, run: Entry) -> None:
        """Do what a commit has said that it does; what is done already stays."""
        claim, entries = run["commit"], self.log.named_entries
        shards = {key: entries[name] for key, name in claim["shards"].items() if name in entries}
        # The journal is deleted after the commit, its entries first; others may have deleted some before.
        unnamed = claim["shards"].keys() - shards.keys()
        lost = unnamed - find_placed(self._bucket, claim["tokens"], unnamed)
        if lost:
            raise _LostUploadError(
                f"{self._keys.show(min(lost))}: its entry in the journal is damaged or deleted, and with it its upload"
            )
        ask_at_once(lambda key: self._complete_shard(claim["old"], key, shards[key]), shards)
        documents = claim.get("documents", {})
        for key, text in documents.items():
            self._put(key, text.encode(), claim["old"].get(key))
        if claim["manifest"] is not None:
            self._put(self._keys.manifest, claim["manifest"].encode(), claim["old_manifest"])
        for key, etag in claim["old"].items():
            if key not in claim["shards"] and key not in documents:
                self._bucket.delete_if(key, etag)

    def _complete_shard(self, old: dict[str, str], key: str, entry: Entry) -> None:
        parts = [Part(*part) for part in entry["parts"]]
        try:
            _replace(partial(self._bucket.complete_upload, key, entry["upload"], parts), old.get(key))
        except (Conflict, MissingUpload) as error:
            if self._bucket.find_token(key) == entry["token"]:
                return
            if isinstance(error, MissingUpload):
                problem = "its upload was aborted, or the old object deleted, by another program"
                raise _LostUploadError(f"{self._keys.show(key)}: {problem}") from error
            raise self._refuse_other(key) from error

    def _put(self, key: str, content: bytes, old: str | None) -> None:
        try:
            _replace(partial(self._bucket.put, key, content), old)
        except Conflict as error:
            raise self._refuse_other(key) from error

    def _refuse_other(self, key: str) -> OutputError:
        problem = "was written by another program during this run; delete it, and give --resume"
        return OutputError(f"{self._keys.show(key)}: {problem}")

    def release(self) -> None:
        self._drop_folder()

    def remove(self) -> None:
        """Abort all uploads, and delete the journal, what tasks keep, and the local folder."""
        self._drop_folder()
        if not self._has_begun:
            return
        self._has_begun = False
        if self.is_left:
            return  # there may be finished tasks
        if self.log.is_lost:
            self._warn(
                f"{self.name}: was deleted by others, so nothing of this run is kept; run again, alone"
            )
        is_complete = self.log.last("commit") is not None
        self.is_left = not is_complete
        try:
            call_while_stopping(self.clean)
            self.is_left = False
        except (NoAnswerError, OutputError) as error:
            if is_complete:
                # Another run is no remedy.
                problem = f"{self._place.name}: {error}" if isinstance(error, NoAnswerError) else str(error)
                way = f"what is left of this run goes with {self._place.clean_command}"
                self._warn(f"{problem.partition('; ')[0]}; {way}")

    def clean(self) -> None:
        """Abort all open uploads, and delete what tasks keep and the journal, unless another run has taken over.

        If others have deleted the journal, only the uploads that it named are aborted: others may be those of a new run.
        """
        if self.log.is_latest():
            self._abort_all()
            self._tasks.clear()
            self.log.delete()
        elif self.log.is_deleted:
            for one in self.log.list_uploads(self._keys.of_shard):
                self._bucket.abort_upload(one.key, one.upload_id)

    def _drop_folder(self) -> None:
        if self._scratch is not None:
            self._scratch.close()


def _replace(write: Callable[[Match], object], old: str | None) -> None:
    """Write in place of an old object, given its ETag; if others have deleted that, where no object is."""
    try:
        write(Match(old))
    except Conflict:
        if old is None:
            raise
        write(Match())


class _LostUploadError(OutputError):
    """An upload of a finished shard is neither open nor completed."""
