"""A run that died is continued from its finished parts; what does not fit is refused by name, and damage is made good."""

import json
import os
import shutil
from itertools import count, product, repeat
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.audit.reports.text import summary
from recshuf.errors import DiskFullError, InputError, OutputError, UsageError
from recshuf.formats import list_options
from recshuf.job.options import OPTIONS
from recshuf.output.manifest import find_checksum, manifest_path
from recshuf.system.paths import free_bytes
from recshuf.system.units import format_size
from tests.support.numbered_files import FORMATS, make_inputs, make_lines
from tests.support.processes.killed_runs import (
    Killed,
    kill_after,
    read_journal,
    run,
    run_and_die,
    write_journal,
)
from tests.support.small_runs import Listener, put_in_place, read_files, spill

COUNTS = (60, 40, 0, 50)


@pytest.fixture(autouse=True)
def spilled(monkeypatch: pytest.MonkeyPatch) -> None:
    spill(monkeypatch)


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    return make_inputs(tmp_path / "in", "text", COUNTS)


def find_finished(folder: Path) -> dict[str, int]:
    """Return name and inode of each finished shard of `out`; files that are made again have other ones."""
    names = [entry["name"] for entry in read_journal(folder / "out") if "shard" in entry]
    return {name: (folder / ".out.recshuf" / "shards" / name).stat().st_ino for name in names}


class Reads(Listener):
    """Counts the records that are scattered."""

    def __init__(self) -> None:
        super().__init__()
        self.records = 0

    def advance(self, records: int, byte_count: int) -> None:
        if self.passes[-1] == "scatter":
            self.records += records


# From the finished parts


