"""All options, declared once, for the command line, the Python functions, the checks and ``--resume``.

This module evaluates its annotations, because `OPTIONS` is read from them.
"""

import os
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, NamedTuple, Protocol, TypedDict

from recshuf.errors import UnknownOptionError, UsageError
from recshuf.job.features import show_number
from recshuf.system.units import parse_size

if TYPE_CHECKING:
    from recshuf.formats import DeclaredOption
    from recshuf.job.job import Job

LOCAL, PROCESSES = "local", "processes"
"""The engines of this machine: this process, and others that it starts."""
ENGINES = {
    LOCAL: "",
    PROCESSES: "recshuf.run.engines:ProcessEngine",
    "ray": "recshuf.run.engines:RayEngine",
    "tasks": "",
}
"""Module and class of each engine, if it needs one. The class takes an address, None for the default, and the cores of a task."""


def check_engine(name: str | None) -> None:
    if name is not None and name not in ENGINES:
        raise UsageError(f"--engine {name!r} is not possible; choose one of {', '.join(ENGINES)}")


class ArrowSchema(Protocol):
    """A schema of pyarrow, or of another library with Arrow's C interface."""

    def __arrow_c_schema__(self) -> object:
        """Return a capsule with the schema."""


class ArrowTable(Protocol):
    """Records of a library with Arrow's C interface: a table, a data frame, a reader, a relation."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return a capsule with a stream of record batches."""


Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
Inputs = Paths | ArrowTable | Iterable[str | os.PathLike[str] | ArrowTable]
"""Paths, or records that the caller holds; also data sets of pyarrow and of Hugging Face."""
Names = str | Iterable[str]
Numbers = str | Sequence[float | str]
"""Numbers, or text that is split at commas."""
Size = int | float | str
"""Bytes, or text such as ``300MB``."""
SchemaLike = ArrowSchema | Mapping[str, object] | str | os.PathLike[str]
"""A schema, the content of a schema file, or its path."""
_FLAG = re.compile(
    r"(?<![\w./-])(--[a-z]+(?:-[a-z]+)*|-[oz]|(?<!ulimit )-n)\b"
    r"( (?:(?:(?<=--format )|(?<=--to ))(?!(?:and|if|is|or|was)\b)\w+"
    r"|(?:(?<=--record-start )|(?<=--separator ))'[^']+'|(?<=--record-lines )\d+"
    r"|(?<=give --memory )\d+(?:\.\d+)?[A-Z]B|(?<=give --compression )[a-z]+\d*(?!:)|quarantine:FILE|[A-Z]{3,}"
    r"|(?:(?<=--header )|(?<=--quote )|(?<=--skip-lines ))(?:\d+|none|first)|(?:(?<=--quote )|(?<=--comment )"
    r"|(?<=--delimiter ))'[^']')(?!\w|\.\d))?"
)
"""A flag in a message, and the format, the size, the compression or the placeholder after it."""
_OR = ", or "
"""Between the ways of a remedy."""
_COMMAND = re.compile(r"recshuf (?:check |clean |gather |scatter |store |task |verify |INPUT)|GNU tar ")
_ODD_NAMES = {
    "-n": "head_count",
    "-o": "output",
    "-z": "zero_terminated",
    "--id": "id_column",
    "--field": "column",
    "--storage-option": "storage_options",
}
_RESERVED = {
    *("inputs", "output", "store", "report", "html", "json", "plan", "quiet", "verbose", "version", "help"),
    *("epoch", "reshuffle", "mix", "loaders", "time", "expire_before", "append"),
}
"""Names of options of single commands."""


class Option(NamedTuple):
    """An option, apart from its name and Python type."""

    group: str
    """Its heading in ``--help``."""
    metavar: str | None
    """Name of its value in ``--help``; None for a flag."""
    help: str
    """What it means in the shuffle, in the words of the command line."""
    elsewhere: Mapping[str, str] = {}
    """What it means in other commands, by their names with spaces between; ``*`` is any other."""
    default: object = None
    parse: Callable[[str], object] = str
    """Parses its value from the command line."""
    choices: tuple[str, ...] = ()
    is_format: bool = False
    is_path: bool = False
    is_repeatable: bool = False
    flags: tuple[str, ...] = ()
    """Its flags, if its name is not the only one; the last one stands for it in messages."""
    field: str | None = None
    """The field of `ReadOptions` that it sets, if formats say in `Traits.read_options` whether they heed it."""
    identity: Callable[[Any], object] | None = None
    """Returns its value of a `Job` for the journal, which ``--resume`` compares; None if the output does not depend on it.

    Must be None for the default of a new option, because older journals lack the option."""

    def explain(self, command: str) -> str:
        """Return what it means in a command; the shuffle is the empty name."""
        own = {name: text for names, text in self.elsewhere.items() for name in names.split()}
        return own.get(command) or (own.get("*") if command else None) or self.help


