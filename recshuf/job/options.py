"""All options, declared once, for the command line, the Python functions, the checks and ``--resume``.

This module evaluates its annotations, because `OPTIONS` is read from them.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, BinaryIO, Literal, NamedTuple, Protocol, TypedDict

from recshuf.errors import UsageError
from recshuf.system.units import parse_size

LOCAL = "local"
"""The engine that is this process."""
ENGINES = {
    LOCAL: "recshuf.run.engines:OneByOne",
    "ray": "recshuf.run.ray:RayEngine",
    "tasks": "recshuf.run.engines:FinishedTasks",
}
"""Module and class of each engine. The class takes an address, None for the default, and the cores of a task."""


def check_engine(name: str) -> None:
    """Refuse a name of no engine.

    Raises
    ------
    UsageError
        Names those that there are.
    """
    if name not in ENGINES:
        raise UsageError(f"--engine {name!r} is not possible; choose one of {', '.join(ENGINES)}")


class ArrowSchema(Protocol):
    """A schema of pyarrow, or of another library with Arrow's C interface."""

    def __arrow_c_schema__(self) -> object:
        """Return a capsule with the schema."""


Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
Names = str | Iterable[str]
Size = int | float | str
"""Bytes, or text such as ``300MB``."""
SchemaLike = ArrowSchema | Mapping[str, object] | str | os.PathLike[str]
"""A schema, the content of a schema file, or its path."""
FORMATS = ("jsonl", "csv", "text", "parquet", "hdf5")
_FLAG = re.compile(rf"(?<![\w./-])(--[a-z]+(?:-[a-z]+)*|-[oz])\b( (?:{'|'.join(FORMATS)}|[A-Z]{{3,}})\b)?")
"""A flag in a message, and the format or the placeholder after it."""
_COMMAND = re.compile(r"recshuf (?:clean |gather |scatter |INPUT)")
_ODD_NAMES = {
    "-o": "output",
    "-z": "zero_terminated",
    "--id": "id_column",
    "--field": "column",
    "--storage-option": "storage_options",
}
_ESCAPES = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"0": b"\0", b"\\": b"\\"}


class Option(NamedTuple):
    """An option, apart from its name and Python type."""

    group: str
    """Its heading in ``--help``."""
    metavar: str | None
    """Name of its value in ``--help``; None for a flag."""
    help: str
    short: str | None = None
    default: object = None
    parse: Callable[[str], object] = str
    """Parses its value from the command line."""
    choices: tuple[str, ...] = ()
    is_path: bool = False
    is_repeatable: bool = False
    flag: str | None = None
    """Its flag, if that is not its name."""
    side: Literal["records", "inputs", "output"] | None = None
    """What must have one of `formats`; ``records`` means inputs or output. None for an option of all formats."""
    formats: tuple[str, ...] = ()
    flags: str | None = None
    """Its name in error messages. Default: its own flag."""
    identity: Callable[[Any], object] | None = None
    """Returns its value of a `Job` for the journal, which ``--resume`` compares; None if the output does not depend on it.

    Must be None for the default of a new option, because older journals lack the option."""


def _parse_seed(text: str) -> int:
    """Return a whole number, decimal or hexadecimal.

    >>> _parse_seed("0xff")
    255
    """
    try:
        return int(text, 16 if text[:2] in ("0x", "0X") else 10)
    except ValueError:
        raise UsageError(f"{text!r} is not a whole number from 0 to 2^128-1") from None


def parse_header(text: str) -> int | None:
    """Return the number of header lines; None for ``auto``.

    >>> parse_header("2"), parse_header("none"), parse_header("auto")
    (2, 0, None)
    """
    if text in ("auto", "none"):
        return None if text == "auto" else 0
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"--header {text!r} is not a number of lines, auto or none") from None


def parse_separator(text: str) -> bytes:
    r"""Return the bytes of a command-line argument, with escapes replaced.

    >>> parse_separator(r"\t\x1f|")
    b'\t\x1f|'
    """

    def unescape(match: re.Match[bytes]) -> bytes:
        escape = match[1]
        if len(escape) == 3:
            return bytes([int(escape[1:], 16)])
        if escape not in _ESCAPES:
            raise UsageError(r"a backslash must begin \n, \t, \r, \0, \xHH or \\")
        return _ESCAPES[escape]

    return re.sub(rb"\\(x[0-9A-Fa-f]{2}|.|)", unescape, os.fsencode(text), flags=re.DOTALL)


