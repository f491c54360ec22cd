"""Outputs of all formats and conversions stay what they are, to the byte.

Each case is one call of `recshuf.shuffle` on small inputs that the test makes itself. `tests/golden/outputs` holds, for
every file that the call writes (shards, manifest, quarantine), a hash of its bytes and one of its contents. Libraries
decide the bytes too, so these are compared only under the versions that are recorded beside them; the contents are
compared always. Cases are written with one worker and with three in turn.

To record what recshuf writes now, after a change that is meant to alter outputs:

    python -m tests.run.test_golden_outputs --write
"""

import contextlib
import functools
import importlib.metadata
import json
import platform
import re
import sys
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import pytest
import zstandard

import recshuf
from tests.conftest import Run
from tests.support.effort import mostly_slow
from tests.support.golden_contents import hash_bytes, hash_contents
from tests.support.golden_inputs import make_inputs

GOLDEN = Path(__file__).parents[1] / "golden" / "outputs" / "hashes.json"
LIBRARIES = ("deflate", "h5py", "hdf5plugin", "numpy", "pyarrow", "zstandard")

Hashes = dict[str, dict[str, str]]
"""The hashes of each file that a case writes, by kind: ``bytes`` or ``contents``."""


@dataclass(frozen=True)
class Case:
    """One call: its inputs (the name of a set, perhaps a glob in it), its output, and its options."""

    inputs: str
    output: str
    options: dict[str, Any] = field(default_factory=dict)


def case(inputs: str, output: str, **options: Any) -> Case:
    return Case(inputs, output, options)


COMMON: dict[str, Any] = {"seed": 7, "memory": "300MB"}
SMALL: dict[str, Any] = {"memory": "64MB"}
"""The least there is: with three workers, 12 MB of records spill."""

