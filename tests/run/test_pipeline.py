"""Whole runs over real files: the order, the shards, the errors, and what is left in the folders."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
from collections import Counter
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import recshuf
from recshuf.errors import InputError, MemoryLimitError, OutputError, RecshufError, UsageError
from recshuf.records.keys import draw_keys
from recshuf.run import resolve
from recshuf.system import page_cache
from recshuf.system.page_cache import WriteBehind
from tests.support.format_tools import OneWayReader, OneWayWriter, decompress_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


GOLDEN = Path(__file__).parents[1] / "golden"
FORMATS = ("text", "jsonl", "parquet", "hdf5")
SUFFIXES = {"text": ".txt", "jsonl": ".jsonl", "parquet": ".parquet", "hdf5": ".h5"}


# Making and reading files, around the code under test


def make_lines(first: int, count: int) -> list[bytes]:
    """Return JSON lines, each its own and of its own length."""
    return [
        b'{"id": %d, "pad": "%s"}' % (number, b"x" * (number * 7 % 23))
        for number in range(first, first + count)
    ]


def write_lines(path: Path, first: int, count: int) -> None:
    path.write_bytes(b"".join(line + b"\n" for line in make_lines(first, count)))


def write_parquet(path: Path, first: int, count: int) -> None:
    ids = np.arange(first, first + count)
    table = pa.table({"id": ids, "tag": pa.array([f"{number % 13}" for number in ids]).dictionary_encode()})
    pq.write_table(table, path, row_group_size=500)


def write_hdf5(path: Path, first: int, count: int) -> None:
    ids = np.arange(first, first + count)
    with h5py.File(path, "w") as file:
        file["id"] = ids
        image = (ids[:, None] * np.arange(1, 6)).astype(np.float32)
        file.create_dataset("image", data=image, chunks=(64, 5), maxshape=(None, 5))


WRITERS: dict[str, Callable[[Path, int, int], None]] = {
    "text": write_lines,
    "jsonl": write_lines,
    "parquet": write_parquet,
    "hdf5": write_hdf5,
}


def read_ids(path: Path) -> list[int]:
    """Return the numbers of the records of a file, having checked that the rest of each came along."""
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        ids = table["id"].to_pylist()
        assert table["tag"].to_pylist() == [f"{number % 13}" for number in ids]
        return ids
    if path.suffix == ".h5":
        with h5py.File(path) as file:
            ids = file["id"][:]
            assert (file["image"][:] == (ids[:, None] * np.arange(1, 6)).astype(np.float32)).all()
            return ids.tolist()
    lines = decompress_file(path).splitlines()
    ids = [json.loads(line)["id"] for line in lines]
    assert lines == [make_lines(number, 1)[0] for number in ids]
    return ids


def make_inputs(folder: Path, name: str, counts: Sequence[int]) -> list[Path]:
    """Write numbered records into one file for each count."""
    folder.mkdir(parents=True, exist_ok=True)
    paths, first = [], 0
    for index, count in enumerate(counts):
        paths.append(folder / f"input{index}{SUFFIXES[name]}")
        WRITERS[name](paths[-1], first, count)
        first += count
    return paths


def order_of(counts: Sequence[int], seed: int) -> list[int]:
    """Return the numbers of all records in shuffled order."""
    keys = draw_keys(seed, [(index, 0, count) for index, count in enumerate(counts)])
    return np.argsort(keys, kind="stable").tolist()


def list_shards(folder: Path) -> list[Path]:
    return [folder / shard["name"] for shard in json.loads((folder / "recshuf.json").read_text())["shards"]]


def list_tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    } | {f"{path.relative_to(folder)}/": b"" for path in sorted(folder.rglob("*")) if path.is_dir()}


def digest_tree(folder: Path) -> dict[str, str]:
    """Return a digest of each shard; the manifest tells of times and limits."""
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in list_shards(folder)}


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
    """Write records that do not fit a small memory limit, about 120 MB in two files."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    paths = [folder / f"{index}{SUFFIXES[name]}" for index in range(2)]
    for path in paths:
        if name == "parquet":
            width = 200
            rows = pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(width), 300_000, [None, pa.py_buffer(rng.bytes(300_000 * width))]
            )
            pq.write_table(pa.table({"a": rows, "b": np.arange(300_000)}), path, row_group_size=20_000)
        elif name == "hdf5":
            with h5py.File(path, "w") as file:
                file.create_dataset(
                    "a", data=rng.random((150_000, 50)), chunks=(500, 50), maxshape=(None, 50)
                )
        else:
            text = rng.integers(32, 127, (600_000, 100), np.uint8)
            text[text == ord("\\")] = ord("/")
            text[text == ord('"')] = ord("'")
            text[:, 0], text[:, -2], text[:, -1] = ord('"'), ord('"'), ord("\n")
            path.write_bytes(text.tobytes())
    return paths


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_spilled_runs_give_the_bytes_of_runs_in_memory(tmp_path: Path, name: str):
    inputs = write_bulk(tmp_path / "in", name)
    reports, digests = {}, {}
    for setting, options in {
        "memory": {"memory": "1GB", "workers": 2},
        "disk": {"memory": "64MB", "workers": 1},
        "disk-parallel": {"memory": "100MB", "workers": 5},
        "disk-few-piles": {"memory": "64MB", "workers": 1, "piles": 2},
        "disk-many-piles": {"memory": "64MB", "workers": 1, "piles": 1000},
        "disk-lz4": {"memory": "64MB", "workers": 2, "spill_compression": "lz4"},
        "disk-zstd": {"memory": "64MB", "workers": 1, "spill_compression": "zstd"},
    }.items():
        output = tmp_path / setting
        reports[setting] = recshuf.shuffle(inputs, output, shards=3, seed=1, temp_dir=tmp_path, **options)
        digests[setting] = digest_tree(output)
        shutil.rmtree(output)
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
    manifest = json.loads((tmp_path / "out" / "recshuf.json").read_text())
    assert {key: manifest[key] for key in golden["manifest"]} == golden["manifest"]