# fmt: off
class InputOptions(TypedDict, total=False):
    """Options of all functions that read inputs; see `Options`."""

    format: Annotated[str | None, Option("Input", "NAME", f"Format of the inputs: {', '.join(FORMATS)}. Default: from suffix, else from content.", choices=FORMATS)]
    """Format of the inputs: ``jsonl``, ``csv``, ``text``, ``parquet`` or ``hdf5``. Default: from suffix, else from content."""
    header: Annotated[int | str | None, Option("Input", "N", "Text, CSV: number of header lines of each input, written once at the top of each shard; auto or none. Default: auto, which is 0 for text; for CSV, 0 or 1 as its first records tell, or an error.",
        parse=parse_header, side="inputs", formats=("text", "csv"), identity=lambda job: "none" if job.options["header"] in (0, "none") else job.read.header_lines)]
    """Number of header lines of each text or CSV input, written once at the top of each shard, ``"auto"`` or ``"none"``.
    Default: ``"auto"``, which is 0 for text; for CSV, 0 or 1 as its first records tell, or an error."""
    delimiter: Annotated[str | bytes | None, Option("Input", "C", "CSV: character between fields. Default: a tab in .tsv, else found in the first input; in a conversion to CSV, a tab into .tsv, else a comma.",
        parse=parse_separator, side="records", formats=("csv",), identity=lambda job: job.read.delimiter and job.read.delimiter.hex())]
    """Character between CSV fields. Default: a tab in ``.tsv``, else found in the first input; in a conversion to CSV, a tab into
    ``.tsv``, else a comma."""
    quote: Annotated[str | bytes, Option("Input", "C", "CSV: character around quoted fields, or none. Default: a double quote.",
        default='"', side="inputs", formats=("csv",), identity=lambda job: None if job.read.quote == b'"' else job.read.quote.hex())]
    """Character around quoted CSV fields, or ``"none"``. Default: a double quote."""
    zero_terminated: Annotated[bool, Option("Input", None, "Text: records end in a NUL byte.", default=False, short="-z")]
    """Text records end in a NUL byte. Default: False."""
    separator: Annotated[str | bytes | None, Option("Input", "STR", r"Text: string that ends a record, with the escapes \n, \t, \r, \0, \xHH and \\. Default: \n.",
        parse=parse_separator, side="records", formats=("text",), flags="--separator and -z", identity=lambda job: job.read.separator.hex())]
    """String or bytes that end a text record. Default: a newline."""
    max_record_bytes: Annotated[Size, Option("Input", "SIZE", "Longest record accepted. A longer one is an error. Default: 1GiB.",
        parse=parse_size, default="1GiB")]
    """Longest record accepted. Default: 1 GiB."""
    datasets: Annotated[Names | None, Option("Input", "A,B", "HDF5: datasets to read. Default: all that have a first axis.",
        side="inputs", formats=("hdf5",), identity=lambda job: job.read.datasets and list(job.read.datasets))]
    """HDF5 datasets to read; a string is split at commas. Default: all that have a first axis."""
    keep_others: Annotated[bool, Option("Input", None, "HDF5 to HDF5: shuffle the datasets of the commonest length, or those of --datasets, and copy datasets of other lengths unchanged into every shard. Default: datasets of several lengths are refused.",
        default=False, identity=lambda job: job.read.keeps_others or None)]
    """HDF5 to HDF5: shuffle the datasets of the commonest length, or those in `datasets`, and copy datasets of other lengths
    unchanged into every shard. Default: False; datasets of several lengths are refused."""
    columns: Annotated[Names | None, Option("Input", "A,B", "Parquet: columns to keep. Default: all.",
        side="inputs", formats=("parquet",), identity=lambda job: job.read.columns and list(job.read.columns))]
    """Parquet columns to keep; a string is split at commas. Default: all."""
    widen: Annotated[bool, Option("Input", None, "Parquet: unite integers of one input with floats of another, as float64, and integers or decimals with decimals of another scale. A value that the type does not hold exactly is an error. Default: such inputs are refused, unless the float holds all integers of the type.",
        default=False, side="inputs", formats=("parquet",), identity=lambda job: job.read.widens or None)]
    """Unite integers of one Parquet input with floats of another, as float64, and integers or decimals with decimals of another
    scale. A value that the type does not hold exactly is an error. Default: False; such inputs are refused, unless the
    float holds all integers of the type."""
    schema: Annotated[SchemaLike | None, Option("Input", "FILE", "Schema file for a conversion from JSONL, CSV or text. Default: inferred types.",
        is_path=True, side="inputs", formats=("jsonl", "csv", "text"), identity=lambda job: None if job.read.schema is None else str(job.read.schema))]
    """Schema of pyarrow, or path or content (a dict) of a schema file, for a conversion from JSONL, CSV or text. Default: inferred types."""
    memory: Annotated[Size | None, Option("Resources", "SIZE", "Memory limit, excluding about 150 MB for Python and libraries. Default: half of available memory.", parse=parse_size)]
    """Memory limit, excluding about 150 MB for Python and libraries. Default: half of available memory."""
    workers: Annotated[int | None, Option("Resources", "N", "Number of threads. Default: usable cores.", parse=int)]
    """Number of threads. Does not change the output. Default: usable cores."""
    endpoint_url: Annotated[str | None, Option("Resources", "URL", "Object stores: server that speaks the protocol of the store. Default: that of the provider.")]
    """Server of the object stores in URLs, such as ``"http://localhost:9000"``. Default: that of the provider."""
    storage_options: Annotated[Mapping[str, str], Option("Resources", "NAME=VALUE", "Object stores: an option, such as region=eu-west-1, of one bucket as s3://bucket:region=eu-west-1; may be repeated.",
        default=(), is_repeatable=True, flag="--storage-option")]
    """Options of the object stores, such as ``{"region": "eu-west-1"}``; ``s3:region`` holds for all buckets of ``s3://``,
    ``s3://bucket:region`` for one. Default: none."""




