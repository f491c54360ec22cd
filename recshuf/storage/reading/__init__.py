"""The input list, of local files and of objects."""

from __future__ import annotations

import glob
import os
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from recshuf.errors import DirectoryInputError, InputError, MissingInputError
from recshuf.interfaces import InputFile, TableName
from recshuf.storage import Url, is_url
from recshuf.storage.reading import local
from recshuf.storage.reading.choosing import choose_files, find_splits, natural_key, tell_splits
from recshuf.storage.reading.local import (
    MANIFEST_SUFFIX,
    ONLY_OTHERS,
    TABLES,
    find_partitions,
    is_hidden,
    opener_of,
    real_names,
    refuse_table,
)
from recshuf.storage.requests import compare_weakly

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from recshuf.interfaces import Stamp
    from recshuf.storage.reading.choosing import NameRules
    from recshuf.storage.reading.objects import Stores


_LISTED_SCHEMES = ("s3", "gs", "az", "hf")
"""Schemes of stores that have prefixes; of others, one object is read."""


class InputLister:
    """Lists inputs."""

    def __init__(self, rules: NameRules, warn: Callable[[str], None], stores: Stores) -> None:
        self._rules = rules
        self._warn = warn
        self._stores = stores

    def list_all(self, patterns: Iterable[str], *, mixes_splits: bool = False) -> list[InputFile]:
        """Expand paths, directories, globs and URLs, with the rules of `local.expand_input`.

        If it `mixes_splits`, splits of a data set that are named are no reason for a warning.
        """
        files: list[InputFile] = []
        for argument, pattern in enumerate(patterns):
            files += [file._replace(argument=argument) for file in self._list_argument(pattern)]
        files = self._rules.pair(files)
        if not mixes_splits:
            # Local names may begin at the root or in the working folder.
            here = os.getcwd()  # noqa: PTH109 - joined to thousands of names, which Path does slowly
            self._tell_splits([os.path.join(here, file.path) for file in files if file.path is not None])  # noqa: PTH118
            self._tell_splits([file.name for file in files if file.path is None])
        return files

    def _list_argument(self, pattern: str) -> list[InputFile]:
        if isinstance(pattern, TableName):
            return [InputFile(str(pattern), None, table=pattern.table)]
        if is_url(pattern):
            return self._list_url(pattern, Url.parse(pattern))
        return local.expand_input(pattern, self._rules, self._warn)

    def _tell_splits(self, names: list[str]) -> None:
        """Warn of splits of a data set that were named; those of a folder were refused."""
        folders = [name.split("/")[:-1] for name in names]
        columns = enumerate(zip(*folders, strict=False))
        common = next(
            (at for at, column in columns if len(set(column)) > 1), min(map(len, folders), default=0)
        )
        splits = find_splits(["/".join(name.split("/")[common:]) for name in names])
        if splits:
            self._warn(
                f"the inputs are the splits {tell_splits(splits)} of a data set, and one output mixes them"
            )

    def _list_url(self, pattern: str, url: Url) -> list[InputFile]:
        listed = url.scheme in _LISTED_SCHEMES
        if not listed and "?" not in url.key and url.key[-1:] in ("", "/"):
            raise DirectoryInputError(
                pattern, "is a folder, which HTTP does not list", remedy="name a file in it"
            )
        if not listed or (url.key and not url.key.endswith("/")):
            stamp = self._stores.open(url).find(url.key)
            if stamp is not None:
                return [self._name_object(pattern, url, stamp, None)]
            if not listed:
                raise MissingInputError(pattern, "there is nothing at this URL", remedy="check it")
        prefix = _prefix_of(url)
        objects = self._find_objects(prefix)
        if objects:
            return self._list_folder(pattern, prefix, objects, str(prefix))
        if glob.has_magic(url.key):
            return self._list_glob(pattern, url)
        raise MissingInputError(
            pattern, "there is neither an object nor one below it", remedy="check the URL"
        )

    def _find_objects(self, prefix: Url) -> dict[str, Stamp]:
        entries = self._stores.open(prefix).list(prefix.key)
        return {str(replace(prefix, key=entry.key)): entry.stamp for entry in entries}

    def _list_folder(
        self, pattern: str, prefix: Url, objects: dict[str, Stamp], root: str
    ) -> list[InputFile]:
        _refuse_tables(pattern, prefix, objects, objects)
        begin = len(str(prefix))
        files = [
            self._name_object(name, Url.parse(name), stamp, root)
            for name, stamp in objects.items()
            if not _is_left_out(name[begin:])
        ]
        return choose_files(pattern, files, self._rules, self._warn)

    def _list_glob(self, pattern: str, url: Url) -> list[InputFile]:
        prefix, rest = _split_glob(url)
        objects = self._find_objects(prefix)
        matches = sorted(set(_match_all(objects, prefix, rest)), key=natural_key)
        if not matches:
            raise InputError(pattern, "no file matches", remedy="check the path, and quote the pattern")
        files: list[InputFile] = []
        for match in matches:
            if _is_left_out(match[len(str(prefix)) :].rstrip("/")):
                continue
            if match in objects:
                files.append(self._name_object(match, Url.parse(match), objects[match], str(prefix)))
            else:
                below = {name: stamp for name, stamp in objects.items() if name.startswith(match)}
                files += self._list_folder(match, Url.parse(match), below, str(prefix))
        _refuse_tables(pattern, prefix, objects, [file.name for file in files])
        if not files:
            raise InputError(pattern, ONLY_OTHERS, remedy="name them one by one")
        return files

    def _name_object(self, name: str, url: Url, stamp: Stamp, root: str | None) -> InputFile:
        partitions = find_partitions(name.rpartition("/")[0], None if root is None else Path(root))
        opener = self._stores.make_file(name, url, stamp)
        return InputFile(name, None, None, partitions, stamp, self._rules.split(name), opener)


