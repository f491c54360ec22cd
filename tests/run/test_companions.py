"""Shards of two files: written, noted, compared, replaced and removed together, whenever a run dies."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest

import recshuf
from recshuf.errors import InputError, OutputExistsError, RecshufWarning, UsageError
from tests.formats.megatron.test_suite import read_pair, write_pair
from tests.support.objects.object_server import Bucket
from tests.support.processes.killed_runs import Killed, die, run, run_and_die, strike_renames
from tests.support.processes.task_runs import divide_small, shuffle
from tests.support.small_runs import read_files, spill

OLD, NEW = ([[(first + row,)] * (1 + row % 2) for row in range(80)] for first in (0, 5000))


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    (tmp_path / "in").mkdir()
    return [write_pair(tmp_path / f"in/{number}.bin", [*NEW[number::2]]) for number in range(2)]


def read_single(path: Path) -> str:
    """Return what a reader of a data set finds: a state in which it has an index with another file is an error."""
    if not path.with_suffix(".idx").exists():
        return "nothing"
    records = sorted(read_pair(path))
    assert records in (sorted(OLD), sorted(NEW))
    return "old" if records == sorted(OLD) else "new"


@pytest.mark.parametrize("replaces", [True, False], ids=["replaced", "new"])
@pytest.mark.parametrize("step", range(3))
def test_no_reader_finds_an_index_with_another_file_whenever_a_run_dies(
    tmp_path: Path, inputs: list[Path], step: int, *, replaces: bool
) -> None:
    output = tmp_path / "out.bin"
    if replaces:
        write_pair(output, OLD)
    options = {"seed": 1, "overwrite": True}
    try:
        with pytest.MonkeyPatch.context() as patch:
            strike_renames(patch, step, die, late=True)
            recshuf.shuffle(inputs, output, **options)
    except Killed:
        read_single(output)
        recshuf.shuffle(inputs, output, **options, resume=True)
    assert read_single(output) == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out.bin", "out.idx"]


@pytest.mark.parametrize("step", range(2))
def test_an_output_whose_commit_fails_is_as_it_was(tmp_path: Path, inputs: list[Path], step: int) -> None:
    write_pair(tmp_path / "out.bin", OLD)

    def fail() -> None:
        raise PermissionError(1, "Operation not permitted")

    with pytest.MonkeyPatch.context() as patch:
        strike_renames(patch, step, fail, late=False)
        with pytest.raises(PermissionError):
            recshuf.shuffle(inputs, tmp_path / "out.bin", overwrite=True)
    assert read_single(tmp_path / "out.bin") == "old"


def test_a_killed_run_takes_over_whole_shards_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inputs: list[Path]
) -> None:
    run(inputs, tmp_path / "whole")
    spill(monkeypatch)
    run_and_die(4, inputs, tmp_path / "out")
    shards = tmp_path / ".out.recshuf/shards"
    noted = sorted(path for path in shards.iterdir() if path.suffix == ".idx")[0]
    noted.write_bytes(b"changed")
    with pytest.warns(RecshufWarning, match=r"shard-00000\.bin: has changed since it was written"):
        run(inputs, tmp_path / "out", resume=True, verify=True)
    assert read_files(tmp_path / "out") == read_files(tmp_path / "whole")
    assert len(read_files(tmp_path / "out")) == 6
    run_and_die(4, inputs, tmp_path / "more")
    os.utime(inputs[0].with_suffix(".idx"), ns=(1, 1))
    with pytest.raises(InputError, match=r"0\.idx: has changed since the unfinished run"):
        run(inputs, tmp_path / "more", resume=True)


def test_tasks_write_what_one_process_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inputs: list[Path]
) -> None:
    divide_small(monkeypatch)
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
    here, there = tmp_path / "here", tmp_path / "there"
    for name in ("out", "one.bin"):
        report = shuffle(inputs, here / name)
        assert shuffle(inputs, there / name, engine="threads").shards == report.shards
    assert read_files(there / "out") == read_files(here / "out")
    assert len(read_files(there / "out")) == 6
    options = {"split": "train=0.9,val=0.1", "shards": 4, "verify": True}
    shuffle(inputs, here / "parts", **options)
    shuffle(inputs, there / "parts", engine="threads", **options)
    found = read_files(there / "parts")
    assert found == read_files(here / "parts")
    assert len(found) == 8
    assert recshuf.verify(inputs, there / "parts")
    for name in (".out.recshuf.json", ".parts.recshuf.json", "one.bin", "one.idx"):
        assert (there / name).read_bytes() == (here / name).read_bytes()
    assert sorted(path.name for path in there.iterdir()) == [
        ".out.recshuf.json", ".parts.recshuf.json", "one.bin", "one.idx", "out", "parts"
    ]  # fmt: skip


def test_a_folder_is_compared_and_replaced_with_all_files(tmp_path: Path, inputs: list[Path]) -> None:
    output = tmp_path / "out"
    run(inputs, output, shards=3)
    manifest = json.loads((tmp_path / ".out.recshuf.json").read_text())
    companions = [(one["name"], one["bytes"]) for one in manifest["companions"]]
    assert companions == [
        (f"shard-0000{k}.idx", (output / f"shard-0000{k}.idx").stat().st_size) for k in range(3)
    ]
    assert [one["name"] for one in manifest["shards"]] == [f"shard-0000{k}.bin" for k in range(3)]
    assert recshuf.verify(inputs, output)
    run(inputs, output, shards=2, overwrite=True)
    assert sorted(path.name for path in output.iterdir()) == [
        f"shard-0000{k}{s}" for k in range(2) for s in (".bin", ".idx")
    ]
    index = output / "shard-00001.idx"
    content = index.read_bytes()
    pointers = 34 + 4 * int.from_bytes(content[18:26], "little")
    first, second = content[pointers : pointers + 8], content[pointers + 8 : pointers + 16]
    index.write_bytes(content[:pointers] + second + first + content[pointers + 16 :])
    found = recshuf.verify(inputs, output)
    assert any("shard-00001.idx: has another checksum in the manifest" in one for one in found.differences)
    index.unlink()
    with pytest.raises(OutputExistsError, match="is not empty; give overwrite"):
        run(inputs, output, shards=2)
    (output / "shard-00001.json").touch()
    with pytest.raises(OutputExistsError, match=r"shard-00001\.json', which is not from an earlier run"):
        run(inputs, output, overwrite=True)


def test_outputs_that_cannot_hold_both_files_are_refused(
    tmp_path: Path, inputs: list[Path], s3_bucket: Bucket
) -> None:
    (tmp_path / "b.idx").write_text("mine")
    (tmp_path / "link.bin").symlink_to(tmp_path / "b.bin")
    for name, option, error, said in (
        ("b.bin", "verify", OutputExistsError, r"b\.idx: exists already; give overwrite=True"),
        ("b.bin", "resume", OutputExistsError, r"b\.idx: exists already; give overwrite=True"),
        ("c.idx", "verify", UsageError, r"c\.idx: readers look for megatron by its suffix; name it .*c\.bin"),
        ("link.bin", "overwrite", UsageError, r"link\.bin: is a link, and no file is beside"),
        ("c", "verify", UsageError, r"c: readers look for megatron by its suffix; name it .*c\.bin"),
    ):
        with pytest.raises(error, match=said):
            recshuf.shuffle(inputs, tmp_path / name, **{option: True})
    with pytest.raises(
        UsageError, match=r"out/: a shard of megatron is several files \(\.bin and \.idx\), which object"
    ):
        recshuf.shuffle(inputs, f"{s3_bucket.url}/out/")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.idx", "in", "link.bin"]
    assert (tmp_path / "b.idx").read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "to"), [("in.parquet", "megatron"), ("in.jsonl", "megatron"), ("in.csv", "binary")]
)
def test_a_table_goes_into_a_bin_only_if_the_format_is_said(tmp_path: Path, name: str, to: str):
    values = [[1, 2], [3, 4]] if to == "megatron" else [1, 2]
    recshuf.shuffle(pa.table({"value": values}), tmp_path / name)
    with pytest.raises(UsageError, match=r"written with the suffix \.bin; give to='binary' or to='megatron'"):
        recshuf.shuffle(tmp_path / name, tmp_path / "out.bin")
    recshuf.shuffle(tmp_path / name, tmp_path / "out.bin", to=to)
    assert (tmp_path / "out.idx").exists() == (to == "megatron")