class CheckOptions(InputOptions, total=False):
    """Options that `shuffle`, `verify`, `check` and `picture` share; see `Options`."""

    to: Annotated[str | None, Option("Output", "NAME", "Output format. Default: from the suffix of OUTPUT, else that of the inputs.", choices=FORMATS)]
    """Output format. Default: from the suffix of the output, else that of the inputs."""




class ScatterOptions(InputOptions, total=False):
    """Options of `scatter` and `window`. ``recshuf scatter --help`` explains each, with ``-`` in place of ``_``."""

    seed: int | None
    """0 to 2**128 - 1. Default: drawn at random; `ScatterReport.seed` holds it."""
    piles: int | None
    """Number of piles, 1 to 65,536. Default: one for each 8 MB of records."""
    spill_compression: str
    """Compression of the records: ``"none"``, ``"lz4"`` or ``"zstd"``. Default: ``"none"``."""




class GatherOptions(TypedDict, total=False):
    """Options of `gather`, which mean what those of `shuffle` do. ``recshuf gather --help`` explains each, with ``-`` in place of ``_``."""

    to: str | None
    """Output format. Default: from the suffix of the output, else that of the inputs of the store."""
    memory: Size | None
    workers: int | None
    compression: str | None
    shards: int | None
    """Default: one for each input of the store, in a directory."""
    shard_records: int | None
    shard_bytes: Size | None
    seed: int | None
    """That of the store, or None."""
    temp_dir: str | os.PathLike[str] | None
    no_space_check: bool
    endpoint_url: str | None
    storage_options: Mapping[str, str]
    head_count: int | None
    nan_as_null: bool
    provenance: bool
    verify: bool
    """Compare the output with the records of the store before it is put in place; in an object store, after that."""
    overwrite: bool
    resume: bool




class OrderOptions(CheckOptions, total=False):
    """Options of `check` and `picture`. ``recshuf check --help`` explains each, with ``-`` in place of ``_``; of `id_column`, ``--id``."""

    against: Paths
    """Inputs that the data was shuffled from, by any program; records are matched by content. Default: none."""
    column: str | None
    """Column, dataset or field (``a.b``) whose order of values is tested or drawn. Default: without `against` and
    `provenance`, the name in `datasets` or `columns`, if it is a single one."""
    provenance: bool
    """Use the columns ``source_file`` and ``source_row`` that `shuffle` added. Default: False."""
    id_column: str | None
    """With `against`: column or field that identifies a record. Default: its whole content."""




