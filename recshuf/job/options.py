"""What every option is, said once: commands, functions, checks and ``--resume`` all go by these declarations.

Annotations are evaluated here, so that the declarations can be read from them.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal, NamedTuple, TypedDict

from recshuf.errors import UsageError
from recshuf.system.units import parse_size

if TYPE_CHECKING:
    import pyarrow as pa

    from recshuf.job.job import Job

Names = str | Iterable[str]
Size = int | str

FORMATS = ("jsonl", "text", "parquet", "hdf5")
_ESCAPES = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"0": b"\0", b"\\": b"\\"}


class Option(NamedTuple):
    """What an option is beside its name and its Python type."""

    group: str
    """Heading that ``--help`` puts it under."""
    metavar: str | None
    """What ``--help`` calls its value; None for a flag."""
    help: str
    short: str | None = None
    default: object = None
    shows_default: bool = False
    parse: Callable[[str], object] = str
    """Turns a word of the command line into a value."""
    choices: tuple[str, ...] = ()
    is_path: bool = False
    side: Literal["records", "inputs", "output"] | None = None
    """What it concerns, if that must be of one of `formats`; ``records`` are inputs and output. None if it fits all."""
    formats: tuple[str, ...] = ()
    flags: str | None = None
    """What a refusal calls the option; None for its own flag."""
    identity: "Callable[[Job], object] | None" = None
    """Its value in the journal, which ``--resume`` compares; None if the output does not depend on it. The default of a new
    option must give None, since journals that lack it are taken to say that."""


def parse_seed(text: str) -> int:
    """Return a whole number, decimal or hexadecimal.

    >>> parse_seed("0xff")
    255
    """
    try:
        return int(text, 16 if text[:2] in ("0x", "0X") else 10)
    except ValueError:
        raise UsageError(f"{text!r} is not a whole number from 0 to 2^128-1") from None


def parse_separator(text: str) -> bytes:
    r"""Return the bytes of a command line argument, its escapes replaced.

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
class CheckOptions(TypedDict, total=False):
    """Options of `check`, and of all other functions: what the records are, and what may be used."""

    format: Annotated[str | None, Option("Input", "NAME", f"Format of the inputs: {', '.join(FORMATS)}; else from suffix or content.", choices=FORMATS)]
    """Format of the inputs: ``jsonl``, ``text``, ``parquet`` or ``hdf5``; None to detect it."""
    to: Annotated[str | None, Option("Output", "NAME", "Format of the output; else from the suffix of OUTPUT, else that of the inputs.", choices=FORMATS)]
    """Format of the output; None for that of the output's suffix, else of the inputs."""
    header: Annotated[int, Option("Input", "N", "The first N lines of each text input are a header, kept at the top of each shard.",
        parse=int, default=0, side="inputs", formats=("text",), identity=lambda job: job.read.header_lines)]
    """Lines at the top of each text input that are kept once, at the top of each shard."""
    zero_terminated: Annotated[bool, Option("Input", None, "Text records end in a NUL byte.", default=False, short="-z")]
    """Text records end with a zero byte."""
    separator: Annotated[str | bytes | None, Option("Input", "STR", r"What text records end in; \n, \t, \r, \0, \xHH and \\ are escapes.",
        parse=parse_separator, side="records", formats=("text",), flags="--separator and -z", identity=lambda job: job.read.separator.hex())]
    """What ends a text record; None for a newline."""
    max_record_bytes: Annotated[Size, Option("Input", "SIZE", "Longest record accepted; a longer one is an error.",
        parse=parse_size, default="1GiB", shows_default=True)]
    """Longest text record accepted, by default 1 GiB."""
    datasets: Annotated[Names | None, Option("Input", "A,B", "HDF5 datasets that are the record; else all with a first axis.",
        side="inputs", formats=("hdf5",), identity=lambda job: job.read.datasets and list(job.read.datasets))]
    """HDF5 datasets that are the record; a string is split at commas."""
    columns: Annotated[Names | None, Option("Input", "A,B", "Parquet columns to keep; else all.",
        side="inputs", formats=("parquet",), identity=lambda job: job.read.columns and list(job.read.columns))]
    """Parquet columns to keep; a string is split at commas."""
    schema: Annotated["pa.Schema | str | os.PathLike[str] | None", Option("Input", "FILE", "Types for a conversion from JSONL, where inference is not enough.",
        is_path=True, side="inputs", formats=("jsonl", "text"), identity=lambda job: job.read.schema and str(job.read.schema))]
    """Types for a conversion from JSONL or text: a schema, or the path of a schema file."""
    memory: Annotated[Size | None, Option("Resources", "SIZE", "Limit of what the run holds in memory, beside 150 MB for the interpreter and its libraries; else half of what is available.", parse=parse_size)]
    """Limit of what the run holds beside the interpreter and its libraries; None for half of what is free."""
    workers: Annotated[int | None, Option("Resources", "N", "Threads; else the usable cores.", parse=int)]
    """Threads; None for the usable cores. The output does not depend on it."""


