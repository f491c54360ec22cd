"""A complete output that is to be resumed: that of the same command is told, and that of another is refused."""

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import recshuf
from recshuf.errors import AlreadyCompleteError, DiskFullError, OutputError, OutputExistsError
from recshuf.output.manifest import manifest_path
from recshuf.piles.set_folder import SetFolder
from recshuf.system import files as page_cache
from recshuf.system.memory import available_bytes
from recshuf.system.paths import free_bytes
from recshuf.system.units import format_size
from tests.conftest import Run
from tests.support.numbered_files import make_inputs, order_of, read_ids
from tests.support.small_runs import list_shards, put_in_place, read_files

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
GROUPS, HALVES = {"group_by": "id"}, {"split": "a=0.5,b=0.5"}
OTHER: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"seed": 6}, "its seed is 5, and that of this command 6"),
    ({}, {"shards": 4}, "its number of shards is 3, and that of this command 4"),
    ({}, {"shard_records": 9}, "its number of shards is 3"),
    ({}, {"head_count": 9}, "its number of records is 55, and that of this command 9"),
    ({}, {"head_count": "10%"}, "its number of records is 55, and that of this command 6"),
    ({}, GROUPS, "it was written with none of .* and this command has .*group_by id"),
    ({}, HALVES, "it was written with none .*, and this command has .*split a=0.5,b=0.5"),
    ({}, {"copies": "1,0,2"}, "it was written with none .*, and this command has .*copies 1,0,2"),
    ({}, {"to": "parquet"}, "its format of the shards is jsonl, and that of this command parquet"),
    ({}, {"format": "text", "to": "text"}, "its format of the inputs is jsonl"),
    ({}, {"compression": "gzip"}, "its compression is none, and that of this command gzip"),
    ({}, {"provenance": True}, "it was written without provenance"),
    (GROUPS, {"group_by": "pad"}, "it was written with .*group_by id"),
    (GROUPS, {"group_order": "random"}, "it was written with "),
    ({"dedup": "pad"}, {"dedup": "pad,id"}, "it was written with .*dedup pad"),
    (HALVES, {"split": "a=0.5,c=0.5"}, "it was written with "),
    (HALVES | {"split_by": "id"}, {"split": "a=0.6,b=0.4"}, "it was written with "),
    (HALVES | {"split_by": "id"}, {"split_by": "pad"}, "it was written with "),
    (HALVES | {"split_by": "id"}, {"split_seed": 1}, "it was written with "),
    ({"weights": "1,0,2", "head_count": 9}, {"weights": "1,0,3"}, "it was written with "),
    ({"copies": "1,0,2"}, {"copies": "2,0,1"}, "it was written with .*copies 1,0,2"),
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


FITTING: dict[str, dict[str, dict[str, Any]]] = {
    "jsonl": GIVEN,
    "text": {"shards": GIVEN["shards"]},
    "csv": {"sample": GIVEN["sample"], "converted": GIVEN["converted"]},
    "parquet": {"compressed": {"compression": "zstd"}},
    "hdf5": {"records": GIVEN["records"], "compressed": GIVEN["compressed"]},
}


@pytest.mark.parametrize("name", FITTING)
def test_the_same_command_is_told_that_its_output_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    monkeypatch.chdir(tmp_path)
    inputs = make_inputs(tmp_path / "in", name, COUNTS if name != "hdf5" else (30, 25))
    for number, options in enumerate(FITTING[name].values()):
        recshuf.shuffle(inputs, f"{number}/", **options)
        with pytest.raises(AlreadyCompleteError, match="nothing to resume"):
            resume(inputs, f"{number}/", **options)


def test_other_options_are_refused_by_name(written: list[Path]):
    for was, now, words in OTHER:
        recshuf.shuffle(written, "out/", seed=5, overwrite=True, **was)
        with pytest.raises(
            OutputExistsError, match=f"holds the output of another command: {words}"
        ) as raised:
            resume(written, **was | now)
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


# Outputs in place of inputs, room on disk and in memory


@pytest.mark.parametrize("name", ["text", "hdf5"])
def test_an_output_takes_the_place_of_its_input(tmp_path: Path, name: str):
    """As one file, and as shards that a run has written."""
    (path,) = make_inputs(tmp_path / "in", name, [800])
    with pytest.raises(OutputError, match="overwrite=True"):
        recshuf.shuffle(path, path, seed=1)
    assert read_ids(path) == list(range(800))
    recshuf.shuffle(path, path, seed=1, overwrite=True)
    assert read_ids(path) == order_of([800], 1)
    assert os.listdir(tmp_path / "in") == [path.name]
    recshuf.shuffle(path, f"{tmp_path}/out/", seed=1, shards=2)
    first = [number for shard in list_shards(tmp_path / "out") for number in read_ids(shard)]
    recshuf.shuffle(tmp_path / "out", f"{tmp_path}/out/", seed=2, shards=2, overwrite=True)
    second = [number for shard in list_shards(tmp_path / "out") for number in read_ids(shard)]
    assert second == [first[place] for place in order_of([400, 400], 2)]
    assert len(os.listdir(tmp_path / "out")) == 2