class VerifyOptions(CheckOptions, total=False):
    """Options of `verify`: give those that `shuffle` got. ``recshuf verify --help`` explains each, with ``-`` in place of ``_``."""

    head_count: int | None
    """Size of the sample that the output is. Default: it is no sample."""
    provenance: bool
    """Ignore the columns ``source_file`` and ``source_row`` of the output. Default: as in its manifest."""
    nan_as_null: bool
    """NaN and infinities of the inputs are null in the output. Default: False."""
    temp_dir: str | os.PathLike[str] | None
    """Folder for hashes that do not fit in memory. Default: ``$TMPDIR``, else ``/var/tmp``."""




class Options(CheckOptions, total=False):
    """Options of `shuffle` and `plan`. ``recshuf --help`` explains each, with ``-`` in place of ``_``.

    A size is a number or ``"300MB"``. `storage_options` is ``--storage-option`` there, and `stdin` and `stdout` are streams for
    an input or output ``"-"``.
    """

    compression: Annotated[str | None, Option("Output", "NAME[:LEVEL]", "Output compression: none, zstd, gzip, bz2, xz, lz4 or snappy. Default: from the suffix of OUTPUT, else that of the inputs.")]
    """Output compression, with or without a level: ``"zstd:9"``. Default: from the suffix of the output, else that of the inputs."""
    shards: Annotated[int | None, Option("Output", "N", "Number of shards. Default: one per input file, in a directory.", parse=int)]
    """Number of shards; their record counts differ by at most one. Default: one per input file, in a directory."""
    shard_records: Annotated[int | None, Option("Output", "N", "Records per shard.", parse=int)]
    """Records per shard; the last one may have fewer. Default: `shards` says how many shards there are."""
    shard_bytes: Annotated[Size | None, Option("Output", "SIZE", "Approximate size of a shard.", parse=parse_size)]
    """Approximate size of a shard. Default: as for `shard_records`."""
    seed: Annotated[int | None, Option("Order", "N", "Seed, 0 to 2^128-1. Default: drawn at random, printed and recorded.", parse=_parse_seed)]
    """0 to 2**128 - 1. Default: drawn at random; `ShuffleReport.seed` holds it."""
    temp_dir: Annotated[str | os.PathLike[str] | None, Option("Resources", "DIR", "Folder for spilled records, or the URL of a prefix in an object store, to which they are uploaded. Default: beside the output.", is_path=True,
        identity=lambda job: None if job.temp_url is None else "a URL")]
    """Folder for spilled records, or the URL of a prefix in an object store, to which they are uploaded. Default: beside the output."""
    spill_compression: Annotated[str, Option("Resources", "NAME", "Compression of spilled records: none, lz4 or zstd. Helps on a slow or small disk. Does not change the output. Default: none.",
        default="none")]
    """Compression of spilled records: ``"none"``, ``"lz4"`` or ``"zstd"``. Does not change the output. Default: ``"none"``."""
    engine: Annotated[str, Option("Resources", "NAME", "What does the work: local, this process; ray, a Ray cluster; tasks, recshuf task on any machines, with --plan --report FILE. The last two: --workers and --memory are those of each task, by default 1 and a core's share. Default: local.",
        default="local", choices=("local", "ray", "tasks"), identity=lambda job: None if job.options["engine"] == "local" else "ray or tasks")]
    """What does the work: ``"local"``, this process, or ``"ray"``, a Ray cluster. `workers` and `memory` are then
    those of each task, by default 1 and a core's share. Does not change the output. Default: ``"local"``."""
    ray_address: Annotated[str | None, Option("Resources", "ADDR", "Address of the Ray cluster. Default: as ray.init finds it, else Ray on this machine.")]
    """Address of the Ray cluster. Default: as ``ray.init`` finds it, else Ray on this machine."""
    no_space_check: Annotated[bool, Option("Resources", None, "Start even if the disk seems too small.", default=False)]
    """Start even if the disk seems too small. Default: False."""
    piles: Annotated[int | None, Option("Resources", "N", "Number of piles, 1 to 65,536, for tests and experts. Default: chosen by the plan.", parse=int)]
    """Number of piles, 1 to 65,536, for tests and experts. Default: chosen by the plan."""
    head_count: Annotated[int | None, Option("Order", "N", "Write a uniform sample of N records, without replacement, in random order. Default: all records.", short="-n", parse=int)]
    """Write a uniform sample of so many records, without replacement, in random order. Default: all records."""
    nan_as_null: Annotated[bool, Option("Output", None, "JSONL: write NaN and infinities as null. Default: they are an error.", default=False,
        side="output", formats=("jsonl",), identity=lambda job: job.write.nan_as_null)]
    """Write NaN and infinities as JSON null. Default: False; they are an error."""
    on_bad_record: Annotated[str, Option("Input", "WHAT", "What to do with a line that does not parse, in a conversion: fail, or quarantine:FILE to set it aside. Default: fail.",
        default="fail", identity=lambda job: job.quarantine and str(job.quarantine))]
    """What to do with lines that do not parse, in a conversion: ``"fail"``, or ``"quarantine:FILE"`` to set them aside.
    Default: ``"fail"``."""
    provenance: Annotated[bool, Option("Output", None, "Add the columns source_file and source_row, the input and row of each record.", default=False,
        identity=lambda job: job.options["provenance"] or None)]
    """Add the columns ``source_file`` and ``source_row``, the input and row of each record. Default: False."""
    overwrite: Annotated[bool, Option("Output", None, "Replace an existing output, report or page. Default: it is an error.", default=False)]
    """Replace an existing output. Default: False; it is an error."""
    verify: Annotated[bool, Option("Output", None, "Compare the output with the inputs before it is put in place; in an object store, after that.", default=False)]
    """Compare the output with the inputs before it is put in place; in an object store, after that. Default: False."""
    resume: Annotated[bool, Option("Output", None, "Continue a killed or failed run of the same command.", default=False)]
    """Continue a killed or failed run with the same arguments; memory and workers may differ. Default: False."""
    stdin: BinaryIO | None
    """Stream to read when the input is ``-``. Default: standard input."""
    stdout: BinaryIO | None
    """Stream to write when the output is ``-``. Default: standard output."""


