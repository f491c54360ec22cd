"""A complete output that is to be resumed: that of the same command is told, and that of another is refused."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import recshuf
from recshuf.errors import AlreadyCompleteError, OutputExistsError
from recshuf.output.manifest import manifest_path
from tests.conftest import Run
from tests.support.numbered_files import FORMATS, make_inputs

COUNTS = (30, 0, 25)
GIVEN: dict[str, dict[str, Any]] = {
    "defaults": {},
    "seed": {"seed": 7},
    "shards": {"shards": 2},
    "records": {"shard_records": 10},
    "bytes": {"shard_bytes": 500},
    "sample": {"head_count": 12},
    "large sample": {"head_count": 1000},
    "compressed": {"compression": "gzip"},
    "converted": {"to": "jsonl"},
    "formats": {"format": "jsonl", "to": "jsonl"},
    "provenance": {"provenance": True},
    "quarantine": {"on_bad_record": "quarantine:bad", "to": "parquet"},
    "share": {"head_count": "20%"},
    "groups": {"group_by": "id", "group_order": "random"},
    "duplicates": {"dedup": "pad"},
    "parts": {"split": "a=0.5,b=0.5"},
    "parts by records": {"split": "a=0.7,b=0.3", "shard_records": 9},
    "parts of values": {"split": "a=0.5,b=0.5", "split_by": "id", "split_seed": 3},
    "weights": {"weights": [1, 0, "1/3"], "head_count": 70},
    "copies": {"copies": "1,0,2.5"},
}
OTHER: list[tuple[dict[str, Any], str]] = [
    ({"seed": 6}, "its seed is 5, and that of this command 6"),
    ({"shards": 4}, "its number of shards is 3, and that of this command 4"),
    ({"shard_records": 9}, "its number of shards is 3"),
    ({"head_count": 9}, "its number of records is 55, and that of this command 9"),
    ({"head_count": "10%"}, "its number of records is 55, and that of this command 6"),
    ({"group_by": "id"}, "it was written with none of .* and this command has .*group_by id"),
    (
        {"split": "a=0.5,b=0.5"},
        "it was written with none .*, and this command has .*split a=0.5,b=0.5",
    ),
    ({"copies": "1,0,2"}, "it was written with none .*, and this command has .*copies 1,0,2"),
    ({"to": "parquet"}, "its format of the shards is jsonl, and that of this command parquet"),
    ({"format": "text", "to": "text"}, "its format of the inputs is jsonl"),
    ({"compression": "gzip"}, "its compression is none, and that of this command gzip"),
    ({"provenance": True}, "it was written without provenance"),
]


FEATURES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"group_by": "id"}, {"group_by": "pad"}),
    ({"group_by": "id"}, {"group_order": "random"}),
    ({"dedup": "pad"}, {"dedup": "pad,id"}),
    ({"split": "a=0.5,b=0.5"}, {"split": "a=0.5,c=0.5"}),
    ({"split": "a=0.5,b=0.5", "split_by": "id"}, {"split": "a=0.6,b=0.4"}),
    ({"split": "a=0.5,b=0.5", "split_by": "id"}, {"split_by": "pad"}),
    ({"split": "a=0.5,b=0.5", "split_by": "id"}, {"split_seed": 1}),
    ({"weights": "1,0,2", "head_count": 9}, {"weights": "1,0,3"}),
    ({"copies": "1,0,2"}, {"copies": "2,0,1"}),
]


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Inputs, whose output is `out`."""
    monkeypatch.chdir(tmp_path)
    inputs = make_inputs(tmp_path / "in", "jsonl", COUNTS)
    recshuf.shuffle(inputs, "out/", seed=5)
    return inputs


def read_shards(output: Any) -> list[bytes]:
    return [path.read_bytes() for path in sorted(manifest_path(Path(output)).parent.rglob("shard-*"))]


def resume(inputs: Any, output: Any = "out/", **options: Any) -> None:
    """Resume, and make sure that the output stays."""
    before = read_shards(output)
    try:
        recshuf.shuffle(inputs, output, resume=True, **options)
    finally:
        assert read_shards(output) == before != []


FITTING = [
    *(("jsonl", case) for case in GIVEN),
    *zip(FORMATS, ("shards", "seed", "sample", "compressed", "records"), strict=True),
    ("hdf5", "compressed"),
    ("csv", "converted"),
]


