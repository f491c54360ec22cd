"""Whole runs over real files: the order is that of the seed, whatever the format, the means and the streams."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import recshuf
from recshuf.errors import UsageError
from recshuf.output.manifest import manifest_path
from recshuf.run import resolve
from recshuf.system import page_cache
from recshuf.system.page_cache import WriteBehind
from tests.support.formats.format_tools import OneWayReader, OneWayWriter
from tests.support.numbered_files import FORMATS, SUFFIXES, make_inputs, make_lines, order_of, read_ids
from tests.support.output_trees import digest_tree, list_shards

GOLDEN = Path(__file__).parents[1] / "golden"


# The order


@pytest.mark.parametrize("name", FORMATS)
def test_the_output_is_the_records_in_the_order_of_the_seed(tmp_path: Path, name: str, cores: int):
    counts = [1200, 0, 1, 700]
    inputs = make_inputs(tmp_path / "in", name, counts)
    report = recshuf.shuffle(inputs, tmp_path / "out", shards=3, seed=5, workers=cores)
    found = [number for path in list_shards(tmp_path / "out") for number in read_ids(path)]
    assert found == order_of(counts, 5)
    assert report.records == report.records_written == 1901
    assert [shard.records for shard in report.shards] == [634, 634, 633]


SETTINGS = {
    "one-pile": {"piles": 1},
    "two-piles": {"piles": 2},
    "seven-piles": {"piles": 7, "workers": 2},
    "thousand-piles": {"piles": 1000},
    "five-workers": {"workers": 5},
    "little-memory": {"memory": "64MB", "workers": 1},
    "much-memory": {"memory": "1GB", "workers": 2},
}


@pytest.mark.parametrize("name", FORMATS)
def test_the_same_seed_gives_the_same_bytes_whatever_the_means(tmp_path: Path, name: str):
    inputs = make_inputs(tmp_path / "in", name, [3000, 2000])
    digests = {}
    for setting, options in SETTINGS.items():
        output = tmp_path / setting
        recshuf.shuffle(inputs, output, shards=2, seed=9, **options)
        digests[setting] = digest_tree(output)
    assert len(set(map(str, digests.values()))) == 1, digests


def write_bulk(folder: Path, name: str) -> list[Path]:
    """Write records that do not fit a small memory limit, about 75 MB in two files."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    paths = [folder / f"{index}{SUFFIXES[name]}" for index in range(2)]
    for path in paths:
        if name == "parquet":
            width = 200
            rows = pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(width), 190_000, [None, pa.py_buffer(rng.bytes(190_000 * width))]
            )
            pq.write_table(pa.table({"a": rows, "b": np.arange(190_000)}), path, row_group_size=20_000)
        elif name == "hdf5":
            with h5py.File(path, "w") as file:
                file.create_dataset("a", data=rng.random((95_000, 50)), chunks=(500, 50), maxshape=(None, 50))
        else:
            text = rng.integers(32, 127, (375_000, 100), np.uint8)
            text[text == ord("\\")] = ord("/")
            text[text == ord('"')] = ord("'")
            text[:, 0], text[:, -2], text[:, -1] = ord('"'), ord('"'), ord("\n")
            path.write_bytes(text.tobytes())
    return paths


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_spilled_runs_give_the_bytes_of_runs_in_memory(tmp_path: Path, name: str):
    inputs = write_bulk(tmp_path / "in", name)
    own = {"header": "none"} if name == "csv" else {}
    reports, digests = {}, {}
    for setting, options in {
        "memory": {"memory": "1GB", "workers": 2},
        "disk": {"memory": "64MB", "workers": 1},
        "disk-parallel": {"memory": "64MB", "workers": 5},
        "disk-few-piles": {"memory": "64MB", "workers": 1, "piles": 2},
        "disk-many-piles": {"memory": "64MB", "workers": 1, "piles": 1000},
        "disk-lz4": {"memory": "64MB", "workers": 2, "spill_compression": "lz4"},
        "disk-zstd": {"memory": "64MB", "workers": 1, "spill_compression": "zstd"},
    }.items():
        output = tmp_path / setting
        reports[setting] = recshuf.shuffle(
            inputs, output, shards=3, seed=1, temp_dir=tmp_path, **own, **options
        )
        digests[setting] = digest_tree(output)
        shutil.rmtree(output)
        manifest_path(output).unlink()
    assert len(set(map(str, digests.values()))) == 1, digests
    assert {setting: report.spilled_bytes > 0 for setting, report in reports.items()} == {
        setting: setting != "memory" for setting in reports
    }
    assert os.listdir(tmp_path) == ["in"]


@pytest.mark.parametrize("name", FORMATS)
def test_shards_go_to_the_device_while_they_are_written(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
):
    """So that the sync at their end has little to wait for."""
    reached = []
    monkeypatch.setattr(WriteBehind, "reach", lambda _, byte_count: reached.append(byte_count))
    output = tmp_path / f"out{SUFFIXES[name]}"
    recshuf.shuffle(make_inputs(tmp_path / "in", name, [3000]), output, seed=0)
    assert max(reached) == output.stat().st_size


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("available", [1000, 10**9])
def test_files_are_given_up_in_memory_if_it_cannot_hold_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, shards: int, available: int
):
    monkeypatch.setattr(page_cache, "_BEHIND_BYTES", 1000)
    monkeypatch.setattr(page_cache, "_KEPT_BYTES", 3000)
    monkeypatch.setattr(resolve, "available_bytes", lambda: available)
    forgotten = set()
    monkeypatch.setattr(
        os, "posix_fadvise", lambda file, *_: forgotten.add(Path(f"/proc/self/fd/{file}").readlink())
    )
    inputs = make_inputs(tmp_path / "in", name, [3000, 40])
    recshuf.shuffle(inputs, tmp_path / "out/", seed=0, shards=shards, piles=4)
    assert forgotten.issuperset(inputs) == (available == 1000)
    assert len(forgotten - set(inputs)) == (shards if available == 1000 else 0)
    monkeypatch.undo()
    recshuf.shuffle(inputs, tmp_path / "expected/", seed=0, shards=shards)
    assert digest_tree(tmp_path / "out") == digest_tree(tmp_path / "expected")


