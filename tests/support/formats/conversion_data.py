"""One data set that every format can hold: a name; for formats with columns also numbers and rows of numbers."""

from __future__ import annotations

import csv
import itertools
import json
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.numbered_files import SUFFIXES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([list(columns), *zip(*columns.values(), strict=True)])


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
