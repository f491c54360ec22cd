"""A pile store in a bucket.

Snapshots are put in place by a conditional request, which fails if the number is taken, and sets in the same way. There are
no locks: what nobody refers to any more is deleted when it is older than `LEASE_SECONDS`, by the clock of the bucket.
"""

from __future__ import annotations

import os
import re
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from shlex import quote
from threading import main_thread
from typing import TYPE_CHECKING

from recshuf.errors import BusyNameError, OutputError, PileError, RecshufError, UsedNameError
from recshuf.piles.footer import parse_footer, read_footer
from recshuf.piles.kept.place import (
    SETS_FOLDER,
    SNAPSHOT,
    StorePlace,
    check_writer,
    list_numbers,
    name_snapshot,
)
from recshuf.piles.kept.snapshots import BUCKET_VERSION, find_writer, parse_snapshot
from recshuf.piles.layout import SET_SUFFIX
from recshuf.piles.object_sets import TAILS, ObjectPileFile, ObjectSets, Reopened
from recshuf.piles.set_folder import remake_store
from recshuf.storage.requests import ask_at_once
from recshuf.storage.writing import Conflict, Match, open_bucket
from recshuf.system.threads import Pool
from recshuf.system.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from recshuf.piles.kept.place import Seen
    from recshuf.piles.kept.snapshots import Snapshot
    from recshuf.storage import StorageOptions, Url
    from recshuf.storage.writing import Bucket, OpenUpload, StoredObject


LEASE_SECONDS = 7 * 86_400
"""So long after it was replaced a snapshot can be read, and so old a set must be that no snapshot refers to, to be deleted."""
LEASE = "7 days"
"""The same in words."""
_MOST_FOOTER_BYTES = 4 << 20
"""Those of the sets are in a snapshot if all are about as small. Else the time to read it, and to put it anew, would count."""
AHEAD_BYTES = 64 << 20
"""Memory for what is fetched before it is read."""
_SNAPSHOTS_PER_SET = 8
"""So many snapshots may be read for each set that none may refer to any more."""
_OWN_NAME = re.compile(rf"{SNAPSHOT.pattern}|{SETS_FOLDER}/({TAILS}.*|[^/]+{re.escape(SET_SUFFIX)})")
MARK = ".scatter"
"""Beside stores that are made together: while it is there, a first snapshot that names its content does not count."""


