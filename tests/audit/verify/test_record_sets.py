"""Files of the output that differ from the manifest, and those that cannot be read, are named."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import InputError, UsageError
from recshuf.output.manifest import manifest_path
from recshuf.records.reader import InputReader
from tests.support.formats.line_comparisons import LINES, append, write_lines

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def make_output(folder: Path, **options: Any) -> tuple[Path, Path]:
    """Return inputs and a directory of three shards made of them."""
    path = write_lines(folder / "in.txt", LINES)
    recshuf.shuffle(path, f"{folder}/out/", shards=3, seed=3, **options)
    return path, folder / "out"


def edit_manifest(output: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(manifest_path(output).read_text())
    change(content)
    manifest_path(output).write_text(json.dumps(content))


def test_a_store_that_cannot_be_asked_for_a_manifest_says_why(tmp_path: Path):
    path = write_lines(tmp_path / "in.txt", LINES)
    options = {"s3://bucket:access_key_id": "x"}
    with pytest.raises(UsageError, match=r"secret_access_key is missing; give access_key_id and"):
        recshuf.verify(path, "s3://bucket/out/", storage_options=options)


FILE_DAMAGES: dict[str, tuple[Callable[[Path], object], str, int, int]] = {
    "missing": (lambda out: (out / "shard-00001.txt").unlink(), "shard-00001.txt: is missing", 100, 0),
    "all-missing": (lambda out: [one.unlink() for one in out.glob("*.txt")], "shard-00000.txt: is missing", 300, 0),
    "extra": (lambda out: write_lines(out / "more.txt", [b"x"]), "more.txt: is not named", 0, 0),
    "renamed": (lambda out: (out / "shard-00002.txt").rename(out / "shard-00003.txt"), "shard-00003.txt: is not named", 100, 0),
    "swapped": (lambda out: shutil.copy(out / "shard-00000.txt", out / "shard-00001.txt"), "", 100, 100),
    "longer": (lambda out: append(out / "shard-00000.txt", b"x\n"), "101 records, and 100", 0, 1),
    "count": (lambda out: edit_manifest(out, lambda it: it["shards"][0].update(records=99)), "100 records, and 99", 0, 0),
    "size": (lambda out: edit_manifest(out, lambda it: it["shards"][0].update(bytes=99)), "and 99 in the manifest", 0, 0),
    "inputs": (lambda out: edit_manifest(out, lambda it: it["inputs"][0].update(records=9)), "names inputs of 9 records", 0, 0),
}  # fmt: skip


@pytest.mark.parametrize("damage", FILE_DAMAGES)
def test_files_that_differ_from_the_manifest_are_named(tmp_path: Path, damage: str):
    path, output = make_output(tmp_path)
    harm, words, missing, extra = FILE_DAMAGES[damage]
    harm(output)
    report = recshuf.verify(path, output)
    assert not report.is_equal
    assert (report.missing, report.extra) == (missing, extra)
    assert words in " ".join(report.differences)


def test_hidden_files_and_files_of_no_format_are_not_records(tmp_path: Path):
    path, output = make_output(tmp_path)
    (tmp_path / ".out.recshuf").mkdir()
    (output / ".hidden.txt").write_text("x\n")
    (output / "README.md").write_text("x\n")
    assert recshuf.verify(path, output).is_equal


def test_a_directory_without_manifest_is_compared_by_its_files(tmp_path: Path):
    path, output = make_output(tmp_path)
    manifest_path(output).unlink()
    assert recshuf.verify(path, output).is_equal
    write_lines(output / "more.txt", [b"x"])
    assert recshuf.verify(path, output).extra_places[0].name == str(output / "more.txt")


def test_a_manifest_may_name_inputs_that_are_no_utf8(tmp_path: Path):
    path = write_lines(tmp_path / os.fsdecode(b"\xff.txt"), LINES)
    for seed in (1, 2):
        recshuf.shuffle(path, f"{tmp_path}/out/", seed=seed, overwrite=True)
    assert recshuf.verify(path, tmp_path / "out").is_equal


def test_an_output_among_the_inputs_is_not_an_input(tmp_path: Path):
    (tmp_path / "data").mkdir()
    _, output = make_output(tmp_path / "data")
    assert recshuf.verify(tmp_path / "data", output).is_equal
    assert recshuf.verify(output, output).is_equal


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": "text", "to": "text", "inputs": [], "shards": [{"name": "../in.txt", "records": 1, "bytes": 1}]}']
)  # fmt: skip
def test_a_manifest_that_is_none_is_named(tmp_path: Path, text: str):
    path, output = make_output(tmp_path)
    manifest_path(output).write_text(text)
    with pytest.raises(InputError, match=r"recshuf\.json: is not a manifest"):
        recshuf.verify(path, output)


@pytest.mark.parametrize("suffix", [".jsonl.zst", ".jsonl.gz", ".parquet", ".h5"])
def test_an_output_that_cannot_be_read_is_named(tmp_path: Path, suffix: str):
    columns = {"id": list(range(5000))}
    (tmp_path / "in.jsonl").write_text("".join(f'{{"id": {number}}}\n' for number in columns["id"]))
    output = tmp_path / f"out{suffix}"
    recshuf.shuffle(tmp_path / "in.jsonl", output, seed=1)
    os.truncate(output, output.stat().st_size // 2)
    with pytest.raises(InputError, match=rf"out\{suffix}"):
        recshuf.verify(tmp_path / "in.jsonl", output)
    output.unlink()
    with pytest.raises(InputError, match=rf"out\{suffix}"):
        recshuf.verify(tmp_path / "in.jsonl", output)


def test_a_line_that_does_not_parse_is_named_with_its_line(tmp_path: Path):
    pq.write_table(pa.table({"a": range(100)}), tmp_path / "in.parquet")
    (tmp_path / "out.jsonl").write_text("".join(f'{{"a": {number}}}\n' for number in range(99)) + '{"a": 9\n')
    with pytest.raises(InputError, match=r"out\.jsonl: line 100"):
        recshuf.verify(tmp_path / "in.parquet", tmp_path / "out.jsonl")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-", "x"), "name files"),
        (("x", "-"), "name files"),
        (((), "x"), "no inputs; give at least one path"),
    ],
)
def test_streams_and_no_inputs_are_refused(arguments: tuple[Any, str], message: str):
    with pytest.raises(UsageError, match=message):
        recshuf.verify(*arguments)


def test_pipes_are_refused_before_anybody_waits_for_them(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    write_lines(tmp_path / "in.txt", LINES)
    for arguments in ((tmp_path / "in.txt", tmp_path / "pipe"), (tmp_path / "pipe", tmp_path / "in.txt")):
        with pytest.raises(UsageError, match="pipe: verify reads files"):
            recshuf.verify(*arguments)


def test_a_file_that_changes_while_it_is_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, output = make_output(tmp_path)
    read = InputReader.run

    def read_and_write(*arguments: Any) -> None:
        read(*arguments)
        os.utime(path, ns=(1, 1))

    monkeypatch.setattr(InputReader, "run", read_and_write)
    with pytest.raises(InputError, match=r"in\.txt.*change"):
        recshuf.verify(path, output)