def test_there_are_golden_files():
    assert len(list(GOLDEN.glob("*.json"))) >= 3


# Streams


@pytest.mark.parametrize("spelling", ["-", None, ()])
def test_standard_input_to_standard_output(spelling: object):
    lines = make_lines(0, 2000)
    stdout = OneWayWriter()
    inputs = [] if spelling in (None, ()) else spelling
    report = recshuf.shuffle(inputs, None, seed=4, stdin=OneWayReader(b"\n".join(lines)), stdout=stdout)
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


# Headers, samples, shards


def test_a_header_is_kept_once_in_every_shard(tmp_path: Path):
    for index in range(2):
        rows = [b"%d" % number for number in range(index * 50, index * 50 + 50)]
        (tmp_path / f"{index}.csv").write_bytes(b"\n".join([b"id", *rows]))
    inputs = sorted(tmp_path.glob("*.csv"))
    recshuf.shuffle(inputs, tmp_path / "out/", format="text", header=1, shards=3, seed=1)
    shards = [shard.read_bytes().splitlines() for shard in list_shards(tmp_path / "out")]
    assert [shard[0] for shard in shards] == [b"id"] * 3
    assert [int(row) for shard in shards for row in shard[1:]] == order_of([50, 50], 1)


def test_headers_that_differ_are_an_error(tmp_path: Path):
    (tmp_path / "a.txt").write_bytes(b"id\n1\n")
    (tmp_path / "b.txt").write_bytes(b"no\n1\n")
    with pytest.raises(InputError, match=r"b\.txt"):
        recshuf.shuffle([tmp_path / "a.txt", tmp_path / "b.txt"], tmp_path / "out.txt", header=1)
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "b.txt"]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("count", [0, 1, 77, 5000])
def test_a_sample_is_the_first_records_of_the_whole(tmp_path: Path, name: str, count: int):
    inputs = make_inputs(tmp_path / "in", name, [900, 100])
    output = tmp_path / f"out{SUFFIXES[name]}"
    report = recshuf.shuffle(inputs, output, seed=6, head_count=count, piles=40, workers=3)
    assert read_ids(output) == order_of([900, 100], 6)[:count]
    assert (report.records, report.records_written) == (1000, min(count, 1000))


