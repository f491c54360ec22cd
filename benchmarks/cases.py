"""The benchmark cases, and the tools that run them."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from dataclasses import asdict, dataclass, field, replace
from itertools import starmap
from typing import TYPE_CHECKING

from benchmarks.data import PARQUET_GROUP_ROWS
from benchmarks.rivals import Job

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

OURSELVES = "recshuf"
FLOOR = "floor"


@dataclass(frozen=True, slots=True)
class Contender:
    """A tool that does a job.

    Parts of the command may name fields of the run: ``{given}``, ``{output}``, ``{memory}`` in bytes, ``{memory_gib}``,
    ``{temp}`` (a folder to spill into) and ``{job}`` (all of it for `benchmarks.rivals`).
    """

    name: str
    command: tuple[str, ...]
    executable: str = ""
    """Must be on the PATH, if named."""
    module: str = ""
    """Must be installed, if named."""
    reads_stdin: bool = False
    writes_stdout: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    is_sample: bool = False
    """Does a part of the job, and prints which share, for its figures to be extrapolated."""

    def find_lack(self) -> str:
        """Return what is missing, or nothing."""
        if self.executable and not shutil.which(self.executable):
            return f"missing: no {self.executable} on the PATH"
        if self.module and not importlib.util.find_spec(self.module):
            return f"missing: no module {self.module}, which the extra `bench` installs"
        return ""


@dataclass(frozen=True, slots=True)
class Data:
    """The input of a job, made by `benchmarks.data`."""

    kind: str
    suffix: str = ""
    """Of a text file."""
    codec: str = ""
    """Of a folder."""
    options: tuple[str, ...] = ()
    """More options of `benchmarks.data`."""

    def find_path(self, folder: Path, size: int) -> Path:
        """Return where data of a size lies in a folder."""
        parts = [self.kind, self.codec, *self.options, str(size)]
        return folder / ("-".join(part.strip("-") for part in parts if part) + self.suffix)


@dataclass(frozen=True, slots=True)
class Promise:
    """A least value for the ratio of another tool's figure to recshuf's."""

    name: str
    at_least: float
    figure: str = "seconds"


@dataclass(frozen=True, slots=True)
class Case:
    """A job that several tools do."""

    name: str
    data: Data
    output: str
    """The name of the output; a folder's ends in a slash."""
    contenders: tuple[Contender, ...]
    memory: int | None = None
    """Memory limit in bytes; None if everything fits."""
    records: str = ""
    """How `benchmarks.digest` reads the output; nothing if there is none."""
    codec: str = "none"
    group_rows: int = 0
    promises: tuple[Promise, ...] = ()
    most_seconds: float = 0
    """Limit for recshuf's seconds; 0 for none."""

    def find_memory(self, size: int) -> int:
        """Return the limit for data of a size; without a limit, more than any tool needs."""
        return self.memory or 4 * size + (1 << 30)


def make_job(case: Case, given: Path, output: Path, temp: Path, memory: int, workers: int) -> Job:
    """Return the job for the rivals of this package."""
    files = sorted(map(str, given.iterdir())) if given.is_dir() else [str(given)]
    name = f"{output}/" if case.output.endswith("/") else str(output)
    return Job(files, name, memory, str(temp), case.codec, case.group_rows, workers)


def fill_in(contender: Contender, given: Path, job: Job) -> Contender:
    """Return the contender with the fields of its command and environment filled in."""
    fields = {
        "given": str(given),
        "output": job.output,
        "memory": job.memory,
        "memory_gib": job.memory / (1 << 30),
        "temp": job.temp,
        "job": json.dumps(asdict(job)),
    }
    environment = {name: value.format(**fields) for name, value in contender.environment.items()}
    command = tuple(part.format(**fields) for part in contender.command)
    return replace(contender, command=command, environment=environment)


# The contenders


def name_module(module: str, *arguments: str) -> tuple[str, ...]:
    """Return the command that runs a module."""
    return (sys.executable, "-m", module, *arguments)


