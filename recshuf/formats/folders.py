"""Which files of a folder are inputs: those of a format by their suffixes, and JSON by its content.

Files that hold the rest of the records of others are found beside them, listed with them, and read as one input.
"""

from __future__ import annotations

import os
import re
from os.path import abspath, lexists
from pathlib import Path
from typing import TYPE_CHECKING

from recshuf.errors import InputError
from recshuf.formats import (
    PAIRED,
    find_paired,
    is_one_line,
    list_paired_suffixes,
    load_format,
    look_into,
    name_by_listing,
    name_by_options,
)
from recshuf.formats.arrow import INFO, SPLITS, STATE, find_sets
from recshuf.formats.compression import split_suffix
from recshuf.formats.files import refuse_pointer
from recshuf.formats.lines import explain_suffix, has_several_lines, is_kind_of_text
from recshuf.interfaces import NameSuffix, Stamp
from recshuf.storage.reading.choosing import Judged, Role
from recshuf.storage.reading.local import read_head

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recshuf.formats.arrow import SavedSet
    from recshuf.interfaces import InputFile, ReadOptions


_JSON_SUFFIX, _JSON_FORMAT, _ARRAY_FORMAT = ".json", "jsonl", "json"
_SAVED_FORMAT = "arrow"
_LOOKED_INTO_BYTES = 64 << 10
_ABOUT = re.compile(
    r"(readme|licen[cs]e|copying|notice|citation|changelog|authors|contributors|contributing)\b.*",
    re.IGNORECASE,
)
_RECIPES = re.compile(r"makefile|dockerfile|\w*sums|snapshot-\d+\.json|.*\.piles", re.IGNORECASE)
"""Names of files that make or check data, and of those of a pile store."""
_DOCUMENTS = re.compile(
    r"\.(md|markdown|rst|tex|pdf|html?|css|js|svg|py|ipynb|r|sh|ya?ml|toml|ini|cfg|conf|bib|cff|crc|md5|sha\d+|asc|sig|lock)"
)
"""Suffixes of what describes data, and is none."""
_LISTED_OBJECTS = re.compile(rb"\[\s*\{")
_HEAD_BYTES = 64


def _pair_files(files: Sequence[InputFile], format_name: str | None) -> list[InputFile]:
    """Return files, each with its companions, which are no inputs of their own. One that is named by a companion alone is read, too.

    What is named as of another format needs no file that it would be a companion of.

    Whether a file has companions, the content of the first one tells; whether they lie beside it, a list does, and, of a
    local file, its folder.
    """
    formats = [
        None if file.suffix.compression or file.table else find_paired(file.suffix.kind) for file in files
    ]
    listed = {_locate(file): file for file, known in zip(files, formats, strict=True) if known}
    paired: list[InputFile] = []
    for file, known in zip(files, formats, strict=True):
        if known is None or file.companions:
            paired.append(file)
            continue
        main, *beside = [_find_beside(file, suffix, listed) for suffix in list_paired_suffixes(known)]
        is_other = main is None and format_name not in (None, known.traits.name)
        if is_other or beside[0] is None or not known.recognises(read_head(beside[0], _HEAD_BYTES)):
            paired.append(file)
        elif main is None:
            problem = f"belongs to {_name_beside(file, known.traits.suffixes[0])}, which is not beside it"
            raise InputError(file.name, problem, remedy="give both")
        elif main is file or _locate(main) not in listed:
            paired.append(main._replace(companions=tuple(filter(None, beside))))
            listed[_locate(main)] = main
    return paired


def _locate(file: InputFile) -> str:
    return abspath(file.path) if file.path else file.name  # noqa: PTH100 - follows no links


def _name_beside(file: InputFile, suffix: str) -> str:
    return file.name[: -len(file.suffix.kind)] + suffix


def _find_beside(file: InputFile, suffix: str, listed: dict[str, InputFile]) -> InputFile | None:
    if file.suffix.kind == suffix:
        return file
    path = file.path and file.path.with_name(file.path.name[: -len(file.suffix.kind)] + suffix)
    beside = file._replace(name=_name_beside(file, suffix), path=path, suffix=NameSuffix(suffix))
    if path is None or _locate(beside) in listed:
        return listed.get(_locate(beside))
    try:
        return beside._replace(stamp=Stamp.of(path.stat()))
    except OSError:
        return None


def _complete_name(name: str) -> str:
    """Return the path of a companion, given the beginning of its name and that of its file; the same path if there is none.

    Formats of other packages are not asked: a path that does not exist is mostly a slip.
    """
    for suffixes in map(list_paired_suffixes, map(load_format, PAIRED)):
        if all(lexists(name + suffix) for suffix in suffixes):
            return name + suffixes[1]
    return name