@pytest.mark.parametrize("name", FORMATS)
def test_shards_follow_the_options(tmp_path: Path, name: str):
    inputs = make_inputs(tmp_path / "in", name, [1003])
    expected = order_of([1003], 0)
    for label, options, sizes in (
        ("n", {"shards": 4}, [251, 251, 251, 250]),
        ("records", {"shard_records": 400}, [400, 400, 203]),
        ("many", {"shards": 1005}, [1] * 1003 + [0] * 2),
    ):
        recshuf.shuffle(inputs, tmp_path / label, seed=0, **options)
        shards = list_shards(tmp_path / label)
        assert [len(read_ids(shard)) for shard in shards] == sizes
        assert [number for shard in shards for number in read_ids(shard)] == expected
        assert sorted(os.listdir(tmp_path / label)) == sorted(
            ["recshuf.json", *(shard.name for shard in shards)]
        )


def test_shard_bytes_cut_lines_into_files_of_that_size(tmp_path: Path):
    inputs = make_inputs(tmp_path / "in", "jsonl", [4000])
    recshuf.shuffle(inputs, tmp_path / "out", seed=0, shard_bytes=20_000)
    sizes = [shard.stat().st_size for shard in list_shards(tmp_path / "out")]
    assert len(sizes) == -(-inputs[0].stat().st_size // 20_000)
    assert all(15_000 < size < 21_000 for size in sizes)


def test_a_directory_gets_one_shard_for_each_input(tmp_path: Path):
    inputs = make_inputs(tmp_path / "in", "jsonl", [10, 20, 30])
    recshuf.shuffle(tmp_path / "in", f"{tmp_path}/out/", seed=0)
    assert [len(read_ids(shard)) for shard in list_shards(tmp_path / "out")] == [20, 20, 20]
    assert len(inputs) == 3


def test_the_manifest_tells_what_the_run_did(tmp_path: Path):
    inputs = make_inputs(tmp_path / "in", "parquet", [10, 20])
    report = recshuf.shuffle(inputs, f"{tmp_path}/out/", seed=2**100)
    manifest = json.loads((tmp_path / "out" / "recshuf.json").read_text())
    assert int(manifest["seed"]) == 2**100 == report.seed
    assert [(one["name"], one["records"]) for one in manifest["inputs"]] == [
        (str(path), count) for path, count in zip(inputs, [10, 20], strict=True)
    ]
    for shard in manifest["shards"]:
        path = tmp_path / "out" / shard["name"]
        assert path.stat().st_size in shard.values()
        assert pq.read_metadata(path).num_rows == shard["records"]


def test_a_drawn_seed_is_reported_and_gives_the_same_again(tmp_path: Path):
    (path,) = make_inputs(tmp_path, "text", [100])
    seed = recshuf.shuffle(path, tmp_path / "a.txt").seed
    recshuf.shuffle(path, tmp_path / "b.txt", seed=seed)
    assert (tmp_path / "a.txt").read_bytes() == (tmp_path / "b.txt").read_bytes()
    assert recshuf.shuffle(path, tmp_path / "c.txt").seed != seed


# Empty inputs


def write_empty(path: Path, name: str) -> None:
    if name == "parquet":
        pq.write_table(pa.table({"id": pa.array([], pa.int64()), "tag": pa.array([], pa.string())}), path)
    elif name == "hdf5":
        write_hdf5(path, 0, 0)
    else:
        path.write_bytes(b"")


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("files", [1, 3])
def test_inputs_without_records_give_an_empty_valid_output(tmp_path: Path, name: str, files: int):
    inputs = [tmp_path / f"{index}{SUFFIXES[name]}" for index in range(files)]
    for path in inputs:
        write_empty(path, name)
    output = tmp_path / f"out{SUFFIXES[name]}"
    report = recshuf.shuffle(inputs, output, seed=0)
    assert report.records == 0
    assert read_ids(output) == []
    recshuf.shuffle(inputs, tmp_path / "shards", seed=0, shards=2)
    assert [read_ids(shard) for shard in list_shards(tmp_path / "shards")] == [[], []]


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("name", FORMATS)
def test_inputs_without_records_are_converted_or_refused(tmp_path: Path, name: str, to: str):
    """An empty JSONL file has no fields, so that a table of it may be refused; the others have a schema."""
    if name == to:
        return
    path = tmp_path / f"in{SUFFIXES[name]}"
    write_empty(path, name)
    output = tmp_path / f"out{SUFFIXES[to]}"
    try:
        report = recshuf.shuffle(path, output, seed=0, to=to)
    except RecshufError:
        assert os.listdir(tmp_path) == [path.name]
        assert name == "jsonl" or to == "text"
    else:
        assert report.records == 0
        if to == "parquet":
            assert pq.read_metadata(output).num_rows == 0
        elif to == "hdf5":
            h5py.File(output).close()
        else:
            assert output.read_bytes() == b""


# Inputs that cannot be read


def truncate(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3])