class StoreBucket(StorePlace):
    """The objects of a pile store below a URL.

    `mark` is the content of the mark of stores that are made together, for the process that makes them.
    """

    are_objects = True

    def __init__(self, url: Url, options: StorageOptions, mark: str | None = None) -> None:
        super().__init__(str(url).rstrip("/"))
        self._url = replace(url, key=f"{url.key.rstrip('/')}/")
        self._options, self._mark = options, mark
        self._tails = self.sets_url.join(TAILS).key
        self._bucket = Reopened(lambda: open_bucket(self._url, options, self._tails, is_hurried=True))
        self._opened: list[_StoreSets] = []
        """Those to which sets may be written."""

    def __reduce__(self) -> tuple[type[StoreBucket], tuple[Url, StorageOptions]]:
        return StoreBucket, (self._url, self._options)

    @property
    def bucket(self) -> Bucket:
        """The bucket, which does not wait long."""
        return self._bucket.here

    @property
    def sets_url(self) -> Url:
        return self._url.join(f"{SETS_FOLDER}/")

    def anchor(self) -> StoreBucket:
        return self

    def show(self, name: str) -> str:
        return str(self._url.join(name))

    def _list(self, prefix: str = "") -> dict[str, StoredObject]:
        """Return the objects whose names begin with a prefix, by their names."""
        key = self._url.key
        return {one.key.removeprefix(key): one for one in self.bucket.list(key + prefix)}

    def list_sets(self) -> dict[str, StoredObject]:
        """Return the sets by their names, and what open uploads of them have put beside them."""
        names = self._list(f"{SETS_FOLDER}/").items()
        return {
            name.removeprefix(f"{SETS_FOLDER}/").removesuffix(SET_SUFFIX): one
            for name, one in names
            if name.endswith(SET_SUFFIX) or one.key.startswith(self._tails)
        }

    def list_parts(self) -> list[StoredObject]:
        """Return the objects of stores that are made together, the mark last; none if there is no mark."""
        listed = self._list()
        parts = [one for name, one in listed.items() if _OWN_NAME.fullmatch(name.partition("/")[2])]
        return [*parts, listed[MARK]] if MARK in listed else []

    def exists(self) -> bool:
        return next(self.bucket.list(self._url.key), None) is not None

    @property
    def is_store(self) -> bool:
        return bool(self._numbers())

    def check_free(self) -> None:
        if foreign := self._find_foreign():
            raise OutputError(
                f"{self.name}: is not a pile store, and holds {foreign!r}; choose another prefix"
            )

    def _find_foreign(self) -> str | None:
        return next((name for name in self._list() if not _OWN_NAME.fullmatch(name)), None)

    # Snapshots

    def create(self, first: Snapshot) -> Snapshot:
        while True:
            found = self.find()
            if found is not None:
                return found
            self.check_free()
            self._put(first, 1)  # a store that was made meanwhile has this number, and stays

    def open(self, number: int | None = None) -> tuple[Snapshot, ExitStack]:
        found = self.find() if number is None else self._find(number)
        if found is None:
            raise self._explain_missing(number)
        return found, ExitStack()  # no lease: it stays for `LEASE_SECONDS`

    def _numbers(self) -> list[int]:
        return list_numbers(self._list("snapshot-"))

    def _look(self) -> tuple[list[int], dict[int, Snapshot]]:
        # Most stores are written once. A request less in a row matters more than one that is in vain.
        with Pool(1, "snapshot") as pool:
            first = pool.submit(self._find, 1)
            numbers = self._numbers()
            found = first.result() if numbers == [1] else None
        return numbers, {} if found is None else {1: found}

    def _read(self, number: int) -> Snapshot | None:
        there = self.bucket.read(self._url.join(name_snapshot(number)).key)
        if there is None:
            raise FileNotFoundError(self._show(number))
        found = parse_snapshot(there[0], self.name)
        if found is not None and found.mark not in (None, self._mark):
            mark = self.bucket.read(self._url.parent.join(MARK).key)
            if mark is not None and mark[0].decode() == found.mark:
                raise explain_mark(self.name, self._url.parent)
        return found if found is not None and found.number == number else None

    def _map(self, function: Callable[[int], Seen], numbers: list[int]) -> Iterable[Seen]:
        # A writer that is deleted at the exit of the interpreter can start no threads.
        return ask_at_once(function, numbers) if main_thread().is_alive() else map(function, numbers)

    def _add_footers(self, snapshot: Snapshot) -> Snapshot:
        """Return a snapshot with the footers of its sets, so that readers need not ask for them; with none if they are large."""
        if snapshot.footer_bytes > _MOST_FOOTER_BYTES:
            return replace(snapshot, sets=tuple(one.knowing(b"") for one in snapshot.sets))
        lacking, found = [one for one in snapshot.sets if not one.footer], dict[str, bytes | memoryview]()
        if not lacking:
            return snapshot
        with closing(self.open_sets()) as sets:
            sets.tail_bytes = snapshot.footer_bytes // len(snapshot.sets)
            sets.know({one.file_name: one.file_bytes for one in lacking})
            for one in lacking:
                with suppress(PileError):  # who reads the set says what is wrong with it
                    content = read_footer(sets.reopen(one.file_name))
                    if parse_footer(content, one.name).checksum == one.checksum:
                        found[one.name] = content
        whole = (one if one.footer else one.knowing(found.get(one.name, b"")) for one in snapshot.sets)
        return replace(snapshot, sets=tuple(whole))

    def _put(self, snapshot: Snapshot, number: int) -> Snapshot | None:
        made = replace(self._add_footers(snapshot), number=number, mark=self._mark)
        key = self._url.join(name_snapshot(number)).key
        before = self.bucket.requests.retries
        try:
            etag = self.bucket.put(key, made.pack(BUCKET_VERSION), Match())
        except Conflict:
            return None
        except OutputError as error:
            if self._mark is not None or self.bucket.requests.retries == before:
                raise
            self._opened.clear()  # a request without a reply may arrive yet, so its sets stay
            raise self._explain_doubt(error) from error
        try:
            is_late = number > 1 and number - 1 not in self._numbers()
        except OutputError as error:
            raise self._explain_doubt(error) from error
        # A writer that slept may take a number that others have used and deleted, or that of a deleted store.
        if is_late:
            self.bucket.delete_if(key, etag)
            return None
        return made

    def _explain_doubt(self, error: OutputError) -> OutputError:
        """Return the error for a snapshot that may be in place, after that of a request."""
        return OutputError(
            f"{str(error).partition('; ')[0]}; the records may be in the store all the same: see recshuf store info "
            f"{self.name}, and write them again only if they are not"
        )

    def collect(self) -> list[str]:
        """Delete snapshots that were replaced long ago, and sets that are as old and that no snapshot refers to.

        Time is that at which the newest snapshot was put. While a snapshot is damaged, all sets stay. So does what cannot be
        deleted, and what is little for the snapshots that would be read: else each append would read all of a week.
        """
        with suppress(RecshufError):
            listed = self._list("snapshot-")
            times = {number: listed[name_snapshot(number)].modified for number in list_numbers(listed)}
            latest = max(times.values(), default=0.0) - LEASE_SECONDS
            numbers = sorted(times)
            old = [number for number, following in pairwise(numbers) if times[following] < latest]
            self.bucket.delete([self._url.join(name_snapshot(number)).key for number in old])
            aged = {name: one for name, one in self.list_sets().items() if one.modified < latest}
            left = numbers[len(old) :]
            # What both ends lack is rarely between them.
            ends = filter(None, map(self._find, {left[0], left[-1]} if aged else ()))
            known = {each.name for one in ends for each in one.sets}
            found = aged.keys() - known
            if found and _SNAPSHOTS_PER_SET * len(found) >= len(left):
                found -= self.list_referenced()
                self.bucket.delete([aged[name].key for name in sorted(found)])
                return sorted(found)
        return []

    # Sets

    def open_sets(self, parent: Path | None = None, needed_bytes: int = 0) -> ObjectSets:
        remedy = remake_store(self.name)
        sets = _StoreSets(
            self.sets_url, self._options, AHEAD_BYTES, parent, needed_bytes, remedy, self._bucket
        )
        self._opened.append(sets)
        return sets

    def hold_name(self, writer: str) -> _HeldName:
        return _HeldName(self, writer)

    def withdraw(self, writer: str) -> None:
        """Delete the sets of a name that were written here, unless a snapshot refers to them."""
        own = {
            file_name.removesuffix(SET_SUFFIX): token
            for sets in self._opened
            for file_name, token in sets.tokens.items()
            if find_writer(file_name.removesuffix(SET_SUFFIX)) == writer
        }
        for most in (1, None):  # the newest snapshot first, which mostly has what is committed
            kept = self.list_referenced(most) if own else set()
            own = {name: token for name, token in own.items() if name not in kept}
        for name, token in own.items():
            key = self.sets_url.join(f"{name}{SET_SUFFIX}").key
            if self.bucket.find_token(key) == token:
                self.bucket.delete([key])

    def count_disk_bytes(self, names: Iterable[str]) -> int:
        sets = self.list_sets()
        return sum(sets[name].byte_count for name in names)

    def drop(self) -> None:
        """Delete the store. Nobody may read or write it: there are no locks that would tell."""
        listed = self._list()
        if not any(name.startswith(f"{SETS_FOLDER}/") for name in listed):
            with suppress(PileError):
                self.open()
        if foreign := self._find_foreign():
            raise OutputError(f"{self.name}: holds {foreign!r}, which is not of the store; move it away")
        # Snapshots first, so that nobody opens what is half there.
        snapshots = [listed[name_snapshot(number)].key for number in reversed(list_numbers(listed))]
        self.bucket.delete(snapshots)
        for one in self.bucket.find_uploads(self.sets_url.key, ()):
            self.bucket.abort_upload(one.key, one.upload_id)
        self.bucket.delete([one.key for one in self._list(f"{SETS_FOLDER}/").values()])