@pytest.mark.parametrize(("name", "case"), FITTING)
def test_the_same_command_is_told_that_its_output_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, case: str
):
    options = GIVEN[case]
    if name in ("parquet", "hdf5") and case == "compressed":
        options = {"compression": "zstd" if name == "parquet" else "gzip"}
    monkeypatch.chdir(tmp_path)
    inputs = make_inputs(tmp_path / "in", name, COUNTS if name != "hdf5" else (30, 25))
    recshuf.shuffle(inputs, "out/", **options)
    with pytest.raises(AlreadyCompleteError, match="nothing to resume"):
        resume(inputs, **options)


def test_other_options_are_refused_by_name(written: list[Path]):
    for options, words in OTHER:
        with pytest.raises(
            OutputExistsError, match=f"holds the output of another command: {words}"
        ) as raised:
            resume(written, **options)
        assert not isinstance(raised.value, AlreadyCompleteError)


def test_the_same_feature_with_other_options_is_refused(written: list[Path]):
    for was, other in FEATURES:
        recshuf.shuffle(written, "made/", seed=5, overwrite=True, **was)
        with pytest.raises(OutputExistsError, match="it was written with ") as raised:
            resume(written, "made/", **was | other)
        assert not isinstance(raised.value, AlreadyCompleteError)


def test_other_inputs_are_refused_by_name(written: list[Path], tmp_path: Path):
    others = make_inputs(tmp_path / "other", "jsonl", COUNTS)
    for inputs, words in (
        (written[:2], "it has 3 inputs, and this command 2"),
        (written[::-1], "it has the input .*input0.jsonl in place of .*input2.jsonl"),
        (others, "it has the input .*in/input0.jsonl in place of .*other/input0.jsonl"),
    ):
        with pytest.raises(OutputExistsError, match=f"another command: {words}; give overwrite=True"):
            resume(inputs)
    size = written[2].stat().st_size
    written[2].write_bytes(written[2].read_bytes() + b"{}\n")
    with pytest.raises(OutputExistsError, match=f"had {size:,} bytes, and .* has {size + 3:,};"):
        resume(written)


def test_a_folder_that_its_manifest_does_not_fit_is_not_complete(written: list[Path]):
    with Path("out/shard-00001.jsonl").open("ab") as file:
        file.write(b"{}\n")
    with pytest.raises(OutputExistsError, match="overwrite=True") as raised:
        resume(written, seed=5)
    assert not isinstance(raised.value, AlreadyCompleteError)


def test_inputs_may_be_named_from_other_places(written: list[Path], tmp_path: Path):
    names = [path.name for path in written]
    (tmp_path / "link").symlink_to("in")
    for folder, inputs, output in (
        (".", "in", "out/"),
        (".", "in/*", tmp_path / "out"),
        (".", "link", "out"),
        ("in", names, "../out"),
        ("in", ".", "../out/"),
        ("in", f"../../{tmp_path.name}/in", "../out/"),
    ):
        os.chdir(folder)
        with pytest.raises(AlreadyCompleteError):
            resume(inputs, output)
        os.chdir(tmp_path)
    recshuf.shuffle("in", "out/", seed=5, overwrite=True)
    shutil.move(tmp_path / "in", tmp_path / "out" / ".." / "elsewhere")
    with pytest.raises(AlreadyCompleteError):
        resume("in")  # gone


ORDERS: list[dict[str, Any]] = [
    {},
    {"epoch": 1},
    {"epoch": 2},
    {"epoch": 1, "reshuffle": "piles"},
    {"epoch": 1, "mix": 2},
]


def test_a_gather_of_another_epoch_is_refused(written: list[Path], tmp_path: Path):
    recshuf.scatter(written, tmp_path / "store", seed=5, piles=4)
    for was in ORDERS:
        recshuf.gather("store", "made/", overwrite=True, **was)
        for now in ORDERS:
            with pytest.raises(OutputExistsError) as raised:
                recshuf.gather("store", "made/", resume=True, **now)
            assert isinstance(raised.value, AlreadyCompleteError) == (was == now), (was, now)
    with pytest.raises(
        OutputExistsError, match="its mix is 2, and that of this command 1; give overwrite=True"
    ):
        recshuf.gather("store", "made/", resume=True, epoch=1)
    with pytest.raises(OutputExistsError, match="its epoch is 1, and that of this command 0"):
        recshuf.shuffle(written, "made/", resume=True)


def test_the_command_says_how_to_go_on(written: list[Path], call: Run):
    done = call(*written, "-o", "out/", "--resume", "--seed", 6)
    assert done.returncode == 1
    assert b"give --overwrite in place of --resume, or another output" in done.stderr
    assert call(*written, "-o", "out/", "--resume", "--seed", 5).returncode == 0
    assert call(*written, "-o", "out/", "--overwrite", "--seed", 6).returncode == 0