BAD_INPUTS: dict[str, Callable[[Path], object]] = {
    "missing.txt": lambda path: None,
    "missing.parquet": lambda path: None,
    "missing.h5": lambda path: None,
    "wrong.parquet": lambda path: write_lines(path, 0, 100),
    "wrong.h5": lambda path: write_lines(path, 0, 100),
    "empty.parquet": lambda path: path.write_bytes(b""),
    "empty.h5": lambda path: path.write_bytes(b""),
    "truncated.parquet": lambda path: (write_parquet(path, 0, 5000), truncate(path)),
    "truncated.h5": lambda path: (write_hdf5(path, 0, 5000), truncate(path)),
    "truncated.txt.gz": lambda path: (path.write_bytes(gzip.compress(bytes(10**5))), truncate(path)),
    "truncated.txt.zst": lambda path: (
        path.write_bytes(zstandard.compress(os.urandom(10**6))),
        truncate(path),
    ),
    "wrong.jsonl.zst": lambda path: write_lines(path, 0, 100),
    "wrong.txt.gz": lambda path: write_lines(path, 0, 100),
}


@pytest.mark.parametrize("name", BAD_INPUTS)
@pytest.mark.parametrize("is_first", [True, False])
def test_an_input_that_cannot_be_read_names_itself_and_leaves_nothing(
    tmp_path: Path, name: str, is_first: bool
):
    bad = tmp_path / name
    BAD_INPUTS[name](bad)
    kind = {"parquet": "parquet", "h5": "hdf5", "jsonl": "jsonl", "txt": "text"}[name.split(".")[1]]
    (good,) = make_inputs(tmp_path / "in", kind, [2000])
    before = list_tree(tmp_path)
    for output in ("out/", f"out{good.suffix}", "new/folder/out/"):
        with pytest.raises(RecshufError, match=bad.name) as caught:
            recshuf.shuffle([bad, good] if is_first else [good, bad], f"{tmp_path}/{output}", seed=0)
        assert "\n" not in str(caught.value)
        assert list_tree(tmp_path) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_input_names_itself(tmp_path: Path):
    (path,) = make_inputs(tmp_path, "text", [10])
    path.chmod(0)
    with pytest.raises(InputError, match=path.name):
        recshuf.shuffle(path, tmp_path / "out.txt")
    assert os.listdir(tmp_path) == [path.name]