def name_recshuf(*options: str) -> Contender:
    """Return recshuf with these options; what follows is the same in every case."""
    limits = ("--memory", "{memory}", "--temp-dir", "{temp}", "--seed", "7", "-q")
    command = name_module("recshuf", "{given}", "-o", "{output}", *limits, *options)
    return Contender(OURSELVES, command)


def name_rival(name: str, module: str, file: str = "") -> Contender:
    """Return the rival that is a module of `benchmarks.rivals`."""
    return Contender(name, name_module(f"benchmarks.rivals.{file or module}", "{job}"), module=module)


def name_copy(name: str, *options: str) -> Contender:
    """Return the straight copy of HDF5 files."""
    return Contender(name, name_module("benchmarks.rivals.copy_arrays", "{job}", *options))


SHUF = Contender("GNU shuf", ("shuf", "{given}", "-o", "{output}"), executable="shuf")
TERASHUF = Contender(
    "terashuf",
    ("terashuf",),
    executable="terashuf",
    reads_stdin=True,
    writes_stdout=True,
    environment={"MEMORY": "{memory_gib}", "TMPDIR": "{temp}", "SEED": "7"},
)
SORT = Contender(
    "GNU sort -R",
    ("sort", "-R", "-S", "{memory}b", "-T", "{temp}", "-o", "{output}", "{given}"),
    executable="sort",
)
TWO_COPIES = Contender(
    FLOOR, ("sh", "-c", "cp {given} {temp}/copy && cat {temp}/copy && rm {temp}/copy"), writes_stdout=True
)
CAT = Contender(FLOOR, ("cat", "{given}"), writes_stdout=True)
PYTHON = Contender(FLOOR, (sys.executable, "-c", "pass"))
REWRITE = name_rival(FLOOR, "pyarrow", "rewrite")
COPY = name_copy(FLOOR)
SERIAL_COPY = name_copy("h5py copy", "--serial")
RANDOM_ACCESS = replace(name_rival("random access", "h5py", "random_access"), is_sample=True)
DUCKDB = name_rival("DuckDB", "duckdb")
POLARS = name_rival("polars", "polars")
DAFT = name_rival("Daft", "daft")
RAY = name_rival("Ray Data", "ray")
DATASETS = name_rival("HF datasets", "datasets")

TEXT = name_recshuf()
PARQUET = name_recshuf("--format", "parquet")
HDF5 = name_recshuf("--format", "hdf5")
TO_PARQUET = name_recshuf("--compression", "snappy")

# The cases

SMALL = 256_000_000
MEDIUM = 512_000_000
JSON_GROUP_ROWS = 122_880  # the default of DuckDB and its fastest; recshuf fills 64 MiB

LINES = Data("lines140", ".jsonl")
DOCUMENTS = Data("documents", ".jsonl")
SHORT_LINES = Data("lines20", ".txt")
TABLES = Data("parquet", codec="snappy")
PACKED_LINES = Data("lines140", ".jsonl.zst")
RECORDS = Data("csv", ".csv")


Contenders = tuple[Contender, ...]
Ratios = dict[str, float]


def make_text_case(
    name: str, data: Data, rivals: Contenders, memory: int | None, promises: tuple[Promise, ...]
) -> Case:
    """Return the case of shuffling a file of lines."""
    return Case(name, data, f"out{data.suffix}", (TEXT, CAT, *rivals), memory, "lines", promises=promises)


def make_table_case(name: str, rivals: Contenders, memory: int | None, promised: Ratios) -> Case:
    """Return the case of shuffling Parquet files."""
    contenders = (PARQUET, REWRITE, *rivals)
    promises = tuple(starmap(Promise, promised.items()))
    return Case(name, TABLES, "out/", contenders, memory, "table", "snappy", PARQUET_GROUP_ROWS, promises)