@pytest.mark.parametrize("name", ["text", "jsonl"])
def test_plain_and_compressed_lines_have_one_order(tmp_path: Path, name: str):
    (plain,) = make_inputs(tmp_path, name, [5000])
    packed = {".gz": gzip.compress, ".zst": zstandard.ZstdCompressor(write_content_size=False).compress}
    expected = order_of([5000], 3)
    for suffix, compress in packed.items():
        path = plain.with_name(plain.name + suffix)
        path.write_bytes(compress(plain.read_bytes()))
        recshuf.shuffle(path, tmp_path / f"out{suffix}{plain.suffix}{suffix}", seed=3)
        assert read_ids(tmp_path / f"out{suffix}{plain.suffix}{suffix}") == expected
    recshuf.shuffle(plain, tmp_path / f"out{plain.suffix}", seed=3)
    assert read_ids(tmp_path / f"out{plain.suffix}") == expected


def test_aligned_files_stay_aligned(tmp_path: Path):
    english = [b"line %d" % number for number in range(3000)]
    german = [b"Zeile %d" % number + b"." * (number % 50) for number in range(3000)]
    for name, lines in (("en", english), ("de", german)):
        (tmp_path / f"{name}.txt").write_bytes(b"\n".join(lines))
        recshuf.shuffle(tmp_path / f"{name}.txt", tmp_path / f"{name}.out.txt", seed=1, piles=5 + len(name))
    pairs = zip(
        (tmp_path / "en.out.txt").read_bytes().splitlines(),
        (tmp_path / "de.out.txt").read_bytes().splitlines(),
        strict=True,
    )
    assert all(left.split()[1] == right.split()[1].rstrip(b".") for left, right in pairs)


@pytest.mark.parametrize("name", FORMATS)
def test_all_formats_have_one_order(tmp_path: Path, name: str):
    inputs = make_inputs(tmp_path / "in", name, [300, 500])
    recshuf.shuffle(inputs, tmp_path / f"out{SUFFIXES[name]}", seed=2**128 - 1)
    assert read_ids(tmp_path / f"out{SUFFIXES[name]}") == order_of([300, 500], 2**128 - 1)


# What a seed means, pinned


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.json")), ids=lambda path: path.stem)
def test_golden_files(tmp_path: Path, path: Path):
    """The order of a seed never changes: a run of these inputs gives these records, for ever."""
    golden = json.loads(path.read_text())
    inputs = []
    for name, records in golden["inputs"].items():
        (tmp_path / name).write_text("".join(f"{record}\n" for record in records))
        inputs.append(tmp_path / name)
    options = {key: value for key, value in golden["options"].items() if key != "seed"}
    recshuf.shuffle(inputs, tmp_path / "out", seed=int(golden["options"]["seed"]), **options)
    shards = {shard.name: shard.read_text().splitlines() for shard in list_shards(tmp_path / "out")}
    assert shards == golden["shards"]
    manifest = json.loads(manifest_path(tmp_path / "out").read_text())
    assert {key: manifest[key] for key in golden["manifest"]} == golden["manifest"]


def test_there_are_golden_files():
    assert len(list(GOLDEN.glob("*.json"))) >= 3


# Streams


@pytest.mark.parametrize("spelling", ["-", ["-"]])
def test_standard_input_to_standard_output(spelling: str | list[str]):
    lines = make_lines(0, 2000)
    stdout = OneWayWriter()
    report = recshuf.shuffle(spelling, "-", seed=4, stdin=OneWayReader(b"\n".join(lines)), stdout=stdout)
    assert stdout.content.splitlines() == [lines[place] for place in order_of([2000], 4)]
    assert stdout.content.endswith(b"\n")
    assert [shard.records for shard in report.shards] == [2000]


def test_standard_input_to_a_directory_and_a_file_to_standard_output(tmp_path: Path):
    (path,) = make_inputs(tmp_path, "jsonl", [1500])
    recshuf.shuffle(
        "-", f"{tmp_path}/out/", seed=4, shards=2, format="jsonl", stdin=io.BytesIO(path.read_bytes())
    )
    found = [number for shard in list_shards(tmp_path / "out") for number in read_ids(shard)]
    stdout = OneWayWriter()
    recshuf.shuffle(path, "-", seed=4, stdout=stdout)
    assert [json.loads(line)["id"] for line in stdout.content.splitlines()] == found == order_of([1500], 4)


def test_standard_input_in_a_format_that_seeks_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="parquet cannot be read from standard input"):
        recshuf.shuffle("-", tmp_path / "out.parquet", format="parquet", stdin=io.BytesIO())
    assert list(tmp_path.iterdir()) == []
