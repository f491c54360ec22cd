"""Files of the output that differ from the manifest, and those that cannot be read, are named."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import InputError, UsageError
from recshuf.output.manifest import manifest_path
from tests.support.formats.line_comparisons import LINES, append, write_lines
from tests.support.small_runs import Listener, infer_from_few


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
    with pytest.raises(UsageError, match=r"the credentials are incomplete; give access_key_id and"):
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
    "format": (lambda out: edit_manifest(out, lambda it: it.update(to="jsonl")), "are jsonl, and they are read as text", 0, 0),
}  # fmt: skip


@pytest.mark.parametrize(("harm", "words", "missing", "extra"), FILE_DAMAGES.values(), ids=FILE_DAMAGES)
def test_files_that_differ_from_the_manifest_are_named(
    tmp_path: Path, harm: Callable[[Path], object], words: str, missing: int, extra: int
):
    path, output = make_output(tmp_path)
    harm(output)
    report = recshuf.verify(path, output, to="text")
    assert not report.is_equal
    assert (report.missing, report.extra) == (missing, extra)
    assert words in " ".join(report.differences)


def test_a_manifest_may_name_inputs_that_are_no_utf8(tmp_path: Path):
    path = write_lines(tmp_path / os.fsdecode(b"\xff.txt"), LINES)
    for seed in (1, 2):
        recshuf.shuffle(path, f"{tmp_path}/out/", seed=seed, overwrite=True)
    assert recshuf.verify(path, tmp_path / "out").is_equal


def test_a_manifest_that_is_none_is_named(tmp_path: Path):
    path, output = make_output(tmp_path)
    shard = {"name": "../in.txt", "records": 1, "bytes": 1}
    outside = {"format": "text", "to": "text", "inputs": [], "shards": [shard]}
    for text in ("", "[]", "{}", json.dumps(outside)):
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


def test_a_folder_of_the_output_alone_has_no_inputs(tmp_path: Path):
    output = write_lines(tmp_path / "out.txt", LINES)
    with pytest.raises(InputError, match="holds no file beside those of the output"):
        recshuf.verify(tmp_path, output)


def test_streams_and_pipes_are_refused_before_anybody_waits_for_them(tmp_path: Path):
    for arguments in (("-", "x"), ("x", "-")):
        with pytest.raises(UsageError, match="name files"):
            recshuf.verify(*arguments)
    os.mkfifo(tmp_path / "pipe")
    write_lines(tmp_path / "in.txt", LINES)
    for arguments in ((tmp_path / "in.txt", tmp_path / "pipe"), (tmp_path / "pipe", tmp_path / "in.txt")):
        with pytest.raises(UsageError, match="pipe: verify reads files"):
            recshuf.verify(*arguments)


@pytest.mark.parametrize(
    ("name", "words"),
    [("in.txt", "read inputs"), ("out/shard-00001.txt", "read output"), ("in.txt", "read output")],
)
def test_a_file_that_changes_while_files_are_read_is_named(tmp_path: Path, name: str, words: str):
    path, output = make_output(tmp_path)

    def touch() -> None:
        if listener.passes[-1] == words:
            os.utime(tmp_path / name, ns=(1, 1))

    listener = Listener(touch)
    with pytest.raises(InputError, match=rf"{name}.*change"):
        recshuf.verify(path, output, progress=listener)


@pytest.mark.parametrize("to", ["jsonl", "parquet"])
def test_columns_that_the_manifest_says_were_added_are_not_compared(tmp_path: Path, to: str):
    (tmp_path / "in.jsonl").write_text("".join(f'{{"id": {number}}}\n' for number in range(50)))
    recshuf.shuffle(tmp_path / "in.jsonl", f"{tmp_path}/out/", to=to, seed=1, provenance=True)
    assert recshuf.verify(tmp_path / "in.jsonl", tmp_path / "out").is_equal
    manifest_path(tmp_path / "out").unlink()
    report = recshuf.verify(tmp_path / "in.jsonl", tmp_path / "out")
    assert "if a run added it, give provenance=True" in " ".join(report.differences)
    assert recshuf.verify(tmp_path / "in.jsonl", tmp_path / "out", provenance=True).is_equal


def test_added_columns_of_a_conversion_to_lines_name_the_option(tmp_path: Path):
    given, output = tmp_path / "in.csv", tmp_path / "out.jsonl"
    given.write_text("id,n\n1,2\n3,4\n")
    recshuf.shuffle(given, output, seed=1, provenance=True)
    said = r"'source_file': .*if a run added it, give provenance=True to recshuf verify"
    with pytest.raises(InputError, match=said):
        recshuf.verify(given, output)
    assert recshuf.verify(given, output, provenance=True).is_equal


def test_what_every_file_repeats_beside_the_records_is_compared(tmp_path: Path):
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["id"], file["names"] = np.arange(50), np.array([b"cat", b"dog"])
    recshuf.shuffle(tmp_path / "in.h5", f"{tmp_path}/out/", shards=2, seed=1, keep_others=True)
    options = {"keep_others": True}
    assert recshuf.verify(tmp_path / "in.h5", tmp_path / "out", **options).is_equal
    for shard in (tmp_path / "out").iterdir():
        with h5py.File(shard, "a") as file:
            file["names"][1] = b"cow"
    report = recshuf.verify(tmp_path / "in.h5", tmp_path / "out", **options)
    assert (report.missing, report.extra, report.is_equal) == (0, 0, False)
    assert "dataset 'names', which every shard repeats, differs" in report.differences


def test_arrays_that_every_file_repeats_are_called_arrays(tmp_path: Path):
    for number in range(2):
        np.savez(tmp_path / f"{number}.npz", id=np.arange(50), mean=np.ones(2) + number)
    options = {"keep_others": True}
    recshuf.shuffle(tmp_path / "0.npz", tmp_path / "out.npz", seed=1, **options)
    report = recshuf.verify(tmp_path / "1.npz", tmp_path / "out.npz", **options)
    assert "array 'mean', which every shard repeats, differs" in report.differences
    recshuf.scatter(tmp_path / "0.npz", tmp_path / "store", **options)
    with pytest.raises(InputError, match=r"1\.npz: array 'mean': differs"):
        recshuf.window(tmp_path / "store", append=tmp_path / "1.npz", **options)


def test_csv_outputs_that_show_too_few_records_are_read_as_their_inputs_are(tmp_path: Path):
    """A header of numbers is one, and the delimiter is that of the inputs."""
    (tmp_path / "in.csv").write_text("year,2019\n1,5\n2,6\n")
    recshuf.shuffle(tmp_path / "in.csv", f"{tmp_path}/out/", shards=5, verify=True)
    assert recshuf.verify(tmp_path / "in.csv", tmp_path / "out").is_equal
    recshuf.shuffle(tmp_path / "in.csv", tmp_path / "none.csv", head_count=0, verify=True)
    assert (tmp_path / "none.csv").read_text() == "year,2019\n"
    records = ["1;x\n"] * 100 + [
        '1;x,y,"\n'
    ] * 2000  # alone, the last ones seem to have commas between fields
    (tmp_path / "in.csv").write_text("id;a,b,c\n" + "".join(records))
    recshuf.shuffle(tmp_path / "in.csv", tmp_path / "out.csv", seed=1, head_count=1, verify=True)
    assert (tmp_path / "out.csv").read_text() == 'id;a,b,c\n1;x,y,"\n'


@pytest.mark.parametrize("line", [b"null", b'{"a": "\xff"}'])
def test_bad_lines_are_found_behind_those_that_tell_the_types(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: bytes
) -> None:
    for place in range(3):
        (tmp_path / f"{place}.jsonl").write_bytes(b'{"a": "x"}\n' * 20 + (line + b"\n") * (place == 2))
    pq.write_table(pa.table({"a": ["x"] * 60 + [None]}), tmp_path / "out.parquet")
    for use in (lambda _: None, infer_from_few):
        use(monkeypatch)
        with pytest.raises(InputError, match=r"2\.jsonl: line 21: is not (a JSON object|valid UTF-8)"):
            recshuf.verify([tmp_path / f"{place}.jsonl" for place in range(3)], tmp_path / "out.parquet")


_OBJECTS = [f'{{"a": {number}, "b": "x"}}\n' for number in range(40)]
_ROWS = ["a,b\n", *(f"{number},x\n" for number in range(40))]


@pytest.mark.parametrize(
    ("name", "lines", "told"),
    [
        ("a.jsonl", [_OBJECTS[0][:-1], *_OBJECTS[1:39], "\n", _OBJECTS[39]], "line 39: is empty"),
        (
            "a.jsonl",
            [*_OBJECTS[:9], _OBJECTS[9].replace(",", "\n,"), *_OBJECTS[10:]],
            "line 10: holds something",
        ),
        ("a.jsonl", [*_OBJECTS, "null\n"], "line 41: is not a JSON object"),
        ("a.jsonl", [*_OBJECTS, '{"a": 1, "b": "\udcff"}\n'], "line 41: is not valid UTF-8"),
        ("a.csv", [*_ROWS, "1,2,3\n"], "record 41: has 3 fields"),
        ("a.csv", [*_ROWS[:9], "1\n", *_ROWS[9:]], "record 9: has 1 field"),
        ("a.csv", [*_ROWS, "one,x\n"], "record 41: column 'a': CSV conversion error"),
    ],
)
def test_records_of_known_types_are_checked_as_others_are(
    tmp_path: Path, name: str, lines: list[str], told: str
) -> None:
    """Types are known of an output, from the inputs, and of inputs with a schema."""
    pq.write_table(pa.table({"a": range(40), "b": ["x"] * 40}), tmp_path / "a.parquet")
    (tmp_path / name).write_bytes("".join(lines).encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match=f"{name}: {told}"):
        recshuf.verify(tmp_path / "a.parquet", tmp_path / name)
    with pytest.raises(InputError, match=f"{name}: {told}"):
        recshuf.verify(tmp_path / name, tmp_path / "a.parquet", schema={"a": "int64", "b": "string"})