def _parse_seed(text: str) -> int:
    """Return a whole number, decimal or hexadecimal.

    >>> _parse_seed("0xff")
    255
    """
    try:
        return int(text, 16 if text[:2] in ("0x", "0X") else 10)
    except ValueError:
        raise UsageError(f"{text!r} is not a whole number from 0 to 2^128-1") from None


def parse_count(text: str) -> int | str:
    """Return a number of records, or a share of them as it is.

    >>> parse_count("12"), parse_count("12.5%")
    (12, '12.5%')
    """
    if text.endswith("%"):
        return text
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{text!r} is neither a whole number nor a share such as 10%") from None


# fmt: off
class DeclaredElsewhere(TypedDict, total=False):
    """Options of inputs that recshuf's own formats declare, for type checkers; docs/options.md says what they mean."""

    header: int | str | None
    skip_lines: int | None
    comment: str | bytes | None
    delimiter: str | bytes | None
    quote: str | bytes | None
    separator: str | bytes | None
    zero_terminated: bool | None
    datasets: Names | None
    keep_others: bool | None
    record_lines: int | None
    record_start: str | bytes | None
    record_bytes: int | None
    header_bytes: int | None
    dtype: str | None
    record_shape: str | int | None


class InputOptions(DeclaredElsewhere, total=False):
    """Options of all functions that read inputs."""

    format: Annotated[str | None, Option("Input", "NAME", "Format of the inputs: jsonl, json, csv, text, tfrecord, parquet, hdf5, arrow, npy, npz, binary, webdataset, megatron. Default: from suffix, else from content.",
        {"check picture": "Format of DATA, or with --against of the INPUTs. Default: from suffix, else from content."}, is_format=True)]
    max_record_bytes: Annotated[Size, Option("Input", "SIZE", "Longest record accepted. A longer one is an error. Default: 1GiB.", parse=parse_size, default="1GiB")]
    columns: Annotated[Names | None, Option("Input", "A,B", "Parquet, Arrow, CSV, JSONL: columns to keep. Default: all.",
        field="columns", identity=lambda job: job.read.columns and list(job.read.columns))]
    widen: Annotated[bool, Option("Input", None, "Parquet, Arrow and HDF5: unite integers of one input with floats of another, as float64; Parquet: integers or decimals with decimals of another scale. A value that the type does not hold exactly is an error. Default: such inputs are refused, unless the float holds all integers of the type. HDF5 that is written as HDF5: unite types that differ, such as text of other lengths. Default: such inputs are refused, but output of another format has one type for all.",
        default=False, field="widens", identity=lambda job: job.read.widens or None)]
    schema: Annotated[SchemaLike | None, Option("Input", "FILE", "Schema file for a conversion from JSONL, CSV or text. Default: inferred types.", {
            "check picture": "Schema file for the fields of JSONL, CSV or text, if the shuffle got one. Default: inferred types.",
            "scatter": "Schema file for the fields of JSONL, CSV or text. Default: inferred types.",
            "window": "Has no effect: inputs are read with the columns of the store, which never change.",
        }, is_path=True, field="schema", identity=lambda job: None if job.read.schema is None else str(job.read.schema))]
    memory: Annotated[Size | None, Option("Resources", "SIZE", "Memory limit, excluding about 150 MB for Python and libraries. Default: half of available memory.", parse=parse_size)]
    workers: Annotated[int | None, Option("Resources", "N", "Number of threads. Does not change the output. Default: usable cores.", parse=int)]
    endpoint_url: Annotated[str | None, Option("Resources", "URL", "Object stores: server that speaks the protocol of the store. Default: that of the provider.")]
    storage_options: Annotated[Mapping[str, str], Option("Resources", "NAME=VALUE", "Object stores: an option, such as region=eu-west-1, of all buckets of s3:// as s3:region=eu-west-1, of one bucket as s3://bucket:region=eu-west-1; may be repeated.",
        default=(), is_repeatable=True, flags=("--storage-option",))]