class _HeldName:
    """Deletes the sets of a name on an error. Another process of this name is refused where its set is put."""

    def __init__(self, store: StoreBucket, writer: str) -> None:
        check_writer(writer)
        self._store, self._writer, self._process = store, writer, os.getpid()

    def __enter__(self) -> None:
        store, writer = self._store, self._writer
        there = any(find_writer(name) == writer for name in store.list_sets())
        # Looked for after the sets: the writer of those may have committed them meanwhile. Without any, no snapshot before
        # the newest matters: each append would read all of a week.
        if store.has_records_of(writer, None if there else 1):
            raise UsedNameError(
                f"name={writer!r}: {store.name} has records of this name; choose another name"
            )
        if there:
            raise BusyNameError(explain_busy(store.name, writer))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if (
            kind is not None and self._process == os.getpid()
        ):  # else a forked child, whose parent still writes
            with suppress(RecshufError):
                self._store.withdraw(self._writer)


def explain_busy(store: str, writer: str) -> str:
    """Return what to say of a name whose sets no snapshot refers to.

    >>> explain_busy("s3://b/my store", "scatter").partition(" with ")[2]
    "recshuf clean 's3://b/my store'"
    """
    return (
        f"{store}: another process writes {writer!r} into it, or has died; wait for its end, or delete what it left with "
        f"recshuf clean {quote(store)}"
    )


