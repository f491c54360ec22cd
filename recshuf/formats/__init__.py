"""The formats: found by name, by suffix or by content."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, cast

from recshuf.errors import InputError, UsageError
from recshuf.formats.compression import (
    COMPRESSIONS,
    OUTPUT_SUFFIXES,
    check_suffix,
    decompress_head,
    recognise_compression,
    split_suffix,
)
from recshuf.storage.reading.local import open_input, read_head
from recshuf.storage.reading.objects import look_ahead
from recshuf.storage.reading.read_ahead import UNIT_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recshuf.interfaces import Format, FormatNames, InputFile, NameSuffix


FORMAT_NAMES = ("jsonl", "csv", "text", "parquet", "hdf5")
_SAME_BYTES = ({"jsonl", "text"}, {"csv", "text"})  # their files may have each other's suffixes
_BY_CONTENT = ("parquet", "hdf5", "jsonl", "text")
_UNSURE = (None, "jsonl")
"""What a name says of files that must be looked into; `.jsonl` may hold other JSON."""
_HEAD_BYTES = 64 << 10
_GLANCE_BYTES = 4 << 10
_BLOCK_BYTES = 1 << 20
_CONVERT = (
    "convert it, for example with jq -c '.[]' (an array) or jq -c . (objects), or give --format jsonl to take each "
    "line as a record"
)


@cache
def load_format(name: str) -> Format:
    """Return the format of this name, importing its libraries only now."""
    if name not in FORMAT_NAMES:
        raise UsageError(f"there is no format {name!r}; choose one of {', '.join(FORMAT_NAMES)}")
    return cast("Format", import_module(f"recshuf.formats.{name}").FORMAT)


class NameRules:
    """Rules for file names: their suffixes, and which files of a folder are inputs: those of a format, or of any."""

    def __init__(self, format_name: str | None) -> None:
        self._format_name = format_name

    @staticmethod
    def split(name: str) -> NameSuffix:
        return split_suffix(name)

    @property
    def wanted(self) -> str:
        """What the inputs of a folder are, in messages."""
        return f"{self._format_name or 'readable'} files"

    def accepts(self, name: str, suffix: NameSuffix) -> bool | None:
        """Tell whether a file of a folder is an input, by its name; None if the name does not say."""
        format_name = _name_format(name, suffix)
        if format_name is None:
            return None
        return self._format_name in (None, format_name)


def name_by_suffix(name: str) -> str | None:
    """Return the format of a file name by its suffix, ignoring compression; None when unsure."""
    return _name_format(name, split_suffix(name))


def _name_format(name: str, suffix: NameSuffix) -> str | None:
    check_suffix(name, suffix)
    return _find_format(suffix.kind)


@cache
def _find_format(kind: str) -> str | None:
    matches = (known for known in FORMAT_NAMES if kind in load_format(known).names.suffixes)
    return next(matches, None) if kind else None


def name_by_listing(file: InputFile) -> str | None:
    """Return the format of a listed file by its suffix; None when unsure."""
    return _name_format(file.name, file.suffix)


def detect_format(inputs: Sequence[InputFile]) -> str:
    """Return the name of the common format of all inputs, by suffix, else by content."""
    first: tuple[str, str] | None = None
    listed = [name_by_listing(file) for file in inputs]
    unsure = [file for file, name in zip(inputs, listed, strict=True) if name in _UNSURE]
    ahead = look_ahead(unsure, head_bytes=UNIT_BYTES)
    for file, by_name in zip(inputs, listed, strict=True):
        name = _name_within(next(ahead), by_name) if by_name in _UNSURE else by_name
        if first is not None and name != first[1]:
            raise InputError(
                file.name,
                f"is {name}, but {first[0]} is {first[1]}",
                remedy="give inputs of one format at a time, or --format",
            )
        first = first or (file.name, name)
    if first is None:
        raise UsageError("no input is given")
    return first[1]


def _name_within(file: InputFile, by_name: str | None) -> str:
    if by_name is None:
        return name_by_content(file)
    _check_document(file)
    return by_name


def _check_document(file: InputFile) -> None:
    """Refuse a file whose suffix says JSON Lines but that holds another form of JSON."""
    from recshuf.formats.jsonl import describe_document

    if file.stamp is None:
        return
    head, is_whole = _look_into(file, _GLANCE_BYTES)
    if head.lstrip().startswith(b"["):
        head, is_whole = _look_into(file, _HEAD_BYTES)
    if document := describe_document(head, is_whole=is_whole):
        raise InputError(file.name, f"is {document}, and JSONL has one record in each line", remedy=_CONVERT)


def _look_into(file: InputFile, size: int) -> tuple[bytes, bool]:
    """Return the (decompressed) beginning of a file, at most `size` bytes, and whether the file ends with the first line of it."""
    head = read_head(file, size)
    is_whole = file.stamp is not None and len(head) == file.stamp.size
    compression = recognise_compression(head)
    if compression != "none":
        head = decompress_head(head, compression, size)
        return head, is_whole and len(head) < size
    if head.startswith(b"[{") and b"\n" not in head:
        is_whole = _is_one_line(file)
    return head, is_whole


def _is_one_line(file: InputFile) -> bool:
    handle = open_input(file)
    place = 0
    try:
        while block := handle.read_at(place, _BLOCK_BYTES):
            place += len(block)
            end = block.find(b"\n")
            if end >= 0:
                return not block[end:].strip() and not handle.read_at(place, _HEAD_BYTES).strip()
        return True
    finally:
        handle.close()


def name_by_content(file: InputFile) -> str:
    """Return the format of a file by its first bytes; text for a pipe, which is not read here."""
    if file.is_stream or (file.path is not None and file.path.exists() and not file.path.is_file()):
        return "text"
    head = read_head(file, _HEAD_BYTES)
    compression = recognise_compression(head)
    if compression != "none":
        head = decompress_head(head, compression, _HEAD_BYTES)
    name = next((known for known in _BY_CONTENT if load_format(known).recognises(head)), None)
    is_json = PurePosixPath(file.name).suffix == ".json"
    if name is None or (name == "text" and is_json):
        if is_json:
            raise InputError(file.name, "is not JSON lines", remedy=_CONVERT)
        remedy = "name it with --format if it is one of them"
        raise InputError(file.name, "is of no format that recshuf recognises", remedy=remedy)
    return name


def suffix_delimiter(name: str) -> bytes | None:
    """Return the byte between fields that the suffix of an output file promises; None if it promises none."""
    return b"\t" if split_suffix(name).kind == ".tsv" else None


def suffix_compression(name: str, names: FormatNames) -> str | None:
    """Return the compression of an output file by its suffix; None when the suffix does not say."""
    suffix = split_suffix(name)
    if suffix.compression is not None:
        return suffix.compression
    return "none" if names.is_lines and suffix.kind in names.suffixes else None


def name_by_output(name: str) -> str | None:
    """Return the format of an output file by its suffix; None when unsure."""
    from recshuf.formats.lines.foreign import name_foreign

    suffix = split_suffix(name)
    if suffix.compression not in (None, *COMPRESSIONS):
        raise UsageError(
            f"{name}: {suffix.compression} is not written; choose one of {', '.join(filter(None, OUTPUT_SUFFIXES.values()))}"
        )
    if what := name_foreign(suffix.kind):
        raise UsageError(f"{name}: {what} is not written; choose a suffix of {', '.join(FORMAT_NAMES)}")
    return _find_format(suffix.kind)


def check_output(name: str, names: FormatNames, compression: str | None) -> None:
    """Refuse an output file whose suffix contradicts its format, or the compression that was asked for."""
    kind, promised = split_suffix(name).kind, name_by_output(name)
    if promised not in (None, names.name) and {promised, names.name} not in _SAME_BYTES:
        raise UsageError(f"{name}: suffix {kind} contradicts --to {names.name}; change one of them")
    named = suffix_compression(name, names)
    if named is not None and named not in names.compressions:
        raise UsageError(
            f"{name}: {names.name} has no compression {named}; choose one of {', '.join(names.compressions)}"
        )
    if None not in (named, compression) and named != compression:
        raise UsageError(
            f"{name}: --compression {compression} contradicts the suffix, which says {named}; change one of them"
        )