def make_parsing_case(
    name: str, data: Data, rivals: Contenders, memory: int | None, promised: Ratios
) -> Case:
    """Return the case of shuffling a file of JSONL or CSV into Parquet."""
    contenders = (TO_PARQUET, REWRITE, *rivals)
    promises = tuple(starmap(Promise, promised.items()))
    return Case(name, data, "out.parquet", contenders, memory, "table", "snappy", JSON_GROUP_ROWS, promises)


def make_array_case(name: str, codec: str, memory: int | None, promised: Ratios) -> Case:
    """Return the case of shuffling HDF5 files."""
    contenders = (HDF5, COPY, SERIAL_COPY, RANDOM_ACCESS)
    promises = tuple(starmap(Promise, promised.items()))
    return Case(
        name, Data("hdf5", codec=codec), "out/", contenders, memory, "arrays", codec, promises=promises
    )


def make_startup_case(option: str, most_seconds: float) -> Case:
    """Return the case of doing nothing; the data are not looked at."""
    contenders = (Contender(OURSELVES, name_module("recshuf", option)), PYTHON)
    return Case(f"recshuf {option}", SHORT_LINES, "none", contenders, most_seconds=most_seconds)


CASES = (
    make_text_case(
        "lines in memory",
        LINES,
        (SHUF, TERASHUF),
        None,
        (Promise("GNU shuf", 2.0), Promise("terashuf", 2.0), Promise("GNU shuf", 1 / 0.8, "cpu_seconds")),
    ),
    make_text_case(
        "lines at 256 MB",
        LINES,
        (TERASHUF,),
        SMALL,
        (Promise("terashuf", 3.0), Promise("terashuf", 1 / 0.6, "cpu_seconds")),
    ),
    make_text_case("documents at 256 MB", DOCUMENTS, (TERASHUF,), SMALL, (Promise("terashuf", 3.0),)),
    make_text_case("short lines in memory", SHORT_LINES, (SHUF, TERASHUF), None, (Promise("GNU shuf", 1.5),)),
    make_table_case(
        "Parquet in memory",
        (DUCKDB, POLARS, DAFT, RAY),
        None,
        {"floor": 1 / 1.5, "DuckDB": 1.3, "polars": 1.3, "Daft": 4, "Ray Data": 6},
    ),
    make_table_case(
        "Parquet at 512 MB",
        (DUCKDB, DAFT, RAY, DATASETS),
        MEDIUM,
        {"floor": 1 / 1.5, "DuckDB": 2, "Daft": 4, "Ray Data": 6, "HF datasets": 20},
    ),
    make_array_case("HDF5 gzip in memory", "gzip", None, {"h5py copy": 3, "random access": 1000}),
    make_array_case("HDF5 gzip at 512 MB", "gzip", MEDIUM, {"h5py copy": 3, "random access": 1000}),
    make_array_case("HDF5 lzf at 512 MB", "lzf", MEDIUM, {}),
    make_array_case("HDF5 none at 512 MB", "none", MEDIUM, {"random access": 40}),
    make_parsing_case(
        "JSONL.zst to Parquet in memory", PACKED_LINES, (DUCKDB, POLARS), None, {"DuckDB": 1.0}
    ),
    make_parsing_case("JSONL.zst to Parquet at 512 MB", PACKED_LINES, (DUCKDB,), MEDIUM, {"DuckDB": 1.2}),
    make_parsing_case("CSV to Parquet in memory", RECORDS, (DUCKDB, POLARS), None, {}),
    make_parsing_case("CSV to Parquet at 512 MB", RECORDS, (DUCKDB,), MEDIUM, {}),
    make_startup_case("--version", 0.15),
    make_startup_case("--help", 0.3),
)
GROUP_CASES = (
    Case("lines", LINES, "out.jsonl", (TEXT, TWO_COPIES, TERASHUF, SORT), MEDIUM, "lines"),
    make_table_case("Parquet", (DUCKDB, POLARS), MEDIUM, {}),
    make_array_case("HDF5 gzip", "gzip", MEDIUM, {}),
    make_parsing_case("JSONL to Parquet", LINES, (DUCKDB, POLARS), MEDIUM, {}),
)
"""Those that run in a memory group."""