def test_inputs_of_two_formats_are_refused(tmp_path: Path):
    (text,) = make_inputs(tmp_path, "jsonl", [10])
    (table,) = make_inputs(tmp_path, "parquet", [10])
    with pytest.raises(InputError, match=r"input0\.parquet: is parquet, but .*input0\.jsonl is jsonl"):
        recshuf.shuffle([text, table], f"{tmp_path}/out/")


def test_a_record_too_long_names_file_and_offset(tmp_path: Path):
    (tmp_path / "in.txt").write_bytes(b"short\n" * 10 + b"x" * 5000 + b"\nshort\n")
    with pytest.raises(InputError, match=r"in\.txt: byte 60: .*1000"):
        recshuf.shuffle(tmp_path / "in.txt", tmp_path / "out.txt", max_record_bytes=1000)
    assert os.listdir(tmp_path) == ["in.txt"]


@pytest.mark.slow
def test_a_record_longer_than_memory_names_file_and_offset(tmp_path: Path):
    (tmp_path / "in.txt").write_bytes(b"short\n" * 10 + b"x" * 90_000_000 + b"\nshort\n")
    with pytest.raises(InputError, match=r"in\.txt: byte 60: .*--memory"):
        recshuf.shuffle(tmp_path / "in.txt", tmp_path / "out.txt", memory="64MB", workers=1)
    assert os.listdir(tmp_path) == ["in.txt"]


def test_a_limit_nothing_fits_into_is_refused_before_anything_is_written(tmp_path: Path):
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file.create_dataset("a", data=np.zeros((4, 5_000_000)), chunks=(1, 5_000_000), compression=1)
    with pytest.raises((MemoryLimitError, InputError), match="--memory"):
        recshuf.shuffle(tmp_path / "in.h5", tmp_path / "out.h5", memory="64MB")
    assert os.listdir(tmp_path) == ["in.h5"]


# Outputs


def test_an_output_in_place_of_the_input(tmp_path: Path):
    for name in FORMATS:
        (path,) = make_inputs(tmp_path / name, name, [800])
        with pytest.raises(OutputError, match="--overwrite"):
            recshuf.shuffle(path, path, seed=1)
        assert read_ids(path) == list(range(800))
        recshuf.shuffle(path, path, seed=1, overwrite=True)
        assert read_ids(path) == order_of([800], 1)
        assert os.listdir(tmp_path / name) == [path.name]


@pytest.mark.parametrize("name", ["text", "parquet", "hdf5"])
def test_the_shards_of_a_run_can_be_shuffled_in_place(tmp_path: Path, name: str):
    inputs = make_inputs(tmp_path / "in", name, [300, 300])
    recshuf.shuffle(inputs, f"{tmp_path}/out/", seed=1)
    first = [number for shard in list_shards(tmp_path / "out") for number in read_ids(shard)]
    recshuf.shuffle(tmp_path / "out", f"{tmp_path}/out/", seed=2, overwrite=True)
    second = [number for shard in list_shards(tmp_path / "out") for number in read_ids(shard)]
    assert second == [first[place] for place in order_of([300, 300], 2)]
    assert len(os.listdir(tmp_path / "out")) == 3