class CheckOptions(InputOptions, total=False):
    """Options that `shuffle`, `verify`, `check` and `picture` share."""

    token_type: str | None
    to: Annotated[str | None, Option("Output", "NAME", "Output format. Default: from the suffix of OUTPUT, else that of the inputs.", {
            "verify": "Format of OUTPUT. Default: from its manifest, suffix or content.",
            "check picture": "With --against: format of DATA. Default: from its manifest, suffix or content.",
            "gather": "Output format. Default: from the suffix of OUTPUT, else that of the inputs of the store.",
        }, is_format=True)]


class ScatterOptions(InputOptions, total=False):
    """Options of `scatter` and `window`; see `Options` for their forms."""

    first_metadata: bool
    seed: int | None
    piles: int | None
    spill_compression: str | None
    on_bad_record: str
    overwrite: bool


class StreamOptions(InputOptions, total=False):
    """Options of `stream`; see `Options` for their forms."""

    first_metadata: bool
    seed: int | None
    head_count: int | str | None
    group_by: Names | None
    group_order: str | None
    piles: int | None
    spill_compression: str | None
    dedup: Names | None
    on_bad_record: str
    overwrite: bool
    provenance: bool
    temp_dir: str | os.PathLike[str] | None
    no_space_check: bool


class GatherOptions(TypedDict, total=False):
    """Options of `gather`; see `Options` for their forms."""

    token_type: str | None
    to: str | None
    rename_keys: bool | None
    memory: Size | None
    workers: int | None
    compression: str | None
    shards: int | None
    shard_records: int | None
    shard_bytes: Size | None
    seed: int | None
    temp_dir: str | os.PathLike[str] | None
    no_space_check: bool
    endpoint_url: str | None
    storage_options: Mapping[str, str]
    head_count: int | str | None
    nan_as_null: bool | None
    provenance: bool
    verify: bool
    overwrite: bool
    resume: bool


class OrderOptions(CheckOptions, total=False):
    """Options of `check` and `picture`; see `Options` for their forms."""

    against: Annotated[Paths, Option("Order", "INPUT...", "Inputs that DATA was shuffled from, by any program; records are matched by content.", is_repeatable=True)]
    id_column: Annotated[str | None, Option("Order", "NAME", "With --against: column or field that identifies a record. Default: its whole content.", flags=("--id",))]
    column: Annotated[str | None, Option("Order", "NAME", "Column, dataset or field (a.b) to test or draw; nothing else is read. Default: the name in --datasets or --columns, if it is a single one.",
        flags=("--column", "--field"))]
    provenance: Annotated[bool, Option("Order", None, "Use the columns source_file and source_row that a shuffle with --provenance added.")]


class VerifyOptions(CheckOptions, total=False):
    """Options of `verify`: give those that `shuffle` got; see `Options` for their forms."""

    first_metadata: bool
    split: str | Mapping[str, float | str] | None
    split_by: Names | None
    split_seed: int | None
    rename_keys: bool | None
    page_checksums: bool | None
    head_count: int | str | None
    weights: Numbers | None
    copies: Numbers | None
    dedup: Names | None
    provenance: bool
    nan_as_null: bool | None
    temp_dir: str | os.PathLike[str] | None


