"""Peak memory and open files of whole runs, each in a process of its own."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from pyarrow import feather

import recshuf
from benchmarks.data import make_data
from recshuf.errors import InputError, MemoryLimitError, RecshufWarning
from tests.support.numbered_files import make_inputs
from tests.support.small_runs import list_shards

MB = 10**6
MEMORY = 256 * MB
BASE = 150 * MB
"""What the interpreter and its libraries may take beside the limit."""

CHILD = """
import json, resource, sys
inputs, output, options, files = json.loads(sys.argv[1])
if files:
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
import recshuf
report = recshuf.shuffle(inputs, output, **options)
print(json.dumps(report.to_json()))
"""

REFUSED = """
import sys
import recshuf
from recshuf.system.memory import peak_bytes
try:
    recshuf.shuffle(sys.argv[1], sys.argv[2], memory="64MB")
except MemoryError as error:
    print(peak_bytes(), error)
"""


HELD = """
import sys
from pathlib import Path
import recshuf
from recshuf.system.memory import choose_allocators, peak_bytes, resident_bytes
choose_allocators(64_000_000)
import numpy as np, pyarrow as pa, pyarrow.dataset, pyarrow.parquet
folder, kind, memory = Path(sys.argv[1]), sys.argv[2], 64_000_000

def read_long():
    chance = np.random.default_rng(1)
    for number in range(120):
        values = pa.FixedSizeBinaryArray.from_buffers(pa.binary(20_000), 100, [None, pa.py_buffer(chance.bytes(2_000_000))])
        yield pa.record_batch([values], names=["image"])

reader = pa.RecordBatchReader.from_batches(pa.schema({"image": pa.binary(20_000)}), read_long())
if kind == "reader":
    inputs = reader
elif kind == "indices":
    import datasets
    inputs = datasets.Dataset(reader.read_all()).select(range(11_999, -1, -1))
elif kind == "dataset":
    with pa.parquet.ParquetWriter(folder / "in.parquet", reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)
    inputs = pa.dataset.dataset(folder / "in.parquet")
else:
    words = pa.array([str(number) * 200 for number in range(10)], pa.string_view())
    _, places, *values = words.buffers()
    column = pa.Array.from_buffers(words.type, 2_000_000, [None, pa.py_buffer(places[:160].to_pybytes() * 200_000), *values])
    if kind == "dictionary":
        column = pa.DictionaryArray.from_arrays(pa.array(np.arange(2_000_000) % 10, pa.int8()), words.cast(pa.string()))
    inputs = pa.table({"word": column})
if kind == "file of views":
    words = pa.table({"word": [f"{number:050}" for number in range(400_000)]}).cast(pa.schema({"word": pa.string_view()}))
    inputs, memory = folder / "in.arrow", 300_000_000
    with pa.ipc.new_file(inputs, words.schema) as writer:  # each batch has all values
        for start in range(0, len(words), 10_000):
            writer.write_table(words[start : start + 10_000])
