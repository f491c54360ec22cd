"""The formats: found by name, by suffix or by content.

Those of other packages are entry points. Reading these took 58 ms in an environment of many packages, so it is done only
when a name, a suffix or content is of none of recshuf's own formats, and for lists of names.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import cache
from importlib import import_module
from traceback import walk_tb
from typing import TYPE_CHECKING, NamedTuple, cast

from recshuf.errors import CheckError, InputError, UsageError
from recshuf.formats.compression import (
    COMPRESSIONS,
    OUTPUT_SUFFIXES,
    check_suffix,
    decompress_head,
    recognise_compression,
    split_suffix,
)
from recshuf.formats.files import refuse_pointer
from recshuf.interfaces import Format, ReadOptions, load_named
from recshuf.storage.reading.local import open_input, read_head
from recshuf.storage.reading.objects import look_ahead
from recshuf.storage.reading.read_ahead import UNIT_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from importlib.metadata import EntryPoint
    from typing import BinaryIO

    from recshuf.interfaces import FormatOption, InputFile, Source, Traits


OWN_FORMATS = {
    "jsonl": "recshuf.formats.jsonl:FORMAT",
    "json": "recshuf.formats.jsonl:ARRAY",
    "csv": "recshuf.formats.csv:FORMAT",
    "text": "recshuf.formats.text:FORMAT",
    "tfrecord": "recshuf.formats.tfrecord:FORMAT",
    "parquet": "recshuf.formats.parquet:FORMAT",
    "hdf5": "recshuf.formats.hdf5:FORMAT",
    "arrow": "recshuf.formats.arrow:FORMAT",
    "npy": "recshuf.formats.arrays:NPY",
    "npz": "recshuf.formats.arrays:NPZ",
    "binary": "recshuf.formats.arrays:BINARY",
    "webdataset": "recshuf.formats.webdataset:FORMAT",
    "megatron": "recshuf.formats.megatron:FORMAT",
}
"""Module and name of each format of recshuf, as in pyproject.toml."""
TABLES = "arrow"
"""The format of tables in memory, which knows their types best."""
_OF_TABLES = "parquet"
"""The format that tables are of, where neither files among them nor the output says one."""
_LIKENESS = 0.85
"""Of two suffixes, one of which may be meant as the other."""
LAST_RESORT = "text"
"""The format of bytes of which nothing is known."""
_WITH_OPTIONS = ("jsonl", "json", "csv", "text", "parquet", "hdf5", "npz", "binary", "webdataset", "megatron")
"""Those that declare options. Help asks them, so their modules import no library."""
PAIRED = ("megatron",)
"""Those with companions. They are looked for beside every input, so their modules import no library."""
_GROUP = "recshuf.formats"
_CULPRIT = "culprit"
_HEAD_BYTES = 64 << 10
_GLANCE_BYTES = 4 << 10
_BLOCK_BYTES = 1 << 20


def list_names() -> tuple[str, ...]:
    """Return the names of all formats, those of other packages last."""
    return (*OWN_FORMATS, *_list_others())


def list_formats(test: Callable[[Traits], object]) -> list[str]:
    return [name for name in list_names() if test(load_format(name).traits)]


class DeclaredOption(NamedTuple):
    """An option of formats."""

    option: FormatOption
    owners: list[str]


def list_options(wanted: Iterable[str] = ()) -> dict[str, DeclaredOption]:
    """Return the options that formats declare, by name; if own formats have all those `wanted`, only theirs."""
    options: dict[str, DeclaredOption] = {}
    for names in (lambda: _WITH_OPTIONS, _list_others):
        if options and wanted and options.keys() >= {*wanted}:
            break
        declared = ((name, option) for name in names() for option in load_format(name).traits.options)
        for owner, option in declared:
            if not option.help:
                continue
            known = options.setdefault(option.name, DeclaredOption(option, []))
            if known.option != option:
                raise UsageError(
                    f"{explain_owner(owner)} declares the option {option.name} in another way than "
                    f"{explain_owner(known.owners[0])}; mend or remove one of them"
                )
            known.owners.append(owner)
    return options


@cache
def load_format(name: str) -> Format:
    """Return the format of this name; libraries that only it needs are imported when it is used."""
    if name in OWN_FORMATS:
        return cast("Format", load_named(OWN_FORMATS[name]))
    others = _list_others()
    if name not in others:
        raise UsageError(f"there is no format {name!r}; choose one of {', '.join(list_names())}")
    return _load_other(others[name])


@cache
def _list_others() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points

    others: dict[str, EntryPoint] = {}
    for point in sorted(entry_points(group=_GROUP), key=lambda point: point.name):
        if point.value.startswith("recshuf."):
            continue
        if point.name in {*OWN_FORMATS, *others}:
            owner = "recshuf" if point.name in OWN_FORMATS else _name_package(others[point.name])
            raise _refuse_other(point, f"has the name of one of {owner}")
        others[point.name] = point
    return others


def _load_other(point: EntryPoint) -> Format:
    try:
        loaded = point.load()
    except Exception as error:
        raise _refuse_other(point, f"cannot be imported: {error}") from error
    if not isinstance(loaded, Format):
        raise _refuse_other(point, "is no instance of recshuf.interfaces.Format")
    traits = loaded.traits
    if traits.name != point.name:
        raise _refuse_other(point, f"calls itself {traits.name!r}")
    for what in ("suffixes", "compressions", "options"):
        if not isinstance(getattr(traits, what), tuple):
            raise _refuse_other(point, f"has {what} that are no tuple")
    # Those of inputs are compared in lower case.
    if not traits.suffixes or not all(each[:1] == "." and each == each.lower() for each in traits.suffixes):
        raise _refuse_other(
            point, f"has the suffixes {traits.suffixes}, which must begin with a dot and be in lower case"
        )
    if odd := [option.name for option in traits.options if not option.name.isidentifier()]:
        raise _refuse_other(point, f"has an option {odd[0]!r}, which is no name in Python")
    for own in OWN_FORMATS:
        if taken := {*traits.suffixes} & {*load_format(own).traits.suffixes}:
            raise _refuse_other(point, f"has the suffix {min(taken)} of {own}")
    return loaded


def _refuse_other(point: EntryPoint, problem: str) -> UsageError:
    return UsageError(
        f"the format {point.name!r} of the package {_name_package(point)} {problem}; mend or remove that package"
    )


def _name_package(point: EntryPoint) -> str:
    return point.dist.name if point.dist else point.value


def find_package(name: str) -> tuple[str, str] | None:
    """Return name and version of the package that a format is from; None for one of recshuf's own."""
    if name in OWN_FORMATS:
        return None
    point = _list_others()[name]
    return _name_package(point), point.dist.version if point.dist else ""