CASES = {
    # Each format to itself
    "text": case("text", "out/"),
    "text: one file": case("text", "out.txt"),
    "text: one of many seeds": case("text", "out.txt", seed=2**128 - 1),
    "text: glob": case("utf8/*.txt", "out/"),
    "text: shards": case("text", "out/", shards=3),
    "text: shard records": case("text", "out/", shard_records=77),
    "text: shard bytes": case("text", "out/", shard_bytes="3kB"),
    "text: sample": case("text", "out/", head_count=41, shards=2),
    "text: piles": case("text", "out/", piles=7),
    "text: header": case("header/*.csv", "out.txt", format="text", header=2),
    "text: header, shards": case("header/*.csv", "out/", format="text", header=1, shards=3),
    "text: separator": case("separated", "out.txt", separator="||"),
    "text: zero": case("zero", "out.txt", zero_terminated=True),
    "text: from gzip": case("gzip", "out/"),
    "text: from zstd": case("zstd", "out/"),
    "text: to gzip": case("utf8", "out.txt.gz"),
    "text: to gzip, level": case("utf8", "out/", compression="gzip:9"),
    "text: to zstd": case("gzip", "out/", compression="zstd"),
    "text: to none": case("zstd", "out/", compression="none"),
    "text: spilled": case("large text", "out/", **SMALL, spill_compression="lz4"),
    "text: verified": case("text", "out/", verify=True),
    "jsonl": case("nested", "out/"),
    "jsonl: one file": case("nested", "out.jsonl"),
    "jsonl: shards, zstd": case("nested", "out/", shards=3, compression="zstd:9"),
    "jsonl: from gzip and zstd": case("packed", "out/"),
    "jsonl: provenance": case("nested", "out/", provenance=True),
    "jsonl: bad lines": case("bad", "out.jsonl"),
    "jsonl: spilled": case("large jsonl", "out/", **SMALL, spill_compression="zstd", shards=2),
    "csv": case("header", "out/", header=2),
    "csv: shards, gzip": case("header", "out/", header=2, shards=3, compression="gzip"),
    "csv: quoted newlines": case("quoted", "out.csv"),
    "parquet": case("rich", "out/"),
    "parquet: one file": case("rich", "out.parquet"),
    "parquet: shards": case("rich", "out/", shards=3, piles=7),
    "parquet: shard bytes": case("rich", "out/", shard_bytes="20kB"),
    "parquet: sample": case("rich", "out/", head_count=100, shard_records=30),
    "parquet: columns": case("rich", "out/", columns="point,id,tags"),
    "parquet: provenance": case("rich", "out/", provenance=True),
    "parquet: schemas that differ": case("union", "out/"),
    "parquet: none": case("rich", "out.parquet", compression="none"),
    "parquet: zstd": case("rich", "out.parquet", compression="zstd:7"),
    "parquet: gzip": case("rich", "out.parquet", compression="gzip"),
    "parquet: snappy": case("rich", "out.parquet", compression="snappy"),
    "parquet: lz4": case("rich", "out.parquet", compression="lz4"),
    "parquet: spilled": case("large parquet", "out/", **SMALL, shards=2),
    "hdf5": case("arrays", "out/"),
    "hdf5: one file": case("arrays", "out.h5"),
    "hdf5: shards": case("arrays", "out/", shards=3, piles=7),
    "hdf5: sample": case("arrays", "out/", head_count=50, shard_records=20),
    "hdf5: datasets": case("arrays", "out.h5", datasets="images/pixels,ids,objects/pair"),
    "hdf5: datasets of one length": case("lengths", "out.h5", datasets="train/x,train/y"),
    "hdf5: none": case("arrays", "out.h5", compression="none"),
    "hdf5: gzip": case("arrays", "out.h5", compression="gzip:9"),
    "hdf5: lzf": case("arrays", "out.h5", compression="lzf"),
    "hdf5: zstd": case("arrays", "out.h5", compression="zstd"),
    "hdf5: lz4": case("arrays", "out.h5", compression="lz4"),
    "hdf5: spilled": case("large hdf5", "out/", **SMALL, shards=2),
    # Conversions
    "text to jsonl": case("utf8", "out/", to="jsonl"),
    "text to jsonl: spilled": case("large text", "out/", **SMALL, to="jsonl", piles=7),
    "text to jsonl: provenance": case("utf8", "out.jsonl.gz", provenance=True),
    "text to parquet": case("utf8", "out/", to="parquet", shards=2),
    "text to parquet: quarantine": case("invalid", "out.parquet", on_bad_record="quarantine:bad.jsonl"),
    "text to hdf5": case("gzip", "out.h5"),
    "csv to parquet": case("quoted", "out.parquet", provenance=True),
    "csv to jsonl": case("quoted", "out/", to="jsonl"),
    "jsonl to text": case("documents", "out.txt.zst"),
    "jsonl to parquet": case("nested", "out/", to="parquet"),
    "jsonl to parquet: provenance": case("packed", "out/", to="parquet", provenance=True, shards=2),
    "jsonl to parquet: schema": case("typed", "out.parquet", schema="inputs/typed/schema"),
    "jsonl to parquet: quarantine": case("bad", "out/", to="parquet", on_bad_record="quarantine:bad.jsonl"),
    "jsonl to hdf5": case("plain", "out/", to="hdf5", provenance=True),
    "parquet to csv": case("strings", "out/", to="csv"),
    "parquet to text": case("strings", "out.txt"),
    "parquet to text: column": case("flat", "out.txt.gz", columns="name"),
    "parquet to jsonl": case("flat", "out/", to="jsonl", shards=2),
    "parquet to jsonl: nan as null": case("rich", "out.jsonl", nan_as_null=True),
    "parquet to hdf5": case("flat", "out/", to="hdf5", provenance=True),
    "hdf5 to text": case("string dataset", "out.txt"),
    "hdf5 to jsonl": case("arrays", "out/", to="jsonl"),
    "hdf5 to jsonl: nan as null": case("lengths", "out.jsonl", datasets="train/x", nan_as_null=True),
    "hdf5 to parquet": case("arrays", "out/", to="parquet", provenance=True),
    # Duplicates and mixtures
    "text: duplicates": case("text", "out/", shards=2, dedup="record"),
    "parquet: duplicates": case("rich", "out/", shards=2, dedup="category"),
    "parquet: duplicates, spilled": case("large parquet", "out/", **SMALL, shards=2, dedup="record"),
    "jsonl: copies": case("nested", "out/", copies=["5/2"]),
    "parquet: weights, spilled": case("large parquet", "out/", **SMALL, weights=[1], head_count=3000),
    # Groups
    "jsonl: groups": case("nested", "out/", shards=3, group_by="flag,inner.x"),
    "jsonl: groups, random": case("nested", "out/", shards=3, group_by="flag", group_order="random"),
    "csv: groups": case("quoted", "out.csv", group_by="value"),
    "parquet: groups": case("rich", "out/", shards=3, piles=7, group_by="flag,category"),
    "parquet: groups, random": case("rich", "out/", shards=3, group_by="day", group_order="random"),
    "parquet: groups, spilled": case("large parquet", "out/", **SMALL, shards=2, group_by="id"),
    "hdf5: groups": case("arrays", "out/", shards=3, group_by="objects/kind"),
    "jsonl to parquet: groups": case("nested", "out/", to="parquet", provenance=True, group_by="flag"),
    # Parts
    "text: parts": case("text", "out/", shards=5, split="train=0.8,val=0.1,test=0.1"),
    "hdf5: parts": case("arrays", "out/", split="a=1/3,b=2/3"),
    "parquet: parts, spilled": case("large parquet", "out/", **SMALL, shards=4, split="a=0.7,b=0.3"),
    "jsonl to parquet: parts": case("nested", "out/", to="parquet", provenance=True, split="a=0.5,b=0.5"),
    "jsonl: parts of values": case("nested", "out/", split="a=0.5,b=0.5", split_by="flag,inner.x"),
    "csv: parts of values": case("quoted", "out/", split="a=0.5,b=0.5", split_by="value", split_seed=3),
    "parquet: parts of values": case("rich", "out/", shards=3, split="a=0.6,b=0.4", split_by="category"),
}