@pytest.mark.parametrize("is_beside", [True, False])
def test_what_a_dead_run_has_written_needs_no_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_beside: bool
):
    inputs, needed = make_inputs(tmp_path / "in", "text", (6000, 4000, 0, 5000)), 2_000_000
    spill(monkeypatch, spilled_bytes=needed // 2, peak_disk_bytes=needed)
    free = [needed]
    put_in_place(monkeypatch, free_bytes, lambda _: free[0])
    (tmp_path / "temp").mkdir()
    given: dict[str, Any] = {} if is_beside else {"temp_dir": tmp_path / "temp"}
    run_and_die(4, inputs, tmp_path / "out", **given)
    held = [one for name in (".out.recshuf", "temp") for one in (tmp_path / name).rglob("*") if one.is_file()]
    free[0] = needed - sum(512 * path.stat().st_blocks for path in held) - 1
    assert 0 < free[0] < needed * 3 // 4
    with pytest.raises(DiskFullError, match=f"about {format_size(free[0] + 1)} needed"):
        run(inputs, tmp_path / "out", resume=True, **given)
    free[0] += 1
    run(inputs, tmp_path / "out", resume=True, **given)


REPEATS = b"".join(line + b"\n" for line in make_lines(0, 60))
LACKING = b'{"id": 7}\n' * 5
BAD = b'{"id": 1\n\xff\n'
TYPES = {"id": "int64", "pad": "string"}
CONTINUED: dict[str, tuple[str, bytes, dict[str, Any]]] = {
    "lines": ("text", b"", {}),
    "copies": ("text", b"", {"copies": [2, 1, 1, 0.5]}),
    "copies, converted": ("jsonl", b"", {"copies": [2, 3, 1, 0.5], "to": "parquet"}),
    "groups": ("jsonl", LACKING, {"group_by": "pad"}),
    "repeats": ("jsonl", REPEATS, {"dedup": "record"}),
    "repeats, converted": ("jsonl", REPEATS, {"dedup": "record", "to": "parquet"}),
    "repeats of values": ("jsonl", REPEATS + LACKING, {"dedup": "pad"}),
    "parts": ("text", b"", {"split": "train=0.7,val=0.2,test=0.1", "shards": 5}),
    "parts of values": ("jsonl", LACKING, {"split": "train=0.7,test=0.3", "split_by": "pad", "shards": 3}),
    "bad lines": ("jsonl", BAD, {"to": "parquet"}),
    "bad lines, types given": ("jsonl", BAD, {"to": "parquet", "schema": TYPES}),
}
"""Format, what the second input holds besides, and options; bad lines are set aside.

Inputs that are converted are all read again, for their types and bad lines, but each record is written once."""


@pytest.mark.parametrize(
    ("kind", "parts"), [*product(CONTINUED, (1, 4)), *(("lines", parts) for parts in (2, 3, 5))]
)
def test_finished_parts_are_not_made_again_and_nothing_is_counted_anew(tmp_path: Path, kind: str, parts: int):
    """Three pile sets (an input is empty) and three shards, finished one after the other."""
    name, more, options = CONTINUED[kind]
    inputs = make_inputs(tmp_path / "in", name, COUNTS)
    with inputs[1].open("ab") as file:
        file.write(more)
    given = [dict(options) for _ in range(2)]
    if more is BAD:
        for number, one in enumerate(given):
            one["on_bad_record"] = f"quarantine:{tmp_path}/bad{number}"
    whole = run(inputs, tmp_path / "whole", **given[0])
    before, now = ("lz4", "none") if parts % 2 else ("none", "zstd")
    run_and_die(parts, inputs, tmp_path / "out", spill_compression=before, **given[1])
    assert not (tmp_path / "bad1").exists()
    if more is BAD:  # as it may be in place when a run dies in its commit
        (tmp_path / "bad1").write_text("of the run that died")
    finished, heard = find_finished(tmp_path), Reads()
    assert len(finished) == max(0, parts - 3)
    again = {"resume": True, "memory": "300MB", "workers": 3, "spill_compression": now, "progress": heard}
    report = run(inputs, tmp_path / "out", **given[1] | again)
    assert read_files(tmp_path / "out") == read_files(tmp_path / "whole")
    assert (report.features, report.inputs, report.shards) == (whole.features, whole.inputs, whole.shards)
    counts = [one.records for one in whole.inputs if one.records]
    assert heard.records == sum(counts if "to" in options else counts[parts:])
    assert "count" not in heard.passes
    made = {str(path.relative_to(tmp_path / "out")): path for path in (tmp_path / "out").rglob("shard-*")}
    assert finished.items() <= {name: path.stat().st_ino for name, path in made.items()}.items()
    manifests = [json.loads(manifest_path(tmp_path / name).read_text()) for name in ("out", "whole")]
    assert [one["inputs"] for one in manifests] == [manifests[1]["inputs"]] * 2
    assert [one["shards"] for one in manifests] == [manifests[1]["shards"]] * 2
    if more is BAD:
        assert (tmp_path / "bad1").read_bytes() == (tmp_path / "bad0").read_bytes()
        assert report.quarantined == 2
    assert not list(tmp_path.glob(".*.recshuf"))


def test_records_are_compressed_from_when_threads_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    inputs = make_inputs(tmp_path / "in", "text", [20_000] * 4)
    monkeypatch.setattr("recshuf.piles.store._WATCHED_BYTES", 1)
    clock = [repeat(0), count(), repeat(0)]
    monkeypatch.setattr("recshuf.piles.store.read_idle_clock", lambda: next(clock[0]))
    whole = run(inputs, tmp_path / "whole")
    clock.pop(0)
    never = run(inputs, tmp_path / "never", spill_compression="none")
    run_and_die(2, inputs, tmp_path / "out")
    clock.pop(0)
    heard = Reads()
    report = run(inputs, tmp_path / "out", resume=True, progress=heard)
    assert heard.records == 40_000
    assert read_files(tmp_path / "out") == read_files(tmp_path / "whole") == read_files(tmp_path / "never")
    assert [one.plan.spill_compression for one in (whole, never, report)] == ["none", "none", "lz4"]
    assert report.spilled_bytes < 0.4 * whole.spilled_bytes  # half of the records, and compressed
    assert [" spilled by lz4, " in summary(one, "out") for one in (whole, report)] == [False, True]


def test_the_seed_that_was_drawn_is_kept(tmp_path: Path, inputs: list[Path]):
    run_and_die(4, inputs, tmp_path / "out", seed=None)
    (name,) = find_finished(tmp_path)
    first = (tmp_path / ".out.recshuf" / "shards" / name).read_bytes()
    report = run(inputs, tmp_path / "out", seed=None, resume=True)
    assert (tmp_path / "out" / name).read_bytes() == first
    assert run(inputs, tmp_path / "whole", seed=report.seed).seed == report.seed
    assert read_files(tmp_path / "out") == read_files(tmp_path / "whole")
    assert run(inputs, tmp_path / "new", seed=None).seed != report.seed


def test_a_run_that_could_not_put_its_manifest_in_place_says_how_to_go_on(tmp_path: Path, inputs: list[Path]):
    """The place is taken by a folder of others."""
    run(inputs, tmp_path / "whole")
    run(inputs, tmp_path / "out", seed=1)

    def take_place() -> None:
        if not manifest_path(tmp_path / "out").is_dir():
            manifest_path(tmp_path / "out").unlink()
            (manifest_path(tmp_path / "out") / "x").mkdir(parents=True)

    with pytest.raises(OutputError) as caught:
        run(inputs, tmp_path / "out", overwrite=True, progress=Listener(take_place))
    assert "continue with the same command and resume=True" in caught.value.__notes__[0]
    assert read_files(tmp_path / "out") == read_files(tmp_path / "whole")
    shutil.rmtree(manifest_path(tmp_path / "out"))
    run(inputs, tmp_path / "out", overwrite=True, resume=True)
    assert read_files(tmp_path / "out") == read_files(tmp_path / "whole")
    manifests = [manifest_path(tmp_path / name).read_bytes() for name in ("out", "whole")]
    assert manifests[0] == manifests[1]


# What is refused


SCHEMAS = [pa.schema({"id": kind, "pad": pa.string()}) for kind in (pa.int64(), pa.int32())]
CHANGED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "format": ("text", {}, {"format": "jsonl", "to": "text"}),
    "header": ("text", {}, {"header": 1}),
    "delimiter": ("csv", {}, {"delimiter": ";"}),
    "quote": ("csv", {}, {"quote": "none"}),
    "separator": ("text", {}, {"separator": "x"}),
    "zero_terminated": ("text", {}, {"zero_terminated": True}),
    "record_lines": ("text", {"record_lines": 1}, {"record_lines": 2}),
    "record_start": ("text", {"record_start": "{"}, {"record_start": '{"'}),
    "rename_keys": ("tar", {}, {"rename_keys": True}),
    "datasets": ("hdf5", {}, {"datasets": "id"}),
    "keep_others": ("hdf5", {}, {"keep_others": True}),
    "columns": ("parquet", {"columns": ("id",)}, {"columns": ("tag",)}),
    "widen": ("parquet", {}, {"widen": True}),
    "first_metadata": ("parquet", {}, {"first_metadata": True}),
    "skip_lines": ("csv", {}, {"skip_lines": 1}),
    "record_bytes": ("text", {"format": "binary", "record_bytes": 1}, {"record_bytes": 2}),
    "header_bytes": ("text", {"format": "binary", "record_bytes": 1}, {"header_bytes": 1}),
    "dtype": ("text", {"format": "binary", "dtype": "u1"}, {"dtype": "i1"}),
    "record_shape": ("text", {"format": "binary", "dtype": "u1", "record_shape": 1}, {"record_shape": 2}),
    "token_type": ("text", {"format": "binary", "dtype": "u1[1]", "to": "megatron"}, {"token_type": "uint16"}),
    "comment": ("csv", {}, {"comment": "#"}),
    "schema": ("jsonl", {"to": "parquet", "schema": SCHEMAS[0]}, {"schema": SCHEMAS[1]}),
    "to": ("text", {}, {"to": "jsonl"}),
    "compression": ("text", {"compression": "zstd"}, {"compression": "gzip"}),
    "compression level": ("text", {"compression": "zstd:3"}, {"compression": "zstd:9"}),
    "shards": ("text", {}, {"shards": 4}),
    "shard_records": ("text", {"shards": None, "shard_records": 50}, {"shard_records": 60}),
    "shard_bytes": ("text", {"shards": None, "shard_bytes": 900}, {"shard_bytes": 800}),
    "seed": ("text", {}, {"seed": 6}),
    "head_count": ("text", {"head_count": 90}, {"head_count": 91}),
    "dedup": ("jsonl", {"dedup": "id"}, {"dedup": "record"}),
    "weights": ("text", {"weights": [1, 1, 0, 1], "head_count": 400}, {"weights": [2, 1, 0, 1]}),
    "copies": ("text", {"copies": [2] * 4}, {"copies": [2, 2, 2, 1]}),
    "split": ("csv", {"split": "a=0.5,b=0.5"}, {"split": {"a": 0.25, "b": "3/4"}}),
    "split_by": ("jsonl", {"split": "a=0.5,b=0.5", "split_by": "id"}, {"split_by": "pad"}),
    "split_seed": ("jsonl", {"split": "a=0.5,b=0.5", "split_by": "id"}, {"split_seed": 2**127}),
    "group_by": ("csv", {"group_by": "id"}, {"group_by": ("fields", "id")}),
    "group_order": ("csv", {"group_by": "id"}, {"group_order": "random"}),
    "nan_as_null": ("parquet", {"to": "jsonl"}, {"nan_as_null": True}),
    "page_checksums": ("jsonl", {"to": "parquet"}, {"page_checksums": True}),
    "on_bad_record": ("jsonl", {"to": "parquet"}, {"on_bad_record": "quarantine:bad"}),
    "provenance": ("jsonl", {"to": "parquet"}, {"provenance": True}),
    "engine": ("text", {}, {"engine": "ray"}),
}  # fmt: skip
FREE = {
    "max_record_bytes", "memory", "workers", "endpoint_url", "storage_options", "spill_compression", "ray_address",
    "no_space_check", "piles", "temp_dir", "overwrite", "verify", "resume",
}  # fmt: skip
"""Options that do not change the output, or are compared as another one."""