def explain_mark(name: str, prefix: Url) -> BusyNameError:
    """Return the error for what is made together with other stores below a prefix.

    >>> from recshuf.storage import Url
    >>> str(explain_mark("s3://b/my split/val", Url.parse("s3://b/my split/"))).partition(" with ")[2]
    "recshuf clean 's3://b/my split'"
    """
    return BusyNameError(
        f"{name}: another process makes the parts of a split there, or has died; wait for its end, or delete what it left "
        f"with recshuf clean {quote(str(prefix).rstrip('/'))}"
    )


class StoreRemains:
    """What writers of a store have left, dead ones and those that are at it: sets that no snapshot refers to, open uploads.

    Of the prefix of a split whose mark is there, all its parts.
    """

    def __init__(self, url: Url, options: StorageOptions) -> None:
        self._store = StoreBucket(url, options)
        self._sets: list[StoredObject] = []
        self._uploads: list[OpenUpload] = []

    def find(self) -> bool:
        store = self._store
        # Listed first: what is committed meanwhile is referred to.
        sets = store.list_sets()
        kept = store.list_referenced()
        parts = store.list_parts()
        self._sets = parts or [one for name, one in sets.items() if name not in kept]
        prefix = store.sets_url.parent if parts else store.sets_url
        self._uploads = list(store.bucket.find_uploads(prefix.key, ()))
        return bool(self._sets or self._uploads)

    def describe(self) -> Iterator[str]:
        for one in self._sets:
            time = datetime.fromtimestamp(one.modified, UTC)
            size = format_size(one.byte_count)
            yield f"{self._show(one.key)}: {size}, of {time:%Y-%m-%d %H:%M:%S %Z}, no snapshot refers to it"
        for upload in self._uploads:
            yield f"{self._show(upload.key)}: open upload, begun {upload.begun}"

    def _show(self, key: str) -> str:
        return str(replace(self._store.sets_url, key=key))

    def remove(self) -> None:
        """Delete what was found, unless a snapshot refers to it by now."""
        store = self._store
        for upload in self._uploads:
            store.bucket.abort_upload(upload.key, upload.upload_id)
        kept = {store.sets_url.join(f"{name}{SET_SUFFIX}").key for name in store.list_referenced()}
        for one in self._sets:
            if one.key not in kept:
                store.bucket.delete_if(one.key, one.etag)


class _StoreSets(ObjectSets):
    def explain_taken(self, name: str, error: Exception) -> OutputError:  # noqa: ARG002 - says the same
        store = str(self.url.parent).rstrip("/")
        return BusyNameError(explain_busy(store, find_writer(name.removesuffix(SET_SUFFIX))))

    def explain_change(self, file: ObjectPileFile, *, is_gone: bool) -> str:
        if not is_gone:
            return super().explain_change(file, is_gone=is_gone)
        return (
            f"{file.name}: is gone since it was opened: the snapshot that is read was replaced more than {LEASE} ago, or the "
            "store was deleted; open the store again"
        )