def test_a_missing_temp_dir_is_refused(tmp_path: Path):
    (path,) = make_inputs(tmp_path, "text", [10])
    with pytest.raises(OutputError, match="--temp-dir"):
        recshuf.shuffle(path, tmp_path / "out.txt", temp_dir=tmp_path / "none")
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("name", FORMATS)
def test_nothing_is_left_when_writing_fails(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch):
    """The folder for shards is full: simulated by the rename that puts them in place."""
    inputs = make_inputs(tmp_path / "in", name, [100])
    before = list_tree(tmp_path)

    def refuse(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(Path, "rename", refuse)
    for output in ("out/", f"out{SUFFIXES[name]}"):
        with pytest.raises(OutputError, match="no space left"):
            recshuf.shuffle(inputs, f"{tmp_path}/{output}", seed=0)
        assert list_tree(tmp_path) == before


def test_records_of_shards_differ_by_at_most_one_and_keep_every_record(tmp_path: Path):
    inputs = make_inputs(tmp_path / "in", "text", [101])
    for shards in (1, 2, 7, 100):
        report = recshuf.shuffle(inputs, f"{tmp_path}/{shards}/", shards=shards, seed=3)
        sizes = [shard.records for shard in report.shards]
        assert sum(sizes) == 101
        assert all(left - right in (0, 1) for left, right in pairwise(sizes))


def test_unknown_options_are_refused(tmp_path: Path):
    with pytest.raises(TypeError, match="'sead'"):
        recshuf.shuffle("x", tmp_path / "out", sead=1)


@pytest.mark.parametrize(
    "options",
    [
        {"seed": -1},
        {"seed": 2**128},
        {"memory": "1MB"},
        {"workers": 0},
        {"piles": 0},
        {"head_count": -1},
        {"shards": 0},
        {"shards": 2, "shard_records": 5},
        {"compression": "lzma"},
        {"separator": b""},
        {"separator": "x", "zero_terminated": True},
    ],
    ids=str,
)
def test_options_that_cannot_be_meant_are_usage_errors(tmp_path: Path, options: dict[str, object]):
    (path,) = make_inputs(tmp_path, "text", [10])
    with pytest.raises(UsageError):
        recshuf.shuffle(path, f"{tmp_path}/out/", **options)
    assert os.listdir(tmp_path) == [path.name]


LYING = {
    "gzip": gzip.compress(b"a\nb\n", mtime=0),
    "zstd": b"\x28\xb5\x2f\xfdrest",
    "parquet": b"PAR1rest",
    "hdf5": b"\x89HDF\r\n\x1a\nrest",
}


@pytest.mark.parametrize("content", LYING.values(), ids=LYING)
def test_a_name_of_plain_text_that_lies_is_refused(tmp_path: Path, content: bytes):
    (tmp_path / "in.txt").write_bytes(content)
    with pytest.raises(InputError, match=r"in\.txt: is named like plain text"):
        recshuf.shuffle(tmp_path / "in.txt", tmp_path / "out.txt")
    recshuf.shuffle(tmp_path / "in.txt", tmp_path / "out.txt", format="text")
    records = content.removesuffix(b"\n").split(b"\n")
    assert Counter((tmp_path / "out.txt").read_bytes().split(b"\n")[:-1]) == Counter(records)


def test_an_output_inside_a_folder_of_inputs_is_not_read_back(tmp_path: Path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("1\n2\n3\n")
    for _ in range(3):
        report = recshuf.shuffle(tmp_path / "in", tmp_path / "in" / "out.txt", overwrite=True)
        assert report.records == 3


@pytest.mark.parametrize(
    "options",
    [
        {"seed": True},
        {"seed": 1.5},
        {"seed": "x"},
        {"shards": "3"},
        {"header": "1"},
        {"memory": 3e8},
        {"schema": {}},
    ],
    ids=str,
)
def test_options_of_a_wrong_type_are_named(tmp_path: Path, options: dict[str, Any]):
    (tmp_path / "in.txt").write_text("1\n")
    with pytest.raises(UsageError, match=f"--{next(iter(options))}"):
        recshuf.shuffle(tmp_path / "in.txt", f"{tmp_path}/out/", **options)


def test_the_manifest_tells_types_that_people_know(tmp_path: Path):
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["id"] = np.arange(5)
        file["image"] = np.zeros((5, 8, 3), np.float32)
    recshuf.shuffle(tmp_path / "in.h5", f"{tmp_path}/out/")
    schema = json.loads((tmp_path / "out" / "recshuf.json").read_text())["schema"]
    assert [field["type"].count("float") for field in schema] == [0, 1]
    assert schema[0]["type"] == "int64"