Path("/proc/self/clear_refs").write_text("5")
before = resident_bytes()
recshuf.scatter(inputs, folder / "store", memory=memory, workers=2)
print(peak_bytes() - before - memory)
"""


def shuffle_in_child(
    inputs: list[Path], output: Path | str, *, files: int | None = None, **options: object
) -> dict[str, int]:
    """Return the report of a run in a new process, which may hold that many files open."""
    arguments = json.dumps([[str(path) for path in inputs], str(output), options, files])
    # Fewer malloc arenas than threads would flatter the result: the environment stays as users have it.
    child = subprocess.run(
        [sys.executable, "-c", CHILD, arguments], capture_output=True, text=True, timeout=280, check=False
    )
    assert child.returncode == 0, child.stderr[-2000:]
    return json.loads(child.stdout)


CASES = {
    "lines20": ("lines20", ".txt", "out.txt"),
    "documents": ("documents", ".jsonl", "out.jsonl"),
    "parquet": ("parquet", "", "out/"),
    "hdf5": ("hdf5", "", "out/"),
    "to-parquet": ("lines140", ".jsonl.zst", "out.parquet"),
}
SIZE = 500 * MB
"""More than the limit and `BASE` together: a run that kept all of it would be found out."""
COPIES = 5
"""So many times the same data: to make as much that differs would take longer than the run."""


def make_large(kind: str, suffix: str, folder: Path, size: int = SIZE) -> list[Path]:
    """Return inputs of so many bytes before compression: one file of text, or several others."""
    (one,) = make_data(kind, size // COPIES, folder / f"one{suffix}", file_bytes=size)
    content = one.read_bytes()
    one.unlink()
    if suffix:
        one.write_bytes(content * COPIES)
        return [one]
    copies = [one.with_stem(str(number)) for number in range(COPIES)]
    for path in copies:
        path.write_bytes(content)
    return copies


@pytest.mark.parametrize("case", ["little", *(pytest.param(one, marks=pytest.mark.slow) for one in CASES)])
def test_peak_memory_stays_within_the_limit(
    tmp_path: Path, case: str, record_property: Callable[[str, object], None]
):
    is_little = case == "little"  # the least memory that a run takes
    kind, suffix, output = CASES["documents" if is_little else case]
    memory, size = (64 * MB, 250 * MB) if is_little else (MEMORY, SIZE)
    inputs = make_large(kind, suffix, tmp_path / "in", size)
    report = shuffle_in_child(inputs, f"{tmp_path}/{output}", memory=memory, seed=0, workers=2)
    assert report["spilled_bytes"] > 0
    assert report["predicted_peak_bytes"] <= memory
    record_property("measured_peak_bytes", report["measured_peak_bytes"])
    assert report["measured_peak_bytes"] <= memory + BASE
    manifest = [f".{output[:-1]}.recshuf.json"] if output.endswith("/") else []
    assert sorted(os.listdir(tmp_path)) == sorted(["in", output.rstrip("/"), *manifest])


@pytest.mark.slow
def test_many_copies_of_long_records_stay_within_the_limit(tmp_path: Path):
    given, copies = tmp_path / "in.txt", 150
    given.write_bytes(b"".join(b"%d" % number * 2_000_000 + b"\n" for number in range(2)))
    report = shuffle_in_child([given], tmp_path / "out.txt", memory=32 * MB, seed=0, copies=[copies])
    assert (tmp_path / "out.txt").stat().st_size == copies * given.stat().st_size
    assert report["measured_peak_bytes"] <= 32 * MB + BASE


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".npy", ".arrow", ".h5", ".json"])
def test_records_of_a_byte_stay_within_the_limit(tmp_path: Path, suffix: str):
    values, given = np.arange(12_000_000).astype(np.int8), tmp_path / f"in{suffix}"
    if suffix == ".h5":
        with h5py.File(given, "w") as file:
            file.create_dataset("a", data=values, chunks=(1 << 18,))
    elif suffix == ".arrow":
        table = pa.table({"a": values})
        with pa.ipc.new_file(given, table.schema) as writer:
            writer.write_table(table, max_chunksize=1 << 20)
    elif suffix == ".json":
        given.write_bytes(b"[" + b"1," * 8_000_000 + b"1]")
    else:
        np.save(given, values)
    report = shuffle_in_child([given], tmp_path / f"out{suffix}", memory=64 * MB, seed=0, workers=2)
    assert report["measured_peak_bytes"] <= 64 * MB + BASE


@pytest.mark.slow
@pytest.mark.parametrize("is_long", ["value", "text", "inside"])
def test_long_rows_behind_short_ones_with_dictionaries_stay_within_the_limit(tmp_path: Path, is_long: str):
    values = pa.array(
        ["short", *(f"{number:05}" * (1 if is_long == "text" else 1000) for number in range(200))]
    )
    kind = pa.dictionary(pa.int32(), pa.string())
    if is_long == "inside":
        kind = pa.struct({"value": kind})
    schema = pa.schema({"value": kind, "text": pa.string()})
    with pa.ipc.new_file(tmp_path / "in.arrow", schema) as writer:
        for number in range(8):
            rows = 50_000 if number < 4 else 5000
            index = np.zeros(rows, np.int32) if number < 4 else np.arange(rows, dtype=np.int32) % 200 + 1
            texts = ["x" * (5000 if is_long == "text" and number >= 4 else 5)] * rows
            column = pa.DictionaryArray.from_arrays(pa.array(index), values)
            if is_long == "inside":
                column = pa.StructArray.from_arrays([column], ["value"])
            writer.write_batch(pa.record_batch([column, pa.array(texts)], schema=schema))
    report = shuffle_in_child(
        [tmp_path / "in.arrow"], tmp_path / "out.arrow", memory=128 * MB, seed=0, workers=2
    )
    assert report["measured_peak_bytes"] <= 128 * MB + BASE


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["reader", "dataset", "indices", "dictionary", "views", "file of views"])
def test_what_a_program_gives_is_read_within_the_limit(tmp_path: Path, kind: str):
    if kind == "indices":
        pytest.importorskip("datasets")
    command = [sys.executable, "-c", HELD, str(tmp_path), kind]
    child = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert child.returncode == 0, child.stderr
    beside = BASE - 90 * MB  # most libraries were imported before
    assert int(child.stdout) <= beside + 90 * MB * (kind == "dataset")  # pyarrow reads ahead


def test_a_footer_beyond_the_limit_is_no_damage(tmp_path: Path):
    table = pa.table({"a": [1]}).replace_schema_metadata({"note": "x" * 8 * MB})
    pq.write_table(table, tmp_path / "in.parquet")
    said = "reading its footer needs at least .* MB of memory, and the limit is 12 MB; raise memory$"
    with pytest.raises(MemoryLimitError, match=said):
        recshuf.shuffle(tmp_path / "in.parquet", tmp_path / "out.parquet", memory="12MB")


@pytest.mark.slow
def test_a_large_footer_counts_once_and_is_refused_before_it_is_read(tmp_path: Path):
    table = pa.table({f"column {index}": np.arange(6000) for index in range(120)})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=5)
    command = [sys.executable, "-c", REFUSED, str(tmp_path / "in.parquet"), str(tmp_path / "out.parquet")]
    child = subprocess.run(command, capture_output=True, text=True, timeout=280, check=True)
    peak, needed = re.fullmatch(
        r"(\d+) .*: reading its footer needs at least ([0-9.]+ MB) of .*\n", child.stdout
    ).groups()
    assert int(peak) <= 64 * MB + BASE
    report = shuffle_in_child([tmp_path / "in.parquet"], tmp_path / "out.parquet", memory=needed, workers=1)
    assert report["measured_peak_bytes"] <= int(float(needed[:-3]) * MB) + BASE


@pytest.mark.slow
@pytest.mark.parametrize("columns", [9, 2])
def test_little_csv_needs_little_memory_for_parquet(tmp_path: Path, columns: int):
    (few, many), peaks = (tmp_path / "few.csv", tmp_path / "many.csv"), []
    for path, count in ((few, 10), (many, 40_000)):
        path.write_bytes((b",".join([b"7"] * columns) + b"\n") * count)
        report = shuffle_in_child([path], path.with_suffix(".parquet"), memory=64 * MB, header="none")
        assert report["predicted_peak_bytes"] <= 64 * MB
        peaks.append(report["measured_peak_bytes"])
    assert peaks[1] - peaks[0] <= report["predicted_peak_bytes"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suffix", "columns", "memory"), [(".parquet", 1500, "200MB"), (".h5", 1500, "64MB")]
)
def test_columns_found_while_reading_are_refused_if_they_need_more_memory(
    tmp_path: Path, suffix: str, columns: int, memory: str
):
    line = json.dumps({f"field {index}": index for index in range(columns)})
    (tmp_path / "in.jsonl").write_text(line + "\n")
    with pytest.raises(
        MemoryLimitError, match=f"writing {columns:,} columns needs at least .*; raise memory"
    ):
        recshuf.shuffle(tmp_path / "in.jsonl", tmp_path / f"out{suffix}", memory=memory, workers=1)
    assert not (tmp_path / f"out{suffix}").exists()
    recshuf.shuffle(tmp_path / "in.jsonl", tmp_path / f"out{suffix}", memory="1GB", workers=1, resume=True)
    assert sorted(os.listdir(tmp_path)) == ["in.jsonl", f"out{suffix}"]


@pytest.mark.slow
def test_few_open_files_are_enough_for_many_pile_sets(tmp_path: Path):
    """Spilled inputs share pile sets, however many inputs there are."""
    block = os.urandom(300_000).hex().encode()
    lines = b"".join(block[place : place + 99] + b"\n" for place in range(0, len(block) - 99, 99))
    (tmp_path / "in").mkdir()
    for index in range(300):
        (tmp_path / "in" / f"{index}.txt").write_bytes(lines)
    report = shuffle_in_child(
        [tmp_path / "in"], f"{tmp_path}/out/", files=256, seed=3, workers=8, memory="100MB", shards=280
    )
    assert report["spilled_bytes"] > 0
    assert sum(path.stat().st_size for path in list_shards(tmp_path / "out")) == 300 * len(lines)
    assert sorted(os.listdir(tmp_path)) == [".out.recshuf.json", "in", "out"]


@pytest.mark.parametrize("memory", ["64MB", None])
def test_a_run_takes_what_its_memory_group_leaves_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: str | None
):
    monkeypatch.chdir(tmp_path)
    inputs = make_inputs(tmp_path / "in", "text", (500, 300))
    whole = recshuf.shuffle(inputs, "whole.txt", seed=3, memory="64MB", workers=1)
    assert not whole.warnings
    monkeypatch.setattr("recshuf.run.resolve.find_group_room", lambda: (40 * MB, 80 * MB))
    with pytest.warns(RecshufWarning) if memory else nullcontext():
        report = recshuf.shuffle(inputs, "out.txt", seed=3, memory=memory, workers=1)
    assert report.predicted_peak_bytes <= 24 * MB < whole.predicted_peak_bytes
    told = "memory 64MB: the memory group leaves 40 MB, and the run uses no more than 24 MB of it"
    assert [warning.partition(";")[0] for warning in report.warnings] == ([told] if memory else [])
    assert (tmp_path / "out.txt").read_bytes() == (tmp_path / "whole.txt").read_bytes()
    with pytest.warns(RecshufWarning, match=f"{told};") if memory else nullcontext():
        recshuf.scatter(inputs, "store", seed=3, memory=memory, workers=1)


@pytest.mark.parametrize("name", ["out.parquet", "out.jsonl"])
def test_the_least_limit_of_a_memory_group_is_named_and_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    """Less is refused: code that has to leave memory is read from the disk again and again."""
    given = make_inputs(tmp_path / "in", "jsonl", (500,))
    room = {"left": 20 * MB, "limit": 64 * MB}
    monkeypatch.setattr("recshuf.run.resolve.find_group_room", lambda: tuple(room.values()))
    options = {"seed": 3, "workers": 1, "memory": "17MB"}
    with pytest.raises(MemoryLimitError, match="the memory group leaves 20 MB; raise its limit to ") as error:
        recshuf.shuffle(given, tmp_path / name, **options)
    limit, *memory = re.findall(r"(?:limit|memory) to ([0-9.]+) MB", str(error.value))
    room = {"left": (20 - 64) * MB + int(float(limit) * MB), "limit": int(float(limit) * MB)}
    recshuf.shuffle(given, tmp_path / name, **options | {"memory": f"{memory[0] if memory else 17}MB"})


def write_one_long(path: Path, size: int) -> None:
    """Write a record of so many bytes among short ones."""
    values = ["a"] * 20 + ["x" * size] + ["b"] * 20
    match path.suffix:
        case ".txt":
            path.write_text("\n".join(values))
        case ".zst":
            path.write_bytes(zstandard.compress("\n".join(values).encode()))
        case ".jsonl":
            path.write_text("".join(json.dumps({"v": value}) + "\n" for value in values))
        case ".csv":
            path.write_text("v,w\n" + "".join(f'"{value}",1\n' for value in values))
        case ".parquet":
            pq.write_table(pa.table({"v": values}), path)
        case ".arrow":
            feather.write_feather(pa.table({"v": values}), path, compression="uncompressed", chunksize=10)
        case ".h5":
            with h5py.File(path, "w") as file:
                file["v"] = values


@pytest.mark.parametrize("door", ["shuffle", "scatter", "verify"])
@pytest.mark.parametrize("suffix", [".txt", ".txt.zst", ".jsonl", ".csv", ".parquet", ".arrow", ".h5"])
def test_the_memory_that_an_error_names_takes_the_record(tmp_path: Path, suffix: str, door: str):
    """In compressed lines nobody knows how long it is: then it takes one that is twice as long as the limit."""
    source = tmp_path / f"in{suffix}"
    write_one_long(source, 12_000_000)
    output = {"shuffle": tmp_path / f"out{suffix}", "scatter": tmp_path / "store", "verify": source}[door]
    run = partial(getattr(recshuf, door), source, output, workers=1)
    memory = "64MB" if door == "verify" else "100MB"
    for _ in range(2 if suffix == ".txt.zst" and door == "verify" else 1):
        with pytest.raises(InputError, match=r"raise memory to \d+(\.\d)? MB or more") as caught:
            run(memory=memory)
        memory = f"{re.findall(r'raise memory to ([0-9.]+) MB', str(caught.value))[0]}MB"
    assert float(memory.removesuffix("MB")) < 400
    assert run(memory=memory)
