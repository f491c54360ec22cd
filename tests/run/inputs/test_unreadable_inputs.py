"""An input that cannot be read is named, and nothing is left in the folders."""

from __future__ import annotations

import gzip
import os
from collections import Counter
from typing import TYPE_CHECKING

import h5py
import numpy as np
import pytest
import zstandard

import recshuf
from recshuf.errors import InputError, MemoryLimitError, RecshufError
from tests.support.numbered_files import make_inputs, write_hdf5, write_lines, write_parquet
from tests.support.output_trees import list_tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


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


@pytest.mark.parametrize(("name", "is_first"), [(name, k % 2 == 0) for k, name in enumerate(BAD_INPUTS)])
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


def test_inputs_of_two_formats_are_refused(tmp_path: Path):
    (text,) = make_inputs(tmp_path, "jsonl", [10])
    (table,) = make_inputs(tmp_path, "parquet", [10])
    with pytest.raises(InputError, match=r"input0\.parquet: is parquet, but .*input0\.jsonl is jsonl"):
        recshuf.shuffle([text, table], f"{tmp_path}/out/")


def test_a_record_too_long_names_file_and_offset(tmp_path: Path):
    (tmp_path / "in.txt").write_bytes(b"short\n" * 10 + b"x" * 5000 + b"\nshort\n")
    with pytest.raises(InputError, match=r"in\.txt: byte 60: .*1,000"):
        recshuf.shuffle(tmp_path / "in.txt", tmp_path / "out.txt", max_record_bytes=1000)
    assert os.listdir(tmp_path) == ["in.txt"]


def test_a_limit_nothing_fits_into_is_refused_before_anything_is_written(tmp_path: Path):
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file.create_dataset("a", data=np.zeros((4, 5_000_000)), chunks=(1, 5_000_000), compression=1)
    with pytest.raises((MemoryLimitError, InputError), match="memory"):
        recshuf.shuffle(tmp_path / "in.h5", tmp_path / "out.h5", memory="64MB")
    assert os.listdir(tmp_path) == ["in.h5"]


LYING = {
    "parquet": b"PAR1rest",
    "hdf5": b"\x89HDF\r\n\x1a\nrest",
}


@pytest.mark.parametrize("content", LYING.values(), ids=LYING)
def test_a_name_of_plain_text_that_lies_is_refused(tmp_path: Path, content: bytes):
    (tmp_path / "in.txt").write_bytes(content)
    with pytest.raises(InputError, match=r"in\.txt: begins like .*, and not like lines; .*format='text'"):
        recshuf.shuffle(tmp_path / "in.txt", tmp_path / "out.txt")
    recshuf.shuffle(tmp_path / "in.txt", tmp_path / "out.txt", format="text")
    records = content.removesuffix(b"\n").split(b"\n")
    assert Counter((tmp_path / "out.txt").read_bytes().split(b"\n")[:-1]) == Counter(records)


@pytest.mark.parametrize(
    ("content", "options"),
    [(gzip.compress(b"a\nb\n", mtime=0)[:-3], {}), (b"\x28\xb5\x2f\xfdrest", {"format": "text"})],
    ids=["gzip", "zstd"],
)
def test_damaged_compressed_data_is_an_error_under_any_name(
    tmp_path: Path, content: bytes, options: dict[str, str]
):
    (tmp_path / "in.txt").write_bytes(content)
    with pytest.raises(InputError, match=r"in\.txt: is truncated: its compressed data ends in the middle"):
        recshuf.shuffle(tmp_path / "in.txt", tmp_path / "out.txt", **options)
    assert os.listdir(tmp_path) == ["in.txt"]
