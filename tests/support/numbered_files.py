"""Files of numbered records in every format: how they are written, read back, and ordered by a seed."""

import csv
import io
import json
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recshuf.records.keys import draw_keys
from tests.support.formats.format_tools import decompress_file

FORMATS = ("text", "jsonl", "csv", "parquet", "hdf5")
SUFFIXES = {"text": ".txt", "jsonl": ".jsonl", "csv": ".csv", "parquet": ".parquet", "hdf5": ".h5"}


def make_lines(first: int, count: int) -> list[bytes]:
    """Return JSON lines, each its own and of its own length."""
    return [
        b'{"id": %d, "pad": "%s"}' % (number, b"x" * (number * 7 % 23))
        for number in range(first, first + count)
    ]


def write_lines(path: Path, first: int, count: int) -> None:
    path.write_bytes(b"".join(line + b"\n" for line in make_lines(first, count)))


def make_row(number: int) -> list[str]:
    """Return the fields of a CSV record, two of them quoted."""
    return [str(number), "line\n" * (number % 3), "a,b" * (number % 2)]


def write_csv(path: Path, first: int, count: int) -> None:
    with path.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["id", "text", "fields"])
        rows.writerows(map(make_row, range(first, first + count)))


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


def write_tar(path: Path, first: int, count: int) -> None:
    with tarfile.open(path, "w") as archive:
        for number in range(first, first + count):
            archive.addfile(tarfile.TarInfo(f"{number}.id"))


WRITERS: dict[str, Callable[[Path, int, int], None]] = {
    "text": write_lines,
    "jsonl": write_lines,
    "csv": write_csv,
    "parquet": write_parquet,
    "hdf5": write_hdf5,
    "tar": write_tar,
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
    if ".csv" in path.suffixes:
        header, *rows = csv.reader(io.StringIO(decompress_file(path).decode(), newline=""))
        assert header == ["id", "text", "fields"]
        assert rows == [make_row(int(row[0])) for row in rows]
        return [int(row[0]) for row in rows]
    lines = decompress_file(path).splitlines()
    ids = [json.loads(line)["id"] for line in lines]
    assert lines == [make_lines(number, 1)[0] for number in ids]
    return ids


def make_inputs(folder: Path, name: str, counts: Sequence[int]) -> list[Path]:
    """Write numbered records into one file for each count."""
    folder.mkdir(parents=True, exist_ok=True)
    paths, first = [], 0
    for index, count in enumerate(counts):
        paths.append(folder / f"input{index}{SUFFIXES.get(name, f'.{name}')}")
        WRITERS[name](paths[-1], first, count)
        first += count
    return paths


def order_of(counts: Sequence[int], seed: int) -> list[int]:
    """Return the numbers of all records in shuffled order."""
    keys = draw_keys(seed, [(index, 0, count) for index, count in enumerate(counts)])
    return np.argsort(keys, kind="stable").tolist()