class Options(CheckOptions, total=False):
    """Options of `shuffle` and `plan`; docs/options.md has those of all commands.

    A size is a number of bytes, or ``"300MB"``. Names are a list, or text that is split at commas. `schema` may also be a schema of
    pyarrow, or the content of a schema file, a dict; `storage_options` is a dict of names and values. `stdin` and `stdout` are the
    streams of an input or output ``"-"``, by default those of the process.
    """

    first_metadata: Annotated[bool, Option("Input", None, "HDF5, Parquet, Arrow: of attributes and keys in which the inputs differ, take those of the first, also where these decide what values mean. Default: such inputs are refused.", {
            "verify": "HDF5, Parquet, Arrow: expect the attributes and keys of the first input, where the inputs differ. Default: inputs that differ in what values mean are refused.",
            "window": "HDF5, Parquet, Arrow: of attributes and keys in which the inputs differ from the store, take those of the store, also where these decide what values mean. Default: such inputs are refused.",
        }, default=False, field="first_metadata", identity=lambda job: job.read.first_metadata or None)]
    rename_keys: bool | None
    page_checksums: bool | None
    compression: Annotated[str | None, Option("Output", "NAME[:LEVEL]", "Output compression: none, zstd, gzip, bz2, xz, lz4 or snappy. Default: from the suffix of OUTPUT, else that of the inputs.")]
    shards: Annotated[int | None, Option("Output", "N", "Number of shards; their record counts differ by at most one. Default: one per input file, in a directory.",
        {"gather": "Number of shards. Default: one per input of the store, in a directory."}, parse=int)]
    shard_records: Annotated[int | None, Option("Output", "N", "Records per shard; the last one may have fewer.", parse=int)]
    shard_bytes: Annotated[Size | None, Option("Output", "SIZE", "Approximate size of a shard.", parse=parse_size)]
    seed: Annotated[int | None, Option("Order", "N", "Seed, 0 to 2^128-1. Default: drawn at random, printed and recorded.", {
            "gather": "Another seed than that of the store shuffles its records anew. Default: that of the store, whose keys are their order.",
            "window": "Must be the seed of the store; another one is an error. Default: that of the store.",
            "check": "With --loader: seed of the epochs. Default: that of the store.",
        }, parse=_parse_seed)]
    temp_dir: Annotated[str | os.PathLike[str] | None, Option("Resources", "DIR", "Folder for spilled records, or the URL of a prefix in an object store, to which they are uploaded. Default: beside the output.", {
            "verify": "Folder for hashes that do not fit in memory. Default: $TMPDIR, else /var/tmp.",
            "gather": "Folder for spilled records. Default: beside the output.",
        }, is_path=True, identity=lambda job: None if job.temp_url is None else "a URL")]
    spill_compression: Annotated[str | None, Option("Resources", "NAME", "Compression of spilled records: none, lz4 or zstd. Helps on a slow or small disk. Does not change the output. Default: none, and lz4 from when threads wait long for the disk.",
        {"scatter window": "Compression of the records: none, lz4 or zstd. Default: none."})]
    engine: Annotated[str | None, Option("Resources", "NAME", "What does the work: local, threads of this process; processes, one for each worker; ray, a Ray cluster; tasks, recshuf task on any machines (see docs/scale.md). The last two: --workers and --memory are those of each task, by default 1 and a core's share. Does not change the output. Default: processes for large data and eight workers or more, if the plan says that they are faster; else local.",
        choices=tuple(ENGINES), identity=lambda job: None if job.options["engine"] in (None, LOCAL) else "processes, ray or tasks")]
    ray_address: Annotated[str | None, Option("Resources", "ADDR", "Address of the Ray cluster. Default: as ray.init finds it, else Ray on this machine.")]
    no_space_check: Annotated[bool, Option("Resources", None, "Start even if the disk seems too small.", default=False)]
    piles: Annotated[int | None, Option("Resources", "N", "Number of piles, 1 to 65,536, for tests and experts. Default: chosen by the plan.", {
            "scatter": "Number of piles, 1 to 65,536. Default: one for each 8 MB of records.",
            "window": "Must be the number of piles of the store. Default: that of the store.",
        }, parse=int)]
    head_count: Annotated[int | str | None, Option("Order", "N", "Write a uniform sample of N records, or of a share such as 10%, without replacement, in random order. Default: all records.",
        {"verify": "Size of the sample that OUTPUT is. Default: it is no sample."}, flags=("-n", "--head-count"), parse=parse_count)]
    group_by: Annotated[Names | None, Option("Order", "F[,F]", "Keep records with equal values of these fields together; the groups are in random order, and no shard ends inside one. Default: records are shuffled one by one.",
        identity=lambda job: job.options["group_by"] and list(job.feature.fields))]
    group_order: Annotated[str | None, Option("Order", "NAME", "With --group-by: order inside a group: input, that of the inputs, or random. Default: input.",
        choices=("input", "random"), identity=lambda job: job.options["group_order"] and job.feature.order)]
    dedup: Annotated[Names | None, Option("Order", "F[,F]", "Of records with equal values of these fields, or with the word record of equal records, keep the first in the order of the inputs. Shards are ranges of keys, with nearly as many records each. Default: all are kept.",
        {"verify": "OUTPUT was written with this --dedup: it holds the first record of each value. Default: as in its manifest, else all are kept."},
        identity=lambda job: job.options["dedup"] and (list(job.feature.fields) or "record"))]
    split: Annotated[str | Mapping[str, float | str] | None, Option("Output", "NAME=SHARE,...", "Write parts of these shares, such as train=0.98,val=0.01,test=0.01, each into a folder of OUTPUT. Default: one part.",
        {"verify": "Shares of the parts in the folders of OUTPUT. Default: as in its manifest."},
        identity=lambda job: job.options["split"] and job.feature.to_json()["shares"])]
    split_by: Annotated[Names | None, Option("Output", "F[,F]", "With --split: all records with equal values of these fields go to one part, the same one whatever else the inputs hold; sizes are near their shares. Default: sizes are exact, and any record goes to any part.",
        identity=lambda job: job.options["split_by"] and list(job.feature.fields))]
    split_seed: Annotated[int | None, Option("Output", "N", "With --split-by: another seed puts values into other parts. Default: 0.",
        parse=_parse_seed, identity=lambda job: job.options["split_by"] and job.feature.seed)]
    weights: Annotated[Numbers | None, Option("Order", "W,W", "One weight for each INPUT: with -n N, take N records in these proportions, each record of an INPUT equally often, or once more. Default: each record once.",
        {"verify": "The weights of the run that wrote OUTPUT. Default: as in its manifest."},
        identity=lambda job: job.options["weights"] and list(map(show_number, job.feature.weights)))]
    copies: Annotated[Numbers | None, Option("Order", "C,C", "How often to take the records of each INPUT, such as 1,3,0.5; a fraction is a sample. Default: each record once.",
        {"verify": "The copies of the run that wrote OUTPUT. Default: as in its manifest."},
        identity=lambda job: job.options["copies"] and list(map(show_number, job.feature.copies)))]
    nan_as_null: bool | None
    on_bad_record: Annotated[str, Option("Input", "WHAT", "What to do with a line that does not parse, in a conversion, or with a damaged payload of TFRecord: fail, or quarantine:FILE to set it aside. Default: fail.",
        {"scatter window": "What to do with a line that does not parse: fail, or quarantine:FILE to set it aside. Default: fail."},
        default="fail", identity=lambda job: job.quarantine and str(job.quarantine))]
    provenance: Annotated[bool, Option("Output", None, "Add the columns source_file and source_row, the input and row of each record.",
        {"verify": "Ignore the columns source_file and source_row of OUTPUT. Default: as in its manifest."}, default=False, identity=lambda job: job.options["provenance"] or None)]
    overwrite: Annotated[bool, Option("Output", None, "Replace an existing output, report or page. Default: it is an error.", {
            "verify": "Replace an existing report. Default: it is an error.",
            "scatter": "Replace an existing report or file of bad lines. Default: it is an error.",
            "window": "Replace an existing file of bad lines. Default: it is an error.",
            "check": "Replace an existing page. Default: it is an error.",
            "picture": "Replace an existing picture. Default: it is an error.",
            "gather": "Replace an existing output or report. Default: it is an error.",
        }, default=False)]
    verify: Annotated[bool, Option("Output", None, "Compare the output with the inputs before it is put in place; in an object store, after that.",
        {"gather": "Compare the output with the store before it is put in place; in an object store, after that."}, default=False)]
    resume: Annotated[bool, Option("Output", None, "Continue a killed or failed run of the same command; --memory and --workers may differ.", default=False)]
    stdin: BinaryIO | None
    stdout: BinaryIO | None


