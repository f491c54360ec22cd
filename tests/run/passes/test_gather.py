"""Scatter and gather write, byte for byte, what a shuffle of the same inputs with the same seed writes."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import recshuf
from recshuf.errors import CheckError, ConversionError, InputError
from recshuf.storage.reading.local_listing import MANIFEST_SUFFIX
from tests.support.effort import TRIES_ALL
from tests.support.golden_inputs import make_inputs
from tests.support.output_trees import list_tree
from tests.support.processes.deaths import die_everywhere
from tests.support.small_runs import Listener

if TYPE_CHECKING:
    from collections.abc import Iterator


READING = ("columns", "datasets", "delimiter", "format", "header", "schema", "separator", "zero_terminated")
"""Options that a scatter takes, and a gather does not."""

CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "text": ("text", "out/", {}),
    "text, one file": ("text", "out.txt", {}),
    "text, shards": ("text", "out/", {"shards": 3}),
    "text, shard records": ("text", "out/", {"shard_records": 77}),
    "text, shard bytes": ("text", "out/", {"shard_bytes": "3kB"}),
    "text, sample": ("text", "out/", {"head_count": 41, "shards": 2}),
    "text, header": ("header/*.csv", "out/", {"format": "text", "header": 2, "shards": 3}),
    "text, separator": ("separated", "out.txt", {"separator": "||"}),
    "text, zero": ("zero", "out.txt", {"zero_terminated": True}),
    "text, from gzip": ("gzip", "out/", {}),
    "text, to zstd": ("gzip", "out/", {"compression": "zstd"}),
    "text, large": ("large text", "out/", {"memory": "64MB"}),
    "jsonl": ("nested", "out/", {}),
    "jsonl, provenance": ("nested", "out/", {"provenance": True}),
    "jsonl, shards": ("nested", "out/", {"shards": 3, "compression": "zstd:9"}),
    "csv": ("quoted", "out.csv", {}),
    "csv, header": ("header", "out/", {"header": 2, "shards": 3, "compression": "gzip"}),
    "parquet": ("rich", "out/", {}),
    "parquet, shard bytes": ("rich", "out/", {"shard_bytes": "20kB"}),
    "parquet, sample": ("rich", "out/", {"head_count": 100, "shard_records": 30}),
    "parquet, columns": ("rich", "out/", {"columns": "point,id,tags"}),
    "parquet, provenance": ("rich", "out/", {"provenance": True}),
    "parquet, union": ("union", "out/", {}),
    "hdf5": ("arrays", "out/", {}),
    "hdf5, shards": ("arrays", "out/", {"shards": 3, "compression": "zstd"}),
    "hdf5, datasets": ("arrays", "out.h5", {"datasets": "images/pixels,ids,objects/pair"}),
    "text to jsonl": ("utf8", "out/", {"to": "jsonl"}),
    "text to jsonl, provenance": ("utf8", "out.jsonl.gz", {"provenance": True}),
    "text to parquet": ("utf8", "out/", {"to": "parquet", "shards": 2}),
    "text to hdf5": ("gzip", "out.h5", {}),
    "csv to parquet": ("quoted", "out.parquet", {"provenance": True}),
    "csv to jsonl": ("quoted", "out/", {"to": "jsonl"}),
    "jsonl to text": ("documents", "out.txt.zst", {}),
    "jsonl to parquet": ("nested", "out/", {"to": "parquet", "provenance": True, "shards": 2}),
    "jsonl to parquet, schema": ("typed", "out.parquet", {"schema": "inputs/typed/schema"}),
    "jsonl to hdf5": ("plain", "out/", {"to": "hdf5", "provenance": True}),
    "parquet to csv": ("strings", "out/", {"to": "csv"}),
    "parquet to text": ("flat", "out.txt.gz", {"columns": "name"}),
    "parquet to jsonl": ("rich", "out.jsonl", {"nan_as_null": True}),
    "parquet to hdf5": ("flat", "out/", {"to": "hdf5", "provenance": True}),
    "hdf5 to text": ("string dataset", "out.txt", {}),
    "hdf5 to jsonl": ("lengths", "out.jsonl", {"datasets": "train/x", "nan_as_null": True}),
    "hdf5 to parquet": ("arrays", "out/", {"to": "parquet", "provenance": True}),
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("inputs")


@contextlib.contextmanager
def enter(tmp_path: Path, inputs: Path, name: str) -> Iterator[str]:
    """Make the inputs of that name, work in a folder with a link to them, and yield the path to name them by."""
    make_inputs(inputs, name.partition("/")[0])
    (tmp_path / "inputs").symlink_to(inputs)
    for folder in "ab":
        (tmp_path / folder).mkdir()
    with contextlib.chdir(tmp_path):
        yield f"inputs/{name}"


def list_output(folder: str, output: str) -> dict[str, bytes]:
    """Return the shards of an output; manifests tell of times."""
    tree = list_tree(Path(folder))
    return {path: content for path, content in tree.items() if not path.endswith(MANIFEST_SUFFIX)}


PACKINGS = ({"piles": 1}, {"piles": 7, "spill_compression": "zstd"})
FAST = {
    *("text, sample", "text, header", "text, zero", "jsonl, provenance", "csv, header", "parquet, columns"),
    *(
        "parquet, provenance",
        "parquet, union",
        "hdf5, shards",
        "hdf5, datasets",
        "text to hdf5",
        "csv to parquet",
    ),
    *(
        "jsonl to text",
        "jsonl to parquet",
        "jsonl to hdf5",
        "parquet to csv",
        "parquet to jsonl",
        "hdf5 to parquet",
    ),
}


@pytest.mark.parametrize(
    ("name", "packing"),
    [
        pytest.param(name, PACKINGS[k % 2], marks=() if name in FAST else pytest.mark.slow)
        for k, name in enumerate(CASES)
    ],
)
def test_gather_writes_the_bytes_of_the_shuffle(
    tmp_path: Path, inputs: Path, name: str, packing: dict[str, Any]
) -> None:
    given, output, options = CASES[name]
    reading = {key: value for key, value in options.items() if key in READING}
    writing = {key: value for key, value in options.items() if key not in READING}
    with enter(tmp_path, inputs, given) as source:
        recshuf.shuffle(source, f"a/{output}", seed=7, **({"memory": "300MB"} | options))
        recshuf.scatter(source, "store", seed=7, **reading, **packing)
        recshuf.gather("store", f"b/{output}", verify=True, **writing)
        expected = list_output("a", output)
        assert expected
        assert list_output("b", output) == expected


def test_records_without_a_table_form_can_be_gathered_in_their_own_format(tmp_path: Path) -> None:
    """A conversion names the first file and line that has none."""
    path = tmp_path / "mixed.jsonl"
    path.write_text('{"a": 1}\n{"a": {"b": 2}}\n{"a": 3}\n')
    recshuf.scatter(path, tmp_path / "store", seed=1)
    recshuf.gather(tmp_path / "store", tmp_path / "out.jsonl")
    found = (tmp_path / "out.jsonl").read_text().splitlines()
    assert sorted(found) == sorted(path.read_text().splitlines())
    with pytest.raises(ConversionError, match=r"no table form: .*mixed.jsonl.*line"):
        recshuf.gather(tmp_path / "store", tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()


@pytest.mark.parametrize(
    ("line", "problem"),
    [('{"c": {"source_row": 1}}', "may already have"), ("[1]", "is not a JSON object")],
)
def test_a_record_that_cannot_get_provenance_is_named(tmp_path: Path, line: str, problem: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n' * 50)
    (tmp_path / "b.jsonl").write_text(f'{{"a": 1}}\n{{"a": 2}}\n{line}\n')
    recshuf.scatter([tmp_path / "a.jsonl", tmp_path / "b.jsonl"], tmp_path / "store", seed=1)
    with pytest.raises(InputError, match=rf"b\.jsonl: line 3: {problem}.*leave out provenance"):
        recshuf.gather(tmp_path / "store", tmp_path / "out.jsonl", provenance=True)
    assert not (tmp_path / "out.jsonl").exists()


def test_a_scatter_that_dies_before_any_change_leaves_no_store_or_a_whole_one(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    make_lines(tmp_path / "in.txt")

    def scatter() -> None:
        recshuf.scatter(tmp_path / "in.txt", folder / "store", seed=7, piles=4)

    recshuf.shuffle(tmp_path / "in.txt", tmp_path / "expected.txt", seed=7)
    deaths = 0
    for step in die_everywhere(scatter, folder, every=1 if TRIES_ALL else 2):
        if not list(folder.glob("store/snapshot-*.json")):
            scatter()
        recshuf.gather(folder / "store", tmp_path / "out.txt", overwrite=True)
        assert (tmp_path / "out.txt").read_bytes() == (tmp_path / "expected.txt").read_bytes(), step
        assert [*(folder / "store").glob("snapshot-*")] == [folder / "store" / "snapshot-000001.json"]
        # A run that dies after its commit may leave its lock file.
        assert {*os.listdir(folder / "store" / "sets")} <= {"scatter-00000.piles", "scatter.lock"}
        deaths += 1
    assert deaths > 3


@pytest.mark.parametrize("options", [{"epoch": 1}, {"epoch": 2, "reshuffle": "piles"}, {"head_count": 10}])
def test_what_is_gathered_is_compared_with_the_store(tmp_path: Path, options: dict[str, Any]) -> None:
    make_lines(tmp_path / "in.txt")
    recshuf.scatter(tmp_path / "in.txt", tmp_path / "store", seed=1, piles=4)
    (tmp_path / "in.txt").unlink()
    report = recshuf.gather(tmp_path / "store", tmp_path / "out/", shards=2, verify=True, **options)
    assert [one.name for one in report.passes] == ["scatter", "gather", "verify", "commit"]


def test_a_shard_that_differs_from_the_store_is_not_put_in_place(tmp_path: Path) -> None:
    make_lines(tmp_path / "in.txt")
    recshuf.scatter(tmp_path / "in.txt", tmp_path / "store", seed=1, piles=4)

    class Damage(Listener):
        """Changes a shard before it is compared, as a bad disk would."""

        def start(self, name: str, *_: Any) -> None:
            if name not in ("scatter", "gather"):
                for path in tmp_path.rglob("shard-*.txt"):
                    content, found = path.read_bytes(), path.stat()
                    path.write_bytes(content.replace(b"\n17\n", b"\n71\n"))
                    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))

    with pytest.raises(CheckError, match="1 records missing, 1 extra"):
        recshuf.gather(tmp_path / "store", tmp_path / "out/", shards=2, verify=True, progress=Damage())
    assert not (tmp_path / "out").exists()


def make_lines(path: Path) -> None:
    path.write_text("".join(f"{row}\n" for row in range(1000)))