# fmt: on


OPTIONS: Mapping[str, Option] = {
    name: kind.__metadata__[0]
    for name, kind in Options.__annotations__.items()
    if hasattr(kind, "__metadata__")
}
"""All options of the command, by name."""


def flag_of(name: str) -> str:
    """Return the flag of an option.

    >>> flag_of("head_count"), flag_of("storage_options")
    ('--head-count', '--storage-option')
    """
    if name in OPTIONS and (flag := OPTIONS[name].flag):
        return flag
    return f"--{name.replace('_', '-')}"


def describe_options(job: object) -> dict[str, object]:
    """Return the options that the output of a job depends on, by flag, as JSON values."""
    return {flag_of(name): option.identity(job) for name, option in OPTIONS.items() if option.identity}


def to_keywords(message: str) -> str:
    """Return a message about flags in terms of the arguments of the Python functions.

    >>> to_keywords("exists already; give --overwrite, a lower --memory, --format text or --column NAME")
    "exists already; give overwrite=True, a lower memory, format='text' or column=NAME"

    A command at the end stays.

    >>> to_keywords("give --resume, or remove it with recshuf clean s3://b/out/ --yes")
    'give resume=True, or remove it with recshuf clean s3://b/out/ --yes'
    >>> to_keywords("no such pile store; make one with recshuf scatter INPUT... -o s/a")
    'no such pile store; make one with recshuf scatter INPUT... -o s/a'
    """
    command = _COMMAND.search(message)
    end = command.start() if command else len(message)
    return _FLAG.sub(_to_keyword, message[:end]) + message[end:]


def _to_keyword(match: re.Match[str]) -> str:
    flag, value = match[1], (match[2] or "").strip()
    name = _ODD_NAMES.get(flag) or flag.removeprefix("--").replace("-", "_")
    if name in OPTIONS and OPTIONS[name].metavar is None:
        return f"{name}=True" + (match[2] or "")
    if value.isupper():
        return f"{name}={value}"
    return f"{name}={value!r}" if value else name


def refuse_unknown(options: Mapping[str, object], kind: type) -> None:
    """Refuse names that are not in an option class.

    Raises
    ------
    TypeError
        Names the first unknown option.
    """
    unknown = set(options) - kind.__annotations__.keys()
    if unknown:
        raise TypeError(f"unknown option {sorted(unknown)[0]!r}")