def test_every_option_is_compared_or_free():
    assert {*CHANGED} - {"compression level"} == {*OPTIONS, *list_options()} - FREE


@pytest.mark.parametrize("kind", [*FORMATS, "tar"])
def test_another_value_of_an_option_is_refused_by_name_and_nothing_is_touched(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    inputs = make_inputs(tmp_path / "in", kind, COUNTS if kind != "hdf5" else (60, 40, 20, 50))
    for name, (given, before, now) in CHANGED.items():
        if given != kind:
            continue
        output = tmp_path / name
        run_and_die(2, inputs, output, **before)
        left = read_files(tmp_path)
        named = rf"^(resume=True: )?(the )?{name}.* was .* in the unfinished run and is"
        with pytest.raises(UsageError, match=named) as raised:
            run(inputs, output, resume=True, **before | now)
        assert "\n" not in str(raised.value).partition("\nfinished parts")[0]
        assert read_files(tmp_path) == left


def test_other_versions_are_named(tmp_path: Path):
    inputs = make_inputs(tmp_path / "in", "parquet", COUNTS)
    run_and_die(2, inputs, tmp_path / "out")
    header, *entries = read_journal(tmp_path / "out")
    for what, version in (("order", 99), ("recshuf", "0.0.1"), ("pyarrow", "0.0.1")):
        other = json.loads(json.dumps(header))
        (other["job"]["libraries"] if what == "pyarrow" else other["job"])[what] = version
        write_journal(tmp_path / "out", [other, *entries])
        with pytest.raises(UsageError, match=rf"the version of (the )?{what} was .* and is"):
            run(inputs, tmp_path / "out", resume=True)


def test_of_other_inputs_the_first_is_named(tmp_path: Path):
    inputs = make_inputs(tmp_path / "in", "text", (1,) * 60)
    run_and_die(2, inputs, tmp_path / "out")
    for others, number, was, is_now in (
        (inputs[:-1], 60, inputs[59], "not given"),
        (inputs[::-1], 1, inputs[0], inputs[59]),
        (inputs[:7] + inputs[8:], 8, inputs[7], inputs[8]),
        ([*inputs, inputs[0]], 61, "not given", inputs[0]),
    ):
        said = f"the input {number} was {was} in the unfinished run and is {is_now}; give it as before"
        with pytest.raises(UsageError, match=said):
            run(others, tmp_path / "out", resume=True)


def test_changed_inputs_are_named_and_may_be_restored(tmp_path: Path, inputs: list[Path]):
    run(inputs, tmp_path / "whole")
    run_and_die(2, inputs, tmp_path / "out")
    for index, more, later in ((0, b'{"id": 1}\n', 0), (3, b"", 1)):
        found, content = inputs[index].stat(), inputs[index].read_bytes()
        inputs[index].write_bytes(content + more)
        os.utime(inputs[index], ns=(found.st_atime_ns, found.st_mtime_ns + later))
        with pytest.raises(InputError, match=f"input{index}.txt: has changed since the unfinished run"):
            run(inputs, tmp_path / "out", resume=True)
        inputs[index].write_bytes(content)
        os.utime(inputs[index], ns=(found.st_atime_ns, found.st_mtime_ns))
    run(inputs, tmp_path / "out", resume=True)
    assert read_files(tmp_path / "out") == read_files(tmp_path / "whole")


def test_another_epoch_is_named(tmp_path: Path, inputs: list[Path]):
    store, output = tmp_path / "store", f"{tmp_path}/out/"
    recshuf.scatter(inputs, store, seed=5, piles=4)
    given = {"epoch": 1, "reshuffle": "piles", "mix": 2, "shards": 3}
    recshuf.gather(store, f"{tmp_path}/whole/", **given)
    with pytest.MonkeyPatch.context() as patch:
        kill_after(patch, 2)
        with pytest.raises(Killed):
            recshuf.gather(store, output, **given)
    for name, other in (("epoch", 0), ("epoch", 2), ("mix", 1), ("reshuffle", "rotate")):
        with pytest.raises(UsageError, match=f"the (epoch|{name}) was .* in the unfinished run and is"):
            recshuf.gather(store, output, resume=True, **given | {name: other})
    recshuf.gather(store, output, resume=True, **given)
    assert read_files(tmp_path / "out") == read_files(tmp_path / "whole")


# Damage


@pytest.mark.parametrize(
    ("what", "damage"),
    [
        *(("piles", damage) for damage in ("flip", "cut", "delete")),
        *((what, damage) for what in ("shards", "shards/a") for damage in ("flip", "delete")),
    ],
)
def test_damaged_parts_are_made_again(tmp_path: Path, inputs: list[Path], what: str, damage: str):
    options = {"split": "a=0.7,b=0.3"} if what == "shards/a" else {}
    run(inputs, tmp_path / "whole", **options)
    run_and_die(5, inputs, tmp_path / "out", **options)
    path = sorted((tmp_path / ".out.recshuf" / what).iterdir())[0]
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[content.index(b'"id"')] ^= 1
    path.unlink()
    if damage != "delete":
        path.write_bytes(content if damage == "flip" else content[: len(content) // 2])
    heard = Listener()
    run(inputs, tmp_path / "out", resume=True, progress=heard, **options)
    assert len(heard.warnings) == 1
    assert path.name in heard.warnings[0]
    assert heard.warnings[0].endswith(("; its inputs are read again", "; it is written again"))
    assert read_files(tmp_path / "out") == read_files(tmp_path / "whole")


@pytest.mark.parametrize("other", ["shards", "types", "repeats"])
def test_shards_of_other_types_places_or_repeats_are_not_taken_over(tmp_path: Path, other: str):
    """A journal whose header was lost and written anew would be of another run; its shards are compared one by one."""
    inputs = make_inputs(tmp_path / "in", "jsonl", COUNTS)
    run(inputs, tmp_path / "whole", to="parquet")
    run_and_die(5, inputs, tmp_path / "out", to="parquet")
    entries = read_journal(tmp_path / "out")
    shard = next(entry for entry in entries if "shard" in entry)
    name = tmp_path / ".out.recshuf" / "shards" / shard["name"]
    if other == "types":  # as they were before a later record was seen
        pq.write_table(pq.read_table(name).drop_columns("pad"), name)
        shard["xxh3"] = find_checksum(name)
        shard["schema"] = "0" * 16
    elif other == "repeats":  # as another memory limit may have left others in piles
        shard["basis"] = "0:0"
    else:
        shard["digest"][0] += 1
    write_journal(tmp_path / "out", entries)
    heard = Listener()
    run(inputs, tmp_path / "out", to="parquet", resume=True, progress=heard)
    assert len(heard.warnings) == (other != "types")
    assert read_files(tmp_path / "out") == read_files(tmp_path / "whole")