class NameRules:
    """Rules for file names: their suffixes, and which files of a folder are inputs: those of a format, or of any.

    Parameters
    ----------
    schema
        What was given as ``--schema``: if it is a file, that is no input.
    read
        Options, which may say what records are, so that files of other suffixes hold some.
    """

    def __init__(
        self, format_name: str | None, schema: object = None, read: ReadOptions | None = None
    ) -> None:
        self._format_name = format_name
        self._is_text = read is not None and has_several_lines(read)
        self._described = name_by_options(read) if read else None
        self._schema = Path(schema) if isinstance(schema, str | os.PathLike) else None

    split = staticmethod(split_suffix)
    complete = staticmethod(_complete_name)

    @property
    def wanted(self) -> str:
        return f"{self._format_name or 'readable'} files"

    @property
    def names_format(self) -> bool:
        return self._format_name is not None

    @staticmethod
    def explain(suffix: NameSuffix) -> tuple[str, str] | None:
        return explain_suffix(suffix.kind)

    def pair(self, files: Sequence[InputFile]) -> list[InputFile]:
        return _pair_files(files, self._format_name)

    def judge(self, files: Sequence[InputFile]) -> Judged:
        """Return the role of each file of a folder.

        The files of a data set that was saved to disk are those that it lists, in that order.
        """
        paired = self.pair(files)
        alone = {one.name for file in paired for one in file.companions}
        others = [(file, Role.NOTHING) for file in files if file.name in alone]
        sets, splits = find_sets(paired)
        return Judged(self._judge_sets(paired, sets) + others, splits)

    def _judge_sets(
        self, files: Sequence[InputFile], sets: Sequence[SavedSet]
    ) -> list[tuple[InputFile, Role]]:
        taken = {file.name for found in sets for file in (*found.listed, *found.others)}
        documents = {f"{found.folder}/{name}" for found in sets for name in (STATE, INFO)}
        documents |= {f"{found.folder.rpartition('/')[0]}/{SPLITS}" for found in sets}
        is_wanted = self._format_name in (None, _SAVED_FORMAT)
        roles = (Role.INPUT, Role.UNLISTED) if is_wanted else (Role.OTHER, Role.OTHER)
        told = taken | documents
        judged = self._judge_others([file for file in files if file.name not in told])
        judged += [(file, Role.NOTHING) for file in files if file.name in documents]
        for found in sets:
            for some, role in zip((found.listed, found.others), roles, strict=True):
                judged += [(file, role) for file in some]
        return judged

    def _judge_others(self, files: Sequence[InputFile]) -> list[tuple[InputFile, Role]]:
        """Return the role of each file.

        Files of the format by their suffix are inputs, and those of JSON lines if that is the format; if there are none, JSON
        arrays are, and files without a suffix. One JSON object in a line may be a record, or describe the others: beside lines it is neither.
        """
        roles = [self._judge(file) for file in files]
        if Role.INPUT not in roles and self._format_name in (None, _ARRAY_FORMAT):
            for index, (file, role) in enumerate(zip(files, roles, strict=True)):
                if role is Role.DATA and self._is_array(file):
                    roles[index] = Role.INPUT
        given = [file for file, role in zip(files, roles, strict=True) if role is Role.INPUT]
        parts = [file for file, role in zip(files, roles, strict=True) if role is None and not _is_json(file)]
        others, is_alone = given or parts, Role.DATA not in roles
        is_lines = others is parts or any(
            _is_json(file) or name_by_listing(file) == _JSON_FORMAT for file in given
        )

        def choose(file: InputFile) -> Role:
            if (not others and is_alone) or (others is parts and not _is_json(file)):
                return Role.INPUT
            return Role.DATA if not _is_empty(file) and (is_lines or not _is_json(file)) else Role.NOTHING

        return [
            (file, choose(file) if role is None else role) for file, role in zip(files, roles, strict=True)
        ]

    def _judge(self, file: InputFile) -> Role | None:
        schema, kind, format_name = self._schema, file.suffix.kind, name_by_listing(file)
        if schema and file.path and schema.name == file.path.name and schema.resolve() == file.path.resolve():
            return Role.NOTHING
        if (format_name is None or kind == ".txt") and _describes(file.name.rpartition("/")[2], kind):
            return Role.NOTHING
        if format_name is not None:
            return Role.INPUT if self._format_name in (None, format_name) else Role.OTHER
        if _is_json(file):
            return self._judge_json(file)
        if kind == "" or kind[1:].isdecimal():
            return None
        if _is_empty(file):
            return Role.NOTHING
        if self._says_records(kind):
            return Role.INPUT
        return Role.OTHER if self._format_name and explain_suffix(kind) else Role.DATA

    def _says_records(self, kind: str) -> bool:
        is_binary = self._described is not None and self._format_name in (None, self._described)
        return (
            self._is_text
            if is_kind_of_text(kind)
            else (is_binary or self._is_text) and not explain_suffix(kind)
        )

    def _is_array(self, file: InputFile) -> bool:
        if not _is_json(file) or file.stamp is None:
            return False
        return load_format(_ARRAY_FORMAT).recognises(look_into(file, _LOOKED_INTO_BYTES)[0])

    def _judge_json(self, file: InputFile) -> Role | None:
        if file.stamp is None:
            return Role.DATA
        head, is_whole = look_into(file, _LOOKED_INTO_BYTES)
        refuse_pointer(file.name, head)
        if not head.strip():
            return Role.NOTHING
        if not load_format(_JSON_FORMAT).recognises(head):
            is_object = head.lstrip().startswith(b"{")
            return Role.NOTHING if is_object and not _LISTED_OBJECTS.search(head) else Role.DATA
        _, newline, rest = head.lstrip().partition(b"\n")
        is_long = not newline and not is_whole and file.suffix.compression is None
        is_single = is_one_line(file) if is_long else is_whole and not rest.strip()
        if self._format_name in (None, _JSON_FORMAT):
            return None if is_single else Role.INPUT
        return Role.NOTHING if is_single else Role.OTHER


def _describes(name: str, kind: str) -> bool:
    is_about = kind in ("", ".txt") and _ABOUT.fullmatch(name)
    return bool(is_about or _DOCUMENTS.fullmatch(kind) or _RECIPES.fullmatch(name))


def _is_json(file: InputFile) -> bool:
    return file.suffix.kind == _JSON_SUFFIX


def _is_empty(file: InputFile) -> bool:
    return file.stamp is not None and not file.stamp.size