def _is_left_out(name: str) -> bool:
    return name.endswith(MANIFEST_SUFFIX) or any(map(is_hidden, name.split("/")))


def _prefix_of(url: Url) -> Url:
    stem = url.key.rstrip("/") if glob.has_magic(url.key) else url.key.removesuffix("/")
    return replace(url, key=f"{stem}/" if url.key else "")


def _split_glob(url: Url) -> tuple[Url, str]:
    """Return the prefix that holds all matches of a pattern, and the pattern below it."""
    parts = url.key.split("/")
    fixed = next(index for index, part in enumerate(parts) if glob.has_magic(part))
    return replace(url, key="".join(f"{part}/" for part in parts[:fixed])), "/".join(parts[fixed:])


def _match_all(names: Iterable[str], prefix: Url, pattern: str) -> Iterator[str]:
    """Yield the objects that match a pattern, and the folders, with a slash at the end; only these, if it has one."""
    begin, wanted = len(str(prefix)), pattern.rstrip("/").split("/")
    for name in names:
        parts = name[begin:].split("/")
        if _match(parts, wanted):
            if not pattern.endswith("/"):
                yield name
        elif "**" not in wanted and len(parts) > len(wanted) and _match(parts[: len(wanted)], wanted):
            yield name[:begin] + "".join(f"{part}/" for part in parts[: len(wanted)])


def _match(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Tell whether the parts of a name match those of a pattern, as `glob` does it."""
    if not pattern or not parts:
        return not pattern and not parts
    if pattern[0] == "**":
        return len(pattern) == 1 or _match(parts, pattern[1:]) or _match(parts[1:], pattern)
    return fnmatchcase(parts[0], pattern[0]) and _match(parts[1:], pattern[1:])


def _refuse_tables(pattern: str, prefix: Url, names: Iterable[str], listed: Collection[str]) -> None:
    """Refuse those files of a table that were listed, as `local` does; its log lies below the prefix."""
    for folder, kind in _find_tables(names, len(str(prefix))):
        if any(name.startswith(folder) for name in listed):
            raise refuse_table(pattern, kind, folder.rstrip("/"))


def _find_tables(names: Iterable[str], begin: int) -> Iterator[tuple[str, str]]:
    """Yield the folder of each table, with a slash at the end, and the name of its format; folders begin after `begin`."""
    for name in names:
        parts = name[begin:].split("/")
        for marker, kind in TABLES:
            wanted = marker.split("/")
            for index in range(len(parts) - len(wanted) + 1):
                if all(map(fnmatchcase, parts[index:], wanted)):
                    yield name[:begin] + "".join(f"{part}/" for part in parts[:index]), kind


def check_unchanged(files: Iterable[InputFile]) -> None:
    """Check that no input has changed since it was listed; of objects with an ETag, every read checks that."""
    for file in (one for each in files for one in each.files):
        if file.is_stream or file.stamp is None:
            continue
        try:
            now = opener_of(file).find_stamp()
            change = now and compare_weakly(now, file.stamp)
        except InputError:
            raise
        except OSError:
            change = "it is gone"
        if change:
            raise InputError(
                file.name,
                f"has changed while it was read: {change}",
                remedy="run again when nobody writes to it",
            )


def leave_out_output(files: list[InputFile], patterns: Sequence[str], output: str) -> list[InputFile]:
    """Return the inputs outside the output, which may be missing. Inputs that were named stay; if the output was named, all stay."""
    if not is_url(output) and not os.path.lexists(output):
        return files
    target, *named = real_names([output, *patterns])
    if target in named:
        return files
    below, kept = f"{target.rstrip('/')}/", set(named)
    places = real_names(file.name for file in files)
    return [
        file
        for file, place in zip(files, places, strict=True)
        if place in kept or not f"{place}/".startswith(below)
    ]