class VerifyOptions(CheckOptions, total=False):
    """Options of `verify`: those of the `shuffle` that wrote the output, as far as they say what its records are."""

    head_count: int | None
    """Of how many records the output is a sample."""
    provenance: bool
    """The output has the columns ``source_file`` and ``source_row``, which are not compared; its manifest says so, too."""
    temp_dir: str | os.PathLike[str] | None
    """Where hashes spill if much differs; None for `$TMPDIR`, else /var/tmp."""


class Options(CheckOptions, total=False):
    """Options of `shuffle` and `plan`, named like those of the command; a size is a number or ``"300MB"``."""

    compression: Annotated[str | None, Option("Output", "NAME[:LEVEL]", "none, zstd, gzip, snappy or lz4, as the format allows; else that of the inputs.")]
    """Of the output, with or without a level: ``"zstd:9"``; None for that of the inputs."""
    shards: Annotated[int | None, Option("Output", "N", "Cut the output into N shards; else one for each input file.", parse=int)]
    """Number of shards, whose record counts differ by at most one."""
    shard_records: Annotated[int | None, Option("Output", "N", "Cut the output into shards of N records.", parse=int)]
    """Records in each shard but the last."""
    shard_bytes: Annotated[Size | None, Option("Output", "SIZE", "Cut the output into shards of about SIZE.", parse=parse_size)]
    """About how large a shard should be."""
    seed: Annotated[int | None, Option("Order", "N", "0 to 2^128-1; else one is drawn, printed and recorded.", parse=parse_seed)]
    """0 to 2**128 - 1; None draws one, which the report names."""
    temp_dir: Annotated[str | os.PathLike[str] | None, Option("Resources", "DIR", "Where records spill that memory cannot hold; else beside the output.", is_path=True)]
    """Where piles spill; None for beside the output."""
    spill_compression: Annotated[str, Option("Resources", "NAME", "Of what is spilled: none, lz4 or zstd, for a disk slower than the processor; the output is the same.",
        default="none", shows_default=True)]
    """Of what is spilled: ``"none"``, the default, ``"lz4"`` or ``"zstd"``. The output does not depend on it."""
    no_space_check: Annotated[bool, Option("Resources", None, "Start even if the disk seems to have no room for the run.", default=False)]
    """Start even if the disk seems to have no room for the run."""
    piles: Annotated[int | None, Option("Resources", "N", "How many piles; for tests and experts.", parse=int)]
    """Number of piles; None for what the plan finds best."""
    head_count: Annotated[int | None, Option("Order", "N", "Write only N records: a uniform sample, in random order.", short="-n", parse=int)]
    """Write only so many records: a uniform sample without replacement, in random order."""
    nan_as_null: Annotated[bool, Option("Output", None, "Write NaN and infinities to JSONL as null; else they are an error.", default=False,
        side="output", formats=("jsonl",), identity=lambda job: job.write.nan_as_null)]
    """Write NaN and infinities as JSON null instead of refusing them."""
    on_bad_record: Annotated[str, Option("Input", "WHAT", "In a conversion from lines, one that does not parse: fail, or quarantine:FILE to set it aside.",
        default="fail", shows_default=True, identity=lambda job: job.quarantine and str(job.quarantine))]
    """In a conversion from lines, what to do with those that do not parse: ``"fail"``, the default, or
    ``"quarantine:FILE"`` to set them aside."""
    provenance: Annotated[bool, Option("Output", None, "Add the columns source_file and source_row, which say where each record was read.", default=False,
        identity=lambda job: job.options["provenance"] or None)]
    """Add the columns ``source_file`` and ``source_row``, which say where each record was read."""
    overwrite: Annotated[bool, Option("Output", None, "Replace an output that exists; else it is refused.", default=False)]
    """Replace an output that exists."""
    verify: Annotated[bool, Option("Output", None, "Before the output is put in place, read it again and compare it with the inputs.", default=False)]
    """Compare the shards with the inputs, record by record, before they are put in place."""
    resume: Annotated[bool, Option("Output", None, "Go on from what a killed or failed run of the same command has finished.", default=False)]
    """Go on from what an earlier run with the same arguments has finished; memory and workers may differ."""
    stdin: BinaryIO | None
    """What to read when the input is ``-``; None for standard input."""
    stdout: BinaryIO | None
    """What to write when the output is ``-``; None for standard output."""
# fmt: on


OPTIONS: Mapping[str, Option] = {
    name: kind.__metadata__[0]
    for name, kind in Options.__annotations__.items()
    if hasattr(kind, "__metadata__")
}
"""All options of the command, by name."""


def flag_of(name: str) -> str:
    """Return the flag of an option.

    >>> flag_of("head_count")
    '--head-count'
    """
    return f"--{name.replace('_', '-')}"


def refuse_unknown(options: Mapping[str, object], kind: type) -> None:
    """Refuse names that are no options of a kind.

    Raises
    ------
    TypeError
        Naming the first.
    """
    unknown = set(options) - kind.__annotations__.keys()
    if unknown:
        raise TypeError(f"unknown option {sorted(unknown)[0]!r}")