# fmt: on
OPTIONS: Mapping[str, Option] = {
    name: kind.__metadata__[0]
    for name, kind in Options.__annotations__.items()
    if hasattr(kind, "__metadata__")
}


def options_of(kind: type) -> dict[str, Option]:
    """Return the options in an option class, by name; those that it declares as types only are those of the shuffle."""
    declared = {
        name: getattr(hint, "__metadata__", (OPTIONS.get(name),))[0]
        for name, hint in kind.__annotations__.items()
    }
    return {name: option for name, option in declared.items() if option is not None}


def flag_of(name: str) -> str:
    """Return the flag of an option.

    >>> flag_of("head_count"), flag_of("storage_options")
    ('--head-count', '--storage-option')
    """
    flags = OPTIONS[name].flags if name in OPTIONS else ()
    return flags[-1] if flags else f"--{name.replace('_', '-')}"


def describe_options(job: "Job") -> dict[str, object]:
    """Return the options that the output of a job depends on, by flag, as JSON values."""
    given: Mapping[str, object] = {**job.options}
    own = {flag_of(name): _identify(value, given[name]) for name, value in job.read.own}
    return {flag_of(name): option.identity(job) for name, option in OPTIONS.items() if option.identity} | own


def _identify(value: object, given: object) -> object:
    """Return a value of an option that a format declares as a JSON value, by that which was given."""
    if isinstance(value, bytes | tuple):
        return value.hex() if isinstance(value, bytes) else [*value]
    return value if isinstance(value, bool | int | float | str) else str(given)