def find_packages(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of the packages that formats of these names are from, by package; none for recshuf's own."""
    return dict(filter(None, map(find_package, names)))


def find_versions(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of the libraries that decide the bytes of formats, by module."""
    owners = {library: name for name in names for library in load_format(name).traits.libraries}
    versions = {}
    for library in sorted(owners):
        try:
            versions[library] = str(import_module(library).__version__)
        except (ImportError, AttributeError) as error:
            owner = explain_owner(owners[library])
            raise UsageError(f"{owner} needs the library {library}: {error}; install it") from error
    return versions


def explain_owner(name: str) -> str:
    """Return a format in words, with its package if that is another one."""
    package = find_package(name)
    return f"the format {name!r}" + (f" of the package {' '.join(package)}" if package else "")


def find_culprit(error: BaseException) -> str | None:
    """Return the format of another package, in words, in whose code an error or its cause was raised; None if that was none."""
    modules = {point.module.partition(".")[0]: name for name, point in _list_others().items()}
    for one in filter(None, (error, error.__cause__)):
        if _CULPRIT in one.__dict__:
            return cast("str", one.__dict__[_CULPRIT])
        frames = [frame for frame, _ in walk_tb(one.__traceback__)]
        tops = [str(frame.f_globals.get("__name__", "")).partition(".")[0] for frame in reversed(frames)]
        top = next((top for top in tops if top in modules or top == "recshuf"), "")
        if top in modules:
            return explain_owner(modules[top])
    return None


def note_culprit(error: BaseException) -> None:
    """Let an error tell `find_culprit` in other processes, to which its traceback does not go."""
    if culprit := find_culprit(error):
        error.__dict__[_CULPRIT] = culprit


def open_source(name: str, inputs: Sequence[InputFile], options: ReadOptions) -> Source:
    """Return the source of inputs of a format, which may be tables that a caller holds; see `Format.open_source`.

    Options that other formats declare, such as that of the output, have no effect.
    """
    known = load_format(name)
    declared = {option.name for option in known.traits.options}
    options = replace(options, own=tuple(pair for pair in options.own if pair[0] in declared))
    if name == TABLES or all(file.table is None for file in inputs):
        source = known.open_source(inputs, options)
        if len(source.inputs) != len(inputs):  # those of no summary would be left out
            raise CheckError(
                f"{explain_owner(name)} has opened {len(source.inputs)} of {len(inputs)} inputs; report this as a fault"
            )
        return source
    from recshuf.formats.objects import TableSource

    return TableSource(known, inputs, options)


def name_of_tables(inputs: Sequence[InputFile], given: str | None, to: str | None) -> str | None:
    """Return the format of inputs of which some are tables that a caller holds; None if none is."""
    table = next((file for file in inputs if file.table is not None), None)
    if table is None:
        return None
    files = [file for file in inputs if file.table is None]
    if files:
        given = given or detect_format(files, ReadOptions())
    elif given is None:
        given = to if to is not None and load_format(to).traits.takes_tables else _OF_TABLES
    if not load_format(given).traits.takes_tables:
        names = " or ".join(list_formats(lambda traits: traits.takes_tables))
        problem = f"is a table, and {files[0].name} is {given}" if files else f"is a table, and no {given}"
        remedy = f"read that as a table, too, or write both as {names}" if files else "leave out --format"
        raise InputError(table.name, problem, remedy=remedy)
    return given


def _find_format(kind: str) -> str | None:
    """Return the format of a suffix; one of several packages is refused."""
    names = list_owners(kind)
    if len(names) > 1:
        remedy = f"name one with --format {names[0]}, that of an output with --to"
        raise UsageError(f"the formats {' and '.join(names)} have the suffix {kind}; {remedy}")
    return next(iter(names), None)


@cache
def list_owners(kind: str) -> tuple[str, ...]:
    """Return the names of the formats that have a suffix: one of recshuf's own, or all those of other packages."""
    if not kind:
        return ()
    # The one that is called so first, or those before it would be loaded.
    names = sorted(OWN_FORMATS, key=lambda name: kind != f".{name}")
    own = next((name for name in names if kind in load_format(name).traits.suffixes), None)
    if own is not None:
        return () if load_format(own).traits.shares_suffixes else (own,)
    return tuple(name for name in _list_others() if kind in load_format(name).traits.suffixes)


@cache
def find_paired(kind: str) -> Format | None:
    """Return the format whose records lie in files of a suffix and others beside them; None if there is none."""
    if not kind:
        return None
    is_own = OWN_FORMATS.keys() & list_owners(kind)
    names = PAIRED if is_own else (*PAIRED, *_list_others())
    return next((one for one in map(load_format, names) if kind in list_paired_suffixes(one)), None)


def list_paired_suffixes(known: Format) -> tuple[str, ...]:
    """Return the suffixes of a file of a format and of its companions; none if it has no companions."""
    traits = known.traits
    return (traits.suffixes[0], *traits.companion_suffixes) if traits.companion_suffixes else ()


def name_by_listing(file: InputFile) -> str | None:
    """Return the format of a listed file by its suffix, and those of its companions; None when unsure."""
    if file.companions and (paired := find_paired(file.suffix.kind)):
        return paired.traits.name
    check_suffix(file.name, file.suffix)
    return _find_format(file.suffix.kind)


def detect_format(inputs: Sequence[InputFile], read: ReadOptions) -> str:
    """Return the name of the common format of all inputs, by suffix, else by the options given, else by content."""
    if of_tables := name_of_tables(inputs, None, None):
        return of_tables
    if not inputs:
        raise UsageError("no input is given")
    named = name_by_options(read)
    names = [name_by_listing(file) or named for file in inputs]
    unsure = [place for place, name in enumerate(names) if _is_unsure(name)]
    ahead = look_ahead([inputs[place] for place in unsure], head_bytes=UNIT_BYTES)
    for place, file in zip(unsure, ahead, strict=True):
        names[place] = _name_within(file, names[place])
    for file, name in zip(inputs, names, strict=True):
        if name != names[0]:
            problem = f"is {name}, but {inputs[0].name} is {names[0]}"
            raise InputError(file.name, problem, remedy="give inputs of one format at a time, or --format")
    return cast("str", names[0])


def name_by_options(read: ReadOptions) -> str | None:
    """Return the format whose files the options describe; None if they describe none."""
    own = dict(read.own)
    for name in _WITH_OPTIONS if own else ():
        if load_format(name).traits.named_by.intersection(own):
            return name
    return None


def _is_unsure(by_name: str | None) -> bool:
    """Tell whether a file must be looked into, given the format by its suffix."""
    return by_name is None or load_format(by_name).traits.checks_heads


def _name_within(file: InputFile, by_name: str | None) -> str:
    if by_name is None:
        # A pipe is not read here.
        is_odd = file.is_stream or (file.path is not None and file.path.exists() and not file.path.is_file())
        return LAST_RESORT if is_odd else _name_by_head(file.name, read_head(file, _HEAD_BYTES))
    if file.stamp is not None:
        head, is_whole = look_into(file, _GLANCE_BYTES)
        if head.lstrip().startswith(b"["):
            head, is_whole = look_into(file, _HEAD_BYTES)
        problem = load_format(by_name).refuse_head(head, is_whole=is_whole)
        if problem is not None:
            raise InputError(file.name, problem)
    return by_name


def look_into(file: InputFile, size: int) -> tuple[bytes, bool]:
    """Return the (decompressed) beginning of a file, at most `size` bytes, and whether the file ends with the first line of it."""
    head = read_head(file, size)
    is_whole = file.stamp is not None and len(head) == file.stamp.size
    compression = recognise_compression(head)
    if compression != "none":
        head = decompress_head(head, compression, size)
        return head, is_whole and len(head) < size
    if head.startswith(b"[{") and b"\n" not in head:
        is_whole = is_one_line(file)
    return head, is_whole


def is_one_line(file: InputFile) -> bool:
    """Tell whether a file without compression has no second line, for which it is read up to that."""
    place = 0
    with closing(open_input(file)) as handle:
        while block := handle.read_at(place, _BLOCK_BYTES):
            place += len(block)
            end = block.find(b"\n")
            if end >= 0:
                return not block[end:].strip() and not handle.read_at(place, _HEAD_BYTES).strip()
    return True


def look_into_stdin(file: InputFile) -> tuple[InputFile, str | None]:
    """Return standard input, whose first bytes may have been read, and its format by these; None if they do not tell."""
    from recshuf.formats.lines.files import StreamSource  # plans do without pyarrow

    if file.stream is None:
        head = read_head(file, _HEAD_BYTES)
    else:
        source = StreamSource(file.name, file.stream, owned=False)
        head = source.peek(_HEAD_BYTES)
        file = file._replace(stream=cast("BinaryIO", source))
    return file, _name_by_head(file.name, head) if _unpack_head(head) else None


def _unpack_head(head: bytes) -> bytes:
    compression = recognise_compression(head)
    return head if compression == "none" else decompress_head(head, compression, _HEAD_BYTES)


def _name_by_head(file_name: str, head: bytes) -> str:
    refuse_pointer(file_name, head)
    head = _unpack_head(head)
    name = next((known.traits.name for known in _ask_in_order() if known.recognises(head)), None)
    shared = find_shared(file_name)
    if name in (None, LAST_RESORT) and shared is not None:
        if load_format(shared).recognises(head):
            return shared
        from recshuf.formats.jsonl import refuse_other

        raise refuse_other(file_name, head)
    if name is None:
        remedy = "name it with --format if it is one of them"
        raise InputError(file_name, "is of no format that recshuf recognises", remedy=remedy)
    return name


def _ask_in_order() -> Iterator[Format]:
    """Yield the formats that may recognise content; those that take any bytes come last."""

    def rank(names: Iterable[str]) -> list[Format]:
        formats = [known for known in map(load_format, names) if known.traits.content_rank is not None]
        return sorted(formats, key=lambda known: known.traits.content_rank or 0)

    own = rank(OWN_FORMATS)
    yield from (known for known in own if not known.traits.takes_any_bytes)
    yield from rank(_list_others())
    yield from (known for known in own if known.traits.takes_any_bytes)


def find_shared(output: str) -> str | None:
    """Return the format that shares the suffix of an output with lines; None if there is none."""
    if not (kind := split_suffix(output).kind):
        return None
    traits = (load_format(name).traits for name in OWN_FORMATS)
    return next((one.name for one in traits if one.shares_suffixes and kind in one.suffixes), None)


def find_near(output: str) -> tuple[str, str] | None:
    """Return the known suffix that an output's may have been meant as, and its format; None if there is none.

    >>> find_near("a.parqet"), find_near("a.parquet"), find_near("a.out")
    (('.parquet', 'parquet'), None, None)
    """
    if not (kind := split_suffix(output).kind):
        return None
    from difflib import get_close_matches  # most suffixes are known

    owners = {suffix: name for name in OWN_FORMATS for suffix in load_format(name).traits.suffixes}
    near = [] if kind in owners else get_close_matches(kind, owners, 1, _LIKENESS)
    return (near[0], owners[near[0]]) if near else None


def name_by_inputs(output: str, given: str) -> str:
    """Return the format of an output that neither an option nor a suffix tells, given that of its inputs.

    A suffix that lines have, too, says nothing where the inputs are lines that content tells.
    """
    traits = load_format(given).traits
    is_told = traits.is_framed or not traits.is_lines or traits.content_rank is None
    shared = find_shared(output) if is_told else None
    return shared or traits.default_target or given


def name_written(files: Sequence[InputFile], given: str, read: ReadOptions) -> str:
    """Return the format of an output that neither an option nor a manifest tells, given that of its inputs.

    Of lines whose suffix does not tell it either, that is what `name_by_inputs` says, unless content tells them from any others.
    """
    # Options describe the inputs; content tells what has a suffix of several formats.
    found = detect_format(files, replace(read, own=()) if find_shared(files[0].name) else read)
    if load_format(found).traits.is_framed or any(name_by_listing(file) for file in files):
        return found
    named = name_by_inputs(files[0].name, given)
    both = [load_format(name).traits for name in (found, named)]
    is_any = all(one.is_lines for one in both) and any(one.takes_any_bytes for one in both)
    return named if is_any else found


def keeps_records(given: str, to: str) -> bool:
    """Tell whether records of one format are written in another one, or the same, as they are."""
    return given == to or to in load_format(given).traits.native_targets


def has_suffix(name: str, format_name: str) -> bool:
    return split_suffix(name).kind in load_format(format_name).traits.suffixes


def refuse_shared_suffix(name: str, format_name: str) -> None:
    """Refuse an output file whose suffix another format writes, too, if nothing else tells which one is meant."""
    kind = split_suffix(name).kind
    other = find_paired(kind) if has_suffix(name, format_name) else None
    if other is not None and other.traits.name != format_name and kind in other.traits.suffixes:
        raise UsageError(
            f"{name}: {format_name} and {other.traits.name} are both written with the suffix {kind}; give --to {format_name} or "
            f"--to {other.traits.name}"
        )


def suffix_compression(name: str, traits: Traits) -> str | None:
    """Return the compression of an output file by its suffix; None when the suffix does not say."""
    suffix = split_suffix(name)
    if suffix.compression is not None:
        return suffix.compression
    if traits.takes_any_bytes and suffix.kind:
        from recshuf.formats.lines import is_kind_of_text

        if is_kind_of_text(suffix.kind):
            return "none"
    # Frames are often compressed under a name that does not say so, and their readers are told.
    is_plain = (
        (traits.is_lines or traits.is_wrapped) and not traits.is_framed and suffix.kind in traits.suffixes
    )
    return "none" if is_plain else None


def name_by_output(name: str, to: str | None = None) -> str | None:
    """Return the format of an output file by its suffix; None when unsure. Of several packages, that is the format `to`."""
    from recshuf.formats.lines import name_foreign

    suffix = split_suffix(name)
    known = to if suffix.kind and to in list_owners(suffix.kind) else _find_format(suffix.kind)
    if known is not None:
        _refuse_packed(name, load_format(known).traits)
    if suffix.compression not in (None, *COMPRESSIONS):
        raise UsageError(
            f"{name}: {suffix.compression} is not written; choose one of {', '.join(filter(None, OUTPUT_SUFFIXES.values()))}"
        )
    if known is None and (what := name_foreign(suffix.kind)):
        raise UsageError(f"{name}: {what} is not written; choose a suffix of {', '.join(list_names())}")
    return known


def check_output(name: str, traits: Traits, compression: str | None) -> None:
    """Refuse an output file whose suffix contradicts its format, or the compression that was asked for."""
    kind, named = split_suffix(name).kind, name_by_output(name, traits.name)
    other = load_format(named).traits if named is not None and kind not in traits.suffixes else traits
    # Lines of a format that takes any may have the suffixes of others.
    is_any = traits.is_lines and other.is_lines and (traits.takes_any_bytes or other.takes_any_bytes)
    if other is not traits and not is_any:
        raise UsageError(f"{name}: suffix {kind} contradicts --to {traits.name}; change one of them")
    _refuse_packed(name, traits)
    packed = suffix_compression(name, traits)
    if packed is not None and packed not in traits.compressions:
        raise UsageError(
            f"{name}: {traits.name} has no compression {packed}; choose one of {', '.join(traits.compressions)}"
        )
    if None not in (packed, compression) and packed != compression:
        raise UsageError(
            f"{name}: --compression {compression} contradicts the suffix, which says {packed}; change one of them"
        )


def _refuse_packed(name: str, traits: Traits) -> None:
    """Refuse an output file whose suffix says that it is compressed as a whole, if its format compresses inside."""
    compression = split_suffix(name).compression
    if compression is None or traits.is_lines or traits.is_wrapped:
        return
    known = ", ".join(traits.compressions)
    choice = compression if compression in traits.compressions else None
    remedy = f"give --compression {choice}" if choice else f"for --compression choose one of {known}"
    plain = name[: name.rindex(".")]
    raise UsageError(f"{name}: {traits.name} is not compressed as a whole; name it {plain}, and {remedy}")