def test_an_output_inside_a_folder_of_inputs_is_not_read_back(tmp_path: Path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("1\n2\n3\n")
    for _ in range(2):
        report = recshuf.shuffle(tmp_path / "in", tmp_path / "in" / "out.txt", overwrite=True)
        assert report.records == 3


# Room on disk: numbers of the system are replaced, as nobody can have a disk of a few bytes.


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """Return the number of bytes that are free on every disk; None if nobody knows."""
    free: list[int | None] = [None]
    put_in_place(monkeypatch, free_bytes, lambda _: free[0])
    return free


@pytest.mark.parametrize("name", ["jsonl", "parquet"])
def test_an_output_that_does_not_fit_is_refused(tmp_path: Path, name: str, free: list[int | None]):
    inputs = make_inputs(tmp_path / "in", name, [500])
    needed = inputs[0].stat().st_size
    free[0] = needed - 1
    message = rf"{re.escape(str(tmp_path))}\S*: .*{format_size(needed)}.*{format_size(needed - 1)} are free"
    with pytest.raises(DiskFullError, match=message):
        recshuf.shuffle(inputs, f"{tmp_path}/out/")
    assert os.listdir(tmp_path) == ["in"]
    recshuf.shuffle(inputs, f"{tmp_path}/out/", no_space_check=True)
    free[0] = needed
    recshuf.shuffle(inputs, f"{tmp_path}/out/", overwrite=True)
    free[0] = 1
    recshuf.shuffle(inputs, tmp_path / "out.csv")  # nobody knows the size


def test_a_gather_needs_room_for_its_output_only(tmp_path: Path, free: list[int | None]):
    (tmp_path / "in.txt").write_bytes((b"x" * 999 + b"\n") * 20_000)
    recshuf.scatter(tmp_path / "in.txt", tmp_path / "store", memory="16MB")
    free[0] = 20_000_000
    recshuf.gather(tmp_path / "store", tmp_path / "out.txt", memory="16MB")
    free[0] -= 1
    with pytest.raises(DiskFullError, match=r": the output: about 20 MB needed, and .* are free"):
        recshuf.gather(tmp_path / "store", tmp_path / "more.txt", memory="16MB")


@pytest.mark.parametrize("piles", [None, 8000])
def test_the_disk_that_many_piles_take_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piles: int | None
):
    """A file has blocks of some kilobytes."""
    taken: list[int] = []
    release = SetFolder.release

    def measure(folder: SetFolder, descriptor: int) -> None:
        taken.append(512 * os.fstat(descriptor).st_blocks)
        release(folder, descriptor)

    monkeypatch.setattr(SetFolder, "release", measure)
    (tmp_path / "in.txt").write_bytes((b"x" * 99 + b"\n") * 300_000)
    options: dict[str, Any] = {"memory": "16MB", "workers": 1, "piles": piles}
    plan = recshuf.plan(tmp_path / "in.txt", tmp_path / "out.txt", **options)
    recshuf.shuffle(tmp_path / "in.txt", tmp_path / "out.txt", **options)
    assert 30_000_000 < max(taken) <= plan.spilled_bytes < (35_000_000 if piles is None else 4 * max(taken))


def test_spilled_records_count_where_they_go(tmp_path: Path, free: list[int | None]):
    """80 MB at a limit of 64 MB: on one file system both count, on two each for itself."""
    (tmp_path / "in.txt").write_bytes((b"x" * 99 + b"\n") * 800_000)
    plan = recshuf.plan(tmp_path / "in.txt", tmp_path / "out.txt", memory="64MB")
    assert plan.spilled_bytes > 0
    assert plan.peak_disk_bytes == plan.spilled_bytes + 80_000_000
    free[0] = plan.peak_disk_bytes - 1
    with pytest.raises(DiskFullError, match="spilled records and the output: about"):
        recshuf.shuffle(tmp_path / "in.txt", tmp_path / "out.txt", memory="64MB")
    free[0] = plan.spilled_bytes - 1
    with pytest.raises(DiskFullError, match="spilled records: about"):
        recshuf.shuffle(tmp_path / "in.txt", tmp_path / "out.txt.zst", memory="64MB")
    assert os.listdir(tmp_path) == ["in.txt"]


# The page cache


@pytest.mark.parametrize(
    ("name", "shards", "available"),
    [("text", 1, 1000), ("parquet", 3, 1000), ("hdf5", 1, 1000), ("jsonl", 3, 10**9)],
)
def test_files_are_given_up_in_memory_if_it_cannot_hold_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, shards: int, available: int
):
    monkeypatch.setattr(page_cache, "_BEHIND_BYTES", 1000)
    monkeypatch.setattr(page_cache, "_KEPT_BYTES", 3000)
    put_in_place(monkeypatch, available_bytes, lambda: available)
    forgotten = set()
    monkeypatch.setattr(
        os, "posix_fadvise", lambda file, *_: forgotten.add(Path(f"/proc/self/fd/{file}").readlink())
    )
    inputs = make_inputs(tmp_path / "in", name, [3000, 40])
    recshuf.shuffle(inputs, tmp_path / "out/", seed=0, shards=shards, piles=4, memory="64MB")
    assert forgotten.issuperset(inputs) == (available == 1000)
    assert len(forgotten - set(inputs)) == (shards if available == 1000 else 0)
    monkeypatch.undo()
    recshuf.shuffle(inputs, tmp_path / "expected/", seed=0, shards=shards)
    assert read_files(tmp_path / "out") == read_files(tmp_path / "expected")


# What is told
