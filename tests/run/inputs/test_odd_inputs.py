"""Inputs that are empty, cannot be read, or change while a run reads them: a valid output, or an error that names the input."""

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import recshuf
from recshuf.errors import InputError, RecshufError, RecshufWarning
from tests.support.formats.conversion_data import read_columns
from tests.support.numbered_files import (
    FORMATS,
    SUFFIXES,
    WRITERS,
    make_inputs,
    read_ids,
    write_lines,
    write_parquet,
)
from tests.support.small_runs import Listener, list_shards, list_tree

# Empty


@pytest.mark.parametrize("name", FORMATS)
def test_inputs_without_records_give_an_empty_valid_output(tmp_path: Path, name: str):
    inputs = [tmp_path / f"{index}{SUFFIXES[name]}" for index in range(3)]
    for path in inputs:
        if name == "parquet":
            pq.write_table(pa.schema({"id": pa.int64(), "tag": pa.string()}).empty_table(), path)
        else:
            WRITERS[name](path, 0, 0)
    for to in {name, "parquet" if name != "jsonl" else name}:  # of which nobody knows the fields
        output = tmp_path / f"out{SUFFIXES[to]}"
        assert recshuf.shuffle(inputs, output, seed=0, overwrite=True).records == 0
        assert not any(read_columns(output).values())
    recshuf.shuffle(inputs, tmp_path / "shards", seed=0, shards=2)
    assert [read_ids(shard) for shard in list_shards(tmp_path / "shards")] == [[], []]


@pytest.mark.parametrize("name", ["parquet", "jsonl"])
def test_an_empty_parquet_shard_has_the_schema_and_no_row_group(tmp_path: Path, name: str):
    """`datasets` fails on a row group without rows."""
    path = tmp_path / f"in{SUFFIXES[name]}"
    if name == "parquet":
        pq.write_table(pa.table({"id": [1, 2], "tag": ["a", "b"]}), path)
    else:
        path.write_bytes(b'{"id": 1, "tag": "a"}\n{"id": 2, "tag": "b"}\n')
    recshuf.shuffle(path, tmp_path / "out", seed=0, shards=4, to="parquet", verify=True)
    shards = [pq.read_metadata(shard) for shard in list_shards(tmp_path / "out")]
    assert [(shard.num_rows, shard.num_row_groups) for shard in shards] == [(1, 1), (1, 1), (0, 0), (0, 0)]
    assert all(shard.schema.equals(shards[0].schema) for shard in shards)
    assert all(shard.metadata == shards[0].metadata for shard in shards)


# That cannot be read


def truncate(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3])


BAD_INPUTS: dict[str, Callable[[Path], object]] = {
    "missing.txt": lambda path: None,
    "missing.h5": lambda path: None,
    "wrong.parquet": lambda path: write_lines(path, 0, 100),
    "empty.h5": lambda path: path.write_bytes(b""),
    "truncated.parquet": lambda path: (write_parquet(path, 0, 5000), truncate(path)),
    "truncated.txt.zst": lambda path: path.write_bytes(zstandard.compress(os.urandom(10**6))[:-9]),
    "wrong.jsonl.zst": lambda path: write_lines(path, 0, 100),
    "gzip.txt": lambda path: path.write_bytes(gzip.compress(b"a\nb\n")[:-3]),
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


# That change


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b'{"id": 1}\n')


def shrink(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def replace(path: Path) -> None:
    """Put a file of the same size and time in its place."""
    found = path.stat()
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(found.st_atime_ns, found.st_mtime_ns))
    other.rename(path)


def rewrite(path: Path) -> None:
    content, found = path.read_bytes(), path.stat()
    with path.open("r+b") as file:
        file.write(content)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns + 1))


@pytest.mark.parametrize(
    ("change", "name", "index"),
    [
        (append, "text", 0),
        (append, "csv", 2),
        (shrink, "parquet", 2),
        (shrink, "jsonl", 0),
        (shrink, "hdf5", 2),
        (replace, "parquet", 0),
        (replace, "csv", 2),
        (rewrite, "hdf5", 0),
        (rewrite, "jsonl", 2),
        (Path.unlink, "text", 2),
        (Path.unlink, "parquet", 0),
    ],
)
def test_a_change_is_an_error_that_names_the_input(
    tmp_path: Path, name: str, index: int, change: Callable[[Path], None]
):
    """The first input changes after it was read, or the last one before it is."""
    inputs = make_inputs(tmp_path / "in", name, [300, 300, 300])
    calls = iter(range(100))
    heard = Listener(lambda: next(calls) == 0 and change(inputs[index]))
    with pytest.raises(
        InputError, match=rf"input{index}\S*: .*(changed|gone|vanished|No such file)"
    ) as caught:
        recshuf.shuffle(inputs, f"{tmp_path}/out/", seed=1, workers=1, progress=heard)
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == ["in"]


@pytest.mark.parametrize("split", [None, {"a": 0.5, "b": 0.5}], ids=["one", "split"])
@pytest.mark.parametrize(("change", "name"), [(append, "text"), (replace, "parquet")])
def test_no_store_is_made_of_an_input_that_changes(
    tmp_path: Path, change: Callable[[Path], None], name: str, split: dict[str, float] | None
) -> None:
    """It was read as it had been."""
    inputs = make_inputs(tmp_path / "in", name, [300, 300])
    calls = iter(range(100))
    heard = Listener(lambda: heard.passes[-1:] == ["scatter"] and next(calls) == 0 and change(inputs[0]))
    with pytest.raises(InputError, match=r"input0\S*: .*changed"):
        recshuf.scatter(inputs, tmp_path / "store", seed=1, workers=1, progress=heard, split=split)
    assert os.listdir(tmp_path) == ["in"]


# Given twice


def test_an_input_that_is_given_twice_is_told_and_read_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b.txt", "c.txt"):
        Path(name).write_text(f"{name}\n")
    os.link("a.txt", "d.txt")
    Path("e.txt").symlink_to("c.txt")
    recshuf.shuffle(["a.txt", "b.txt", "d.txt"], "of all links.txt")
    for given, told in (
        (["a.txt", "a.txt"], "a.txt is"),
        (["b.txt", "c.txt", f"{tmp_path}/./b.txt"], "b.txt is"),
        (["[ab].txt", "a.txt", "d.txt", "b.txt"], "a.txt and 1 more are"),
        (["c.txt", "e.txt"], "c.txt is"),
    ):
        with pytest.warns(RecshufWarning, match=f"^{told} given more than once, and so are the records$"):
            report = recshuf.shuffle(given, "out.txt", overwrite=True)
        assert report.records == len(given) + (given[0] == "[ab].txt")