def list_own(kind: type | None = None, wanted: Iterable[str] = ()) -> "dict[str, DeclaredOption]":
    """Return the options that formats declare, by name: of inputs or outputs of a function with this option class, or all.

    If those wanted are among those of recshuf's own formats, other packages are not asked.
    """
    from recshuf.formats import explain_owner, list_options  # most runs need none

    own = list_options(wanted)
    if taken := sorted(own.keys() & {*_RESERVED, *OPTIONS, *options_of(OrderOptions)}):
        owner = explain_owner(own[taken[0]].owners[0])
        raise UsageError(f"{owner} declares the option {taken[0]}, which recshuf has; mend or remove it")
    sides = _FORMAT_OPTIONS if kind is None else _FORMAT_OPTIONS & kind.__annotations__.keys()
    return {name: declared for name, declared in own.items() if _SIDES[declared.option.side](sides)}


def describe_own(declared: "DeclaredOption") -> Option:
    """Return an option that formats declare as those of recshuf; its text names the formats."""
    from recshuf.interfaces import FORMATS_GROUP

    option, owners = declared
    prefix = f"{', '.join(owners)}: " if option.group == FORMATS_GROUP else ""
    text, flag = prefix + option.help, flag_of(option.name)
    flags = (f"{flag}/--no{flag[1:]}",) if option.has_opposite else option.flags
    return Option(option.group, option.metavar, text, dict(option.elsewhere), flags=flags)


_FORMAT_OPTIONS = frozenset({"format", "to"})
_SIDES: Mapping[str, Callable[[Iterable[str]], bool]] = {
    "inputs": lambda options: "format" in options,
    "output": lambda options: "to" in options,
    "records": bool,
    "both": lambda options: "to" in options,
    "native": lambda options: "format" in options,
}
"""Whether a function takes options of a side of `FormatOption`, given those of `_FORMAT_OPTIONS` that it has."""


def find_own(names: Iterable[str], kind: type | None = None) -> "dict[str, DeclaredOption]":
    """Return those of some options that formats declare, by name; see `list_own`."""
    wanted = {*names} - OPTIONS.keys()
    own = list_own(kind, wanted) if wanted else {}
    return {name: own[name] for name in sorted(wanted & own.keys())}


def to_keywords(message: str) -> str:
    """Return a message about flags in terms of the arguments of the Python functions.

    >>> to_keywords("exists already; give --overwrite, a lower --memory, --format text or --column NAME")
    "exists already; give overwrite=True, a lower memory, format='text' or column=NAME"
    >>> to_keywords("give --memory 300MB"), to_keywords("give --memory 87.4MB, or group")
    ("give memory='300MB'", "give memory='87.4MB', or group")

    A command at the end stays, of recshuf or of tar.

    >>> to_keywords("give --resume, or remove it with recshuf clean s3://b/out/ --yes")
    'give resume=True, or remove it with recshuf clean s3://b/out/ --yes'
    >>> to_keywords("give --rename-keys, or write it again with GNU tar --sort=name")
    'give rename_keys=True, or write it again with GNU tar --sort=name'
    >>> to_keywords("no such pile store; make one with recshuf scatter INPUT... -o s/a")
    'no such pile store; make one with recshuf scatter INPUT... -o s/a'
    """
    command = _COMMAND.search(message)
    end = command.start() if command else len(message)
    return _FLAG.sub(_to_keyword, message[:end]) + message[end:]


