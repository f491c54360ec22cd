"""Compounds with members of variable length: they come out as they went in, and as structs."""

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import recshuf
from recshuf.errors import InputError
from tests.support.formats.hdf5_tools import store

TEXT, LIST = h5py.string_dtype(), h5py.vlen_dtype("<i4")
INNER = np.dtype([("label", TEXT), ("at", "<f4", (2,))])
KINDS = {
    "text": np.dtype([("name", TEXT), ("v", "<f8")]),
    "list": np.dtype([("v", "<i8"), ("list", LIST)]),
    "with gaps": np.dtype(
        {
            "names": ["flag", "name", "short", "list", "last"],
            "formats": ["?", TEXT, "<i2", LIST, "S3"],
            "offsets": [40, 8, 4, 16, 32],
            "itemsize": 48,
        }
    ),
    "nested": np.dtype([("id", "<u2"), ("inner", INNER), ("second", TEXT)]),
    "text alone": np.dtype([("one", TEXT), ("other", TEXT)]),
}
COUNT = 90


def fill(dtype: np.dtype[Any], row: int) -> Any:
    """Return a value that depends on the row alone; some texts and lists are empty."""
    values: list[Any] = []
    for name in dtype.names or ():
        kind = dtype[name]
        if kind.names:
            values.append(fill(kind, row))
        elif h5py.check_string_dtype(kind) and kind.hasobject:
            values.append("\xe4" * (row % 4) + f" {name}" * (row % 3))
        elif h5py.check_vlen_dtype(kind):
            values.append(np.arange(row % 5, dtype="<i4") + row)
        elif kind.kind == "S":
            values.append(f"{row}".encode())
        else:
            values.append(np.full(kind.shape, row % 2 if kind.kind == "b" else row)[()])
    return tuple(values)


def plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    if isinstance(value, np.void):
        return {name: plain(value[name]) for name in value.dtype.names}
    if isinstance(value, bytes):
        return value.decode()
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


STORAGES: list[dict[str, Any]] = [{}, {"chunks": (7,), "compression": "gzip", "shuffle": True}]


@pytest.mark.parametrize("options", STORAGES, ids=["", "chunks"])
def test_compounds_come_out_as_they_went_in(tmp_path: Path, options: dict[str, Any]) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        for name, dtype in KINDS.items():
            rows = np.empty(COUNT, dtype)
            for row in range(COUNT):
                rows[row] = fill(dtype, row)
            file.create_dataset(name, data=rows, dtype=dtype, **options)
        file["row"] = np.arange(COUNT)
    recshuf.shuffle(tmp_path / "in.h5", tmp_path / "out.h5", seed=1, verify=True)
    recshuf.shuffle(tmp_path / "in.h5", tmp_path / "out.jsonl", seed=1, verify=True)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    with h5py.File(tmp_path / "in.h5") as before, h5py.File(tmp_path / "out.h5") as after:
        order = after["row"][:]
        assert sorted(order) == list(range(COUNT)) != list(order)
        for name in KINDS:
            assert after[name].id.get_type().equal(before[name].id.get_type())
            assert after[name].compression == before[name].compression
            expected = [plain(each) for each in before[name][:][order]]
            assert [plain(each) for each in after[name][:]] == expected
            assert [line[name] for line in lines] == expected


def test_a_member_that_is_not_utf8_is_named_by_row(tmp_path: Path) -> None:
    rows = np.array([("good", 1), (b"b\xe4d", 2)], KINDS["text"])
    store(tmp_path / "in.h5", {"x": rows})
    recshuf.shuffle(tmp_path / "in.h5", tmp_path / "out.h5", verify=True)
    with pytest.raises(InputError, match=r"row 1 of dataset 'x': the string is not UTF-8; .* or name other"):
        recshuf.shuffle(tmp_path / "in.h5", tmp_path / "out.jsonl")