ON_THE_COMMAND_LINE = (
    "text: header, shards",
    "jsonl to parquet: quarantine",
    "hdf5: datasets",
    "parquet: shards",
)


class Runs:
    """Runs cases in a folder, each once for a number of workers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._done: dict[tuple[str, int], Hashes] = {}

    def hash_files(self, name: str, workers: int) -> Hashes:
        """Return the hashes of all files that a case writes."""
        if (name, workers) not in self._done:
            with self.enter(name, f"{workers}"):
                self._done[name, workers] = self._run(name, workers)
        return self._done[name, workers]

    @contextlib.contextmanager
    def enter(self, name: str, run: str) -> Iterator[None]:
        """Make the inputs of a case, and work in a new folder that has nothing but a link to them."""
        make_inputs(self._folder / "inputs", CASES[name].inputs.partition("/")[0])
        place = self._folder / run / name.replace(":", "")
        place.mkdir(parents=True)
        (place / "inputs").symlink_to(self._folder / "inputs")
        with contextlib.chdir(place):
            yield

    def _run(self, name: str, workers: int) -> Hashes:
        case = CASES[name]
        options = COMMON | case.options | {"workers": workers}
        report = recshuf.shuffle(name_inputs(case), case.output, **options)
        if name.endswith("spilled") and workers == 3:
            assert report.spilled_bytes > 0
        return hash_here()


def name_inputs(case: Case) -> str:
    return f"inputs/{case.inputs}"


def hash_here() -> Hashes:
    """Return the hashes of all files under the working directory, links aside."""
    paths = sorted(path for path in Path().rglob("*") if path.is_file())
    return {str(path): {"bytes": hash_bytes(path), "contents": hash_contents(path)} for path in paths}


@functools.cache
def find_versions() -> dict[str, str]:
    """Return the versions of what decides the bytes of an output beside recshuf."""
    return {name: importlib.metadata.version(name) for name in LIBRARIES} | {
        "hdf5": h5py.version.hdf5_version,
        "libzstd": ".".join(map(str, zstandard.ZSTD_VERSION)),
        "machine": platform.machine(),
        "zlib": zlib.ZLIB_RUNTIME_VERSION,
    }


def pick(hashes: Hashes, kind: str) -> dict[str, str]:
    return {name: file[kind] for name, file in hashes.items()}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("golden"))


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    return json.loads(GOLDEN.read_text())


def test_every_case_has_its_golden_output(golden: dict[str, Any]) -> None:
    assert sorted(golden["cases"]) == sorted(CASES)


def compare(found: Hashes, golden: dict[str, Any], name: str) -> None:
    """Compare contents, and bytes if the libraries are those of the golden outputs."""
    assert pick(found, "contents") == pick(golden["cases"][name], "contents")
    if find_versions() == golden["versions"]:
        assert pick(found, "bytes") == pick(golden["cases"][name], "bytes")


def choose_workers(name: str) -> int:
    """Return 1 and 3 in turn; 3 where records are to spill."""
    return 3 if name.endswith("spilled") else 1 + list(CASES).index(name) % 2 * 2


# Other tests show that the bytes of the others do not depend on what is spilled.
FAST = [name for name in CASES if not re.search("(duplicates|groups|parts|weights), spilled", name)]


@pytest.mark.parametrize("name", mostly_slow(CASES, *FAST))
def test_outputs_are_the_golden_ones(runs: Runs, golden: dict[str, Any], name: str) -> None:
    compare(runs.hash_files(name, choose_workers(name)), golden, name)


@pytest.mark.parametrize("name", ON_THE_COMMAND_LINE)
def test_the_command_writes_the_same_bytes(runs: Runs, name: str, call: Run) -> None:
    case = CASES[name]
    options = COMMON | case.options
    words = [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
    with runs.enter(name, "command"):
        assert call(name_inputs(case), "-o", case.output, *words).returncode == 0
        assert hash_here() == runs.hash_files(name, choose_workers(name))


def write_golden() -> None:
    """Record what recshuf writes now."""
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(Path(folder))
        cases = {name: runs.hash_files(name, 1) for name in CASES}
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(json.dumps({"versions": find_versions(), "cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(f"usage: python -m {__spec__.name} --write")
    write_golden()
