"""Arguments of the public functions and of the command, parsed into a job."""

from __future__ import annotations

import io
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, BinaryIO, Union, cast, get_args, get_origin

import numpy as np

from recshuf.errors import UsageError
from recshuf.formats import load_format
from recshuf.formats.compression import check_level
from recshuf.formats.objects import name_table
from recshuf.interfaces import FormatOption, ReadOptions, TableName, WriteOptions
from recshuf.job.features import Feature, SplitFiles, choose_feature, split_names
from recshuf.job.job import SMALLEST_MEMORY, Job
from recshuf.job.options import (
    LOCAL,
    OPTIONS,
    PROCESSES,
    ArrowSchema,
    Names,
    Options,
    find_own,
    flag_of,
    refuse_unknown,
)
from recshuf.job.plan import Cut
from recshuf.storage import StorageOptions, Url, is_url, parse_storage_options, refuse_unknown_scheme
from recshuf.system.memory import available_bytes
from recshuf.system.paths import check_name, local_path, refuse_url
from recshuf.system.units import parse_size

if TYPE_CHECKING:
    import pyarrow as pa

    from recshuf.job.options import Inputs, Paths, SchemaLike, Size


def make_plain(options: Mapping[str, object], kind: type) -> dict[str, Any]:
    """Return options of a class with numbers, text and flags of NumPy as those of Python; refuse values of other types.

    Ranges and words are not checked.
    """
    return {name: _make_plain(name, value, kind.__annotations__[name]) for name, value in options.items()}


def describe_type(value: object) -> str:
    """Return the name of the type of a value.

    >>> describe_type(io.BytesIO()), describe_type(1)
    ('_io.BytesIO', 'int')
    """
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def _make_plain(name: str, value: object, declared: Any) -> object:
    kinds = _list_kinds(declared)
    if ArrowSchema in kinds or {os.PathLike, Iterable} <= kinds:
        return value  # a schema or a list of paths, which have parsers of their own
    for kind, (_, convert) in _KINDS.items():
        if kind in kinds and (plain := convert(value)) is not NotImplemented:
            return plain
    *words, last = [word for kind, (word, _) in _KINDS.items() if kind in kinds]
    wanted = f"{', '.join(words)} or {last}" if words else last
    raise UsageError(f"{name}: give {wanted}; here: {describe_type(value)}")


def _list_kinds(declared: Any) -> set[Any]:
    """Return the classes of a declared type.

    >>> _list_kinds(str | Iterable[str] | None) == {str, Iterable, NoneType}
    True
    """
    inner = get_args(declared)[0] if hasattr(declared, "__metadata__") else declared
    members = get_args(inner) if get_origin(inner) in (Union, UnionType) else (inner,)
    return {get_origin(member) or member for member in members}


def _to_path(value: object) -> object:
    return value if isinstance(value, os.PathLike) and isinstance(os.fspath(value), str) else NotImplemented


_NO_LISTS = (str, bytes, Mapping, set, frozenset)
"""Sets have no order, and results depend on it."""


def _to_texts(value: object, kinds: Any = str) -> object:
    if not isinstance(value, Iterable) or isinstance(value, _NO_LISTS):
        return NotImplemented
    try:
        items = tuple(value)
    except TypeError:  # an array without axes
        return NotImplemented
    return tuple(map(str, items)) if all(isinstance(each, kinds) for each in items) else NotImplemented


def _to_mapping(value: object) -> object:
    if isinstance(value, list | tuple):  # NAME=VALUE, from the command line
        return _to_texts(value)
    return value if isinstance(value, Mapping) else NotImplemented


def _to_number(value: object) -> object:
    if isinstance(value, bool | str):
        return value  # refused with the range
    if isinstance(value, float | np.floating):
        return float(value)
    try:
        return operator.index(value)  # type: ignore[arg-type] # this is what it finds out
    except TypeError:
        return NotImplemented


def _to_stream(value: object) -> object:
    is_binary = hasattr(value, "read") or hasattr(value, "write")
    return value if is_binary and not isinstance(value, io.TextIOBase) else NotImplemented


_KINDS: Mapping[Any, tuple[str, Callable[[object], object]]] = {
    bool: (
        "True or False",
        lambda value: bool(value) if isinstance(value, bool | np.bool_) else NotImplemented,
    ),
    str: ("text", lambda value: str(value) if isinstance(value, str) else NotImplemented),
    bytes: ("bytes", lambda value: bytes(value) if isinstance(value, bytes | bytearray) else NotImplemented),
    os.PathLike: ("a path", _to_path),
    Iterable: ("a list of names", _to_texts),
    Sequence: ("a list of numbers", partial(_to_texts, kinds=str | int | float | Fraction | np.number)),
    Mapping: ("a dict", _to_mapping),
    int: ("a whole number", _to_number),
    BinaryIO: ("a stream of bytes", _to_stream),
    NoneType: ("None", lambda value: None if value is None else NotImplemented),
}
"""What to call each kind of value, and what returns such a value as a plain one, or NotImplemented."""
_STREAMS = ("stdin", "stdout")
_TAKEN = "only paths are taken, each str or os.PathLike"
_TAKEN_INPUTS = f"{_TAKEN}, and tables, each with __arrow_c_stream__"


