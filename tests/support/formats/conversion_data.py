"""One data set that every format can hold: a name; for formats with columns also numbers and rows of numbers."""

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from tests.support.formats.format_tools import decompress_file
from tests.support.numbered_files import SUFFIXES

COUNT = 700
PAIRS = list(itertools.permutations(SUFFIXES, 2))


def make_columns() -> dict[str, Any]:
    numbers = np.arange(COUNT)
    return {
        "text": [f"naïve {number}" + "é\t𝄞"[: number % 4] for number in numbers],
        "id": numbers,
        "weight": np.linspace(-1e9, 1e-9, COUNT),
        "flag": numbers % 3 == 0,
        "image": (numbers[:, None, None] * np.arange(6).reshape(2, 3)).astype(np.int64),
    }


def choose_columns(*formats: str) -> dict[str, Any]:
    """Return the columns that all of these formats hold."""
    columns = make_columns()
    if "csv" in formats:
        del columns["image"]
    return {"text": columns["text"]} if "text" in formats else columns


def write_text(path: Path, columns: dict[str, Any]) -> None:
    path.write_text("".join(f"{name}\n" for name in columns["text"]), encoding="utf-8")


def write_jsonl(path: Path, columns: dict[str, Any]) -> None:
    lists = {
        name: values if isinstance(values, list) else values.tolist() for name, values in columns.items()
    }
    rows = (dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_csv(path: Path, columns: dict[str, Any]) -> None:
    pa.csv.write_csv(pa.table(columns), path)


def write_parquet(path: Path, columns: dict[str, Any]) -> None:
    arrays = {name: pa.array(columns[name]) for name in columns if name != "image"}
    if "image" in columns:
        rows = pa.FixedSizeListArray.from_arrays(pa.array(columns["image"].ravel()), 3)
        arrays["image"] = pa.FixedSizeListArray.from_arrays(rows, 2)
    pq.write_table(pa.table(arrays), path, row_group_size=99)


def write_hdf5(path: Path, columns: dict[str, Any]) -> None:
    with h5py.File(path, "w") as file:
        for name, values in columns.items():
            file[name] = values


WRITERS: dict[str, Callable[[Path, dict[str, Any]], None]] = {
    "text": write_text,
    "jsonl": write_jsonl,
    "csv": write_csv,
    "parquet": write_parquet,
    "hdf5": write_hdf5,
}


def choose_schema(name: str, to: str) -> pa.Schema | None:
    """Return the types that JSON does not tell: lists of one length, which HDF5 stores as axes."""
    if (name, to) != ("jsonl", "hdf5"):
        return None
    image = pa.list_(pa.list_(pa.int64(), 3), 2)
    return pa.schema(
        {"text": pa.string(), "id": pa.int64(), "weight": pa.float64(), "flag": pa.bool_(), "image": image}
    )


def read_columns(path: Path) -> dict[str, list[Any]]:
    """Return the columns of a file as values of Python; text is one column of that name."""
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pydict()
    if path.suffix == ".h5":
        with h5py.File(path) as file:
            return {
                name: (one.asstr() if one.dtype.kind in "OS" else one)[:].tolist()
                for name, one in file.items()
            }
    content = decompress_file(path)
    if ".csv" in path.suffixes:
        return pa.csv.read_csv(pa.BufferReader(content)).to_pydict()
    lines = content.decode().split("\n")[:-1]
    if ".txt" in path.suffixes:
        return {"text": lines}
    rows = [json.loads(line) for line in lines]
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


def write_users(folder: Path, name: str, inputs: Sequence[Sequence[Any]]) -> list[Path]:
    """Write a file for each list of users: records with a user, a number through all files, and text of some length."""
    folder.mkdir(exist_ok=True)
    paths, first = [], 0
    for index, users in enumerate(inputs):
        numbers = list(range(first, first + len(users)))
        paths.append(folder / f"in{index}{SUFFIXES[name]}")
        pads = ["y" * (number % 7) for number in numbers]
        WRITERS[name](paths[-1], {"id": numbers, "user": list(users), "pad": pads})
        first += len(users)
    return paths
