"""Files that hold the rest of the records of others: found beside them, listed with them, and read as one input."""

from __future__ import annotations

from os.path import abspath, lexists
from typing import TYPE_CHECKING

from recshuf.errors import InputError
from recshuf.formats import PAIRED, find_paired, list_paired_suffixes, load_format
from recshuf.interfaces import NameSuffix, Stamp
from recshuf.storage.reading.local import read_head

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recshuf.interfaces import InputFile


_HEAD_BYTES = 64


def pair_files(files: Sequence[InputFile]) -> list[InputFile]:
    """Return files, each with its companions, which are no inputs of their own. One that is named by a companion alone is read, too.

    Whether a file has companions, the content of the first one tells; whether they lie beside it, a list does, and, of a
    local file, its folder.

    Raises
    ------
    InputError
        When a companion has no file that it belongs to.
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
        if beside[0] is None or not known.recognises(read_head(beside[0], _HEAD_BYTES)):
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


def complete_name(name: str) -> str:
    """Return the path of a companion, given the beginning of its name and that of its file; the same path if there is none.

    Formats of other packages are not asked: a path that does not exist is mostly a slip.
    """
    for suffixes in map(list_paired_suffixes, map(load_format, PAIRED)):
        if all(lexists(name + suffix) for suffix in suffixes):
            return name + suffixes[1]
    return name