def parse_inputs(inputs: Inputs) -> list[str]:
    """Return the inputs, one by one: paths, and tables as `TableName`. A reader may come once."""
    table = name_table(inputs, 0)
    if table is not None:
        return [table]
    listed = list_paths("inputs", cast("Paths", inputs))
    readers = [id(name.held) for name in listed if isinstance(name, TableName) and name.table.is_once]
    if len(readers) > len(set(readers)):
        raise UsageError("inputs: a reader is given twice, and it can be read once; read it into a table")
    return listed


def list_paths(what: str, paths: Paths) -> list[str]:
    """Return the paths, one by one, of the argument `what`.

    An open file or a data frame gives strings too, but they are no paths.
    """
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    is_data = any(hasattr(paths, name) for name in ("read", "columns", "column_names"))
    if is_data or isinstance(paths, bytes | Mapping) or not isinstance(paths, Iterable):
        raise UsageError(f"{what}: {_say_taken(what)}; here: {describe_type(paths)}")
    if isinstance(paths, set | frozenset):
        raise UsageError(f"{what}: a set has no order, and the result depends on it; give a list")
    return [
        (what == "inputs" and name_table(path, place)) or parse_place(what, path)
        for place, path in enumerate(paths)
    ]


def _say_taken(what: str) -> str:
    return _TAKEN_INPUTS if what == "inputs" else _TAKEN


def parse_place(what: str, path: object) -> str:
    """Return an input or output as text: a path, or a URL of a known scheme."""
    if isinstance(path, str):
        if is_url(path):
            return path
        refuse_unknown_scheme(path)
    return parse_path(what, path)


def parse_path(what: str, path: object) -> str:
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(name, str):
        raise UsageError(f"{what}: {_say_taken(what)}; here: {describe_type(name)}")
    if not name:
        raise UsageError(f"{what}: a path is empty; give one")
    check_name(path)
    refuse_url(name)
    return name


def make_job(
    inputs: Inputs,
    output: str | os.PathLike[str] | None,
    options: Options,
    *,
    needs_local_scratch: bool = False,
) -> Job:
    """Parse arguments into a job; an unknown option is a `TypeError`.

    `needs_local_scratch` refuses a prefix in an object store for what is kept on local disks.
    """
    refuse_unknown(options, Options)
    paths = parse_inputs(inputs)
    if not paths:
        raise UsageError('no inputs; give at least one path, or "-" for standard input')
    defaults = {name: option.default for name, option in OPTIONS.items()}
    texts, own = _parse_own(options)
    known = {name: value for name, value in options.items() if name in {*OPTIONS, *_STREAMS}}
    options = cast("Options", defaults | make_plain(known, Options) | texts)
    compression, level = _parse_compression(options["compression"])
    quarantine = _parse_bad_record(options["on_bad_record"])
    feature = choose_feature(options)
    if isinstance(feature, SplitFiles):  # exact shares, which JSON values are not
        options["split"] = cast("dict[str, str]", feature.to_json()["shares"])
    memory, temp_dir = options["memory"], options["temp_dir"]
    if temp_dir == "":
        raise UsageError("--temp-dir: the path is empty; give one, or leave it out")
    check_name(temp_dir)
    temp_url = _parse_temp_url(os.fspath(temp_dir or ""))
    if temp_url is not None and needs_local_scratch:  # before a job of such a prefix has other remedies
        raise UsageError(f"--temp-dir {temp_url}: is for shuffles only; give a local folder")
    workers = options["workers"] or _count_threads(options)
    memory_bytes = _choose_memory(options, workers) if memory is None else _parse(memory)
    job = Job(
        inputs=tuple(paths),
        output=None if output is None else parse_place("output", output),
        options=options,
        memory_bytes=memory_bytes,
        cut=_make_cut(options, feature),
        feature=feature,
        workers=workers,
        temp_dir=None if temp_dir is None or temp_url is not None else Path(temp_dir),
        temp_url=temp_url,
        storage=StorageOptions(options["endpoint_url"], parse_storage_options(options["storage_options"])),
        quarantine=quarantine,
        read=ReadOptions(
            max_record_bytes=_parse(options["max_record_bytes"]),
            columns=split_names("--columns", options["columns"]),
            widens=options["widen"],
            first_metadata=options["first_metadata"],
            schema=_load_schema(options["schema"]),
            memory_bytes=memory_bytes,
            refuses_foreign=not (named := options["format"]) or not load_format(named).traits.takes_any_bytes,
            sets_bad_aside=quarantine is not None,
            own=own,
        ),
        write=WriteOptions(compression, level, own=own),
    )
    return job.divide() if options["engine"] == PROCESSES else job