def fit_remedy(error: BaseException, names: Iterable[str], kind: type | None = None) -> str:
    """Return the message of an error, without the ways of its remedy that name options which the caller lacks.

    Parameters
    ----------
    names
        Those of the caller's arguments.
    kind
        Its option class.

    >>> from recshuf.errors import InputError
    >>> error = InputError("a.csv", "is bad", remedy="correct it, or set it aside with --on-bad-record quarantine:FILE")
    >>> fit_remedy(error, ["columns"])
    'a.csv: is bad; correct it'
    """
    message, remedy = str(error), getattr(error, "remedy", None)
    if not remedy or not message.endswith(remedy):
        return message
    known = {*names, *(kind.__annotations__ if kind else ())}
    ways = remedy.split(_OR)
    kept = [way for way in ways if not any(_is_lacking(name, known, kind) for name in _list_named(way))]
    if len(kept) == len(ways):
        return message
    return message.removesuffix(remedy) + _OR.join(kept) if kept else message.removesuffix(f"; {remedy}")


def _list_named(text: str) -> list[str]:
    """Return the options that a text names, before a command at its end."""
    return [_name_option(flag) for flag, _ in _FLAG.findall(_COMMAND.split(text)[0])]


def _is_lacking(name: str, known: Iterable[str], kind: type | None) -> bool:
    """Tell whether an option is one of recshuf, and not of a function that has those known and those of a class."""
    if name in known or name in OPTIONS:
        return name not in known
    try:
        return bool(find_own([name])) and not (kind and find_own([name], kind))
    except UsageError:  # two formats contradict each other
        return False


def _name_option(flag: str) -> str:
    return _ODD_NAMES.get(flag) or flag.removeprefix("--").replace("-", "_")


def _to_keyword(match: re.Match[str]) -> str:
    flag, value = match[1], (match[2] or "").strip()
    name = _name_option(flag)
    if _is_switch(name):
        return f"{name}=True" + (match[2] or "")
    if value.isalpha() and value.isupper():
        return f"{name}={value}"
    if value.isdecimal() or value.startswith("'"):
        return f"{name}={value}"
    return f"{name}={value!r}" if value else name


def _is_switch(name: str) -> bool:
    """Tell whether an option, perhaps of a format, is True or False."""
    if name in {*OPTIONS, *_RESERVED, *options_of(OrderOptions)}:
        return name in OPTIONS and OPTIONS[name].metavar is None
    try:
        own = find_own([name])
    except UsageError:  # two formats contradict each other
        return False
    return name in own and own[name].option.metavar is None


_ELSEWHERE = {
    **dict.fromkeys(("threads", "jobs", "j", "n_jobs", "num_workers"), "workers"),
    **dict.fromkeys(("random_seed", "random_state"), "seed"),
    "buffer_size": "memory",
    "force": "overwrite",
    "n": "head_count",
}
"""Options of recshuf by the names that others give them."""
_LIKENESS = 0.65
"""Of a name to a known one, to propose it: `quiet` is none for `quote`."""


def find_meant(name: str, known: Container[str]) -> str | None:
    """Return the known option that other tools call so."""
    meant = _ELSEWHERE.get(name)
    return meant if meant in known else None


def refuse_unknown(options: Mapping[str, object], kind: type) -> None:
    """Raise an `UnknownOptionError` for a name that is not in an option class."""
    unknown = sorted(set(options) - kind.__annotations__.keys())
    unknown = [name for name in unknown if name not in find_own(unknown, kind)]
    if unknown:
        known = {**kind.__annotations__, **list_own(kind)}
        near = get_close_matches(unknown[0], known, 1, _LIKENESS)
        meant = find_meant(unknown[0], known) or (near[0] if near else None)
        remedy = f"did you mean {meant}?" if meant else f"see help(recshuf.{kind.__name__})"
        raise UnknownOptionError(f"unknown option {unknown[0]!r}; {remedy}")


_COMMANDS = {
    "Options": "",
    "VerifyOptions": "verify",
    "OrderOptions": "check",
    "ScatterOptions": "scatter",
    "GatherOptions": "gather",
    "StreamOptions": "stream",
}


def add_texts(kind: type) -> None:
    """Add what each option means, those of formats among them, to the docstring of an option class, in the words of Python."""
    if kind.__name__ not in _COMMANDS:
        return
    try:
        own = list_own(kind)
    except UsageError:  # packages contradict each other, which `recshuf formats` says
        own = {}
    options = options_of(kind) | {name: describe_own(declared) for name, declared in own.items()}
    texts = [
        f"{name}\n    {to_keywords(option.explain(_COMMANDS[kind.__name__]))}"
        for name, option in options.items()
    ]
    kind.__doc__ = "\n\n".join(
        [f"{kind.__doc__ or ''}".rstrip(), "Attributes\n----------\n" + "\n".join(texts)]
    )