def _parse_own(options: Options) -> tuple[dict[str, object], tuple[tuple[str, object], ...]]:
    """Return those of some options that formats declare, and that are no defaults, as given and as the formats get them."""
    plain: dict[str, object] = {}
    values: list[tuple[str, object]] = []
    given = {name: value for name, value in options.items() if value is not None and name not in _STREAMS}
    for name, (option, _) in find_own(given).items():
        kinds = Options.__annotations__.get(name, Names if option.is_list else str | bytes | int)
        plain[name] = _make_plain(name, given[name], bool if option.metavar is None else kinds | str)
        value = plain[name] if option.metavar is None else _parse_text(option, plain[name])
        if value == option.default or (value is False and not option.has_opposite):
            del plain[name]
        else:
            values.append((name, value))
    # Here, as formats are not told of a separator that is the default.
    if "zero_terminated" in plain and "separator" in given:
        raise UsageError("--zero-terminated and --separator contradict each other; give one of them")
    return plain, tuple(values)


def _parse_text(option: FormatOption, given: Any) -> object:
    if option.is_list:
        one = replace(option, is_list=False)
        return tuple(_parse_text(one, name) for name in split_names(flag_of(option.name), given) or ())
    # Bytes are meant as they are, and what parses text may take a backslash for an escape.
    text = os.fsdecode(given.replace(b"\\", rb"\\")) if isinstance(given, bytes) else str(given)
    if isinstance(given, bool):
        raise UsageError(f"{flag_of(option.name)}: give text or a number; here: bool")
    try:
        return option.parse(text)
    except ValueError as error:
        problem = "it is no whole number" if option.parse is int else error
        raise UsageError(f"{flag_of(option.name)} {given!r} is not possible: {problem}") from None


def _parse_temp_url(path: str) -> Url | None:
    """Return the prefix for pile sets, if it is no local folder."""
    refuse_unknown_scheme(path)
    if not is_url(path):
        return None
    from recshuf.storage.writing import WRITTEN_SCHEMES, check_prefix  # most runs write to no bucket

    url = Url.parse(path if path.endswith("/") else f"{path}/")
    if url.scheme not in WRITTEN_SCHEMES:
        raise UsageError(f"--temp-dir {path}: is only read; give s3://, gs://, az:// or a local folder")
    check_prefix(url, f"--temp-dir {path}", "tmp")
    return url


def _make_cut(options: Options, feature: Feature | None) -> Cut | None:
    shard_bytes = options["shard_bytes"]
    cut = Cut(
        options["shards"],
        options["shard_records"],
        None if shard_bytes is None else _parse(shard_bytes),
        tuple(feature.shares.values()) if isinstance(feature, SplitFiles) else (),
    )
    count = sum(value is not None for value in (cut.shards, cut.shard_records, cut.shard_bytes))
    if count > 1:
        raise UsageError(
            "--shards, --shard-records and --shard-bytes contradict each other; give one of them"
        )
    return cut if count else None


def _parse_compression(text: str | None) -> tuple[str | None, int | None]:
    if text is None:
        return None, None
    name, colon, level = text.partition(":")
    if not colon:
        return name, None
    try:
        number = int(level)
    except ValueError:
        raise UsageError(
            f"--compression {text!r}: {level!r} is not a level; write for example zstd:9"
        ) from None
    check_level(name, number)
    return name, number


def _parse_bad_record(text: str) -> Path | None:
    word, _, name = text.partition(":")
    if text == "fail":
        return None
    if word != "quarantine" or name in ("", "-"):
        raise UsageError(f"--on-bad-record {text!r} is neither fail nor quarantine:FILE")
    return local_path(name)


def _parse(size: Size) -> int:
    """Return a size in bytes; `Job` checks numbers."""
    if isinstance(size, float) and size.is_integer():
        return int(size)
    return parse_size(size) if isinstance(size, str) else size  # type: ignore[return-value] # refused by `Job`


def _load_schema(schema: SchemaLike | None) -> pa.Schema | None:
    if schema is None:
        return None
    if hasattr(schema, "__arrow_c_schema__"):
        import pyarrow as pa

        try:
            return pa.schema(schema)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise UsageError(f"--schema: {describe_type(schema)} is no schema of columns") from error
    from recshuf.job.schema_file import parse_schema, read_schema

    if isinstance(schema, Mapping):
        return parse_schema(schema, "--schema")
    if not isinstance(schema, str | os.PathLike):
        raise UsageError(
            f"--schema: give a path, a dict or a schema of pyarrow; here: {describe_type(schema)}"
        )
    return read_schema(local_path(schema))


def _count_threads(options: Options) -> int:
    if options["workers"] == 0:
        return 0  # refused with the limits of the option named
    return _count_cores() if options["engine"] in (None, LOCAL, PROCESSES) else 1


def _choose_memory(options: Options, workers: int) -> int:
    """Return half of the available memory, with an engine one task's share of it: the libraries take the other half of little."""
    tasks = 1 if options["engine"] in (None, LOCAL, PROCESSES) else max(1, _count_cores() // max(1, workers))
    return max(SMALLEST_MEMORY, available_bytes() // 2 // tasks)


def _count_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
