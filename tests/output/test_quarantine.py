"""Bad records, set aside: the file of them, and what a run does that makes one."""

from __future__ import annotations

import base64
import io
import json
import os
import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import DiskFullError, InputError, OutputError, PileError, UsageError
from recshuf.interfaces import BadRecords
from recshuf.output import quarantine
from recshuf.output import quarantine as bad_lines
from recshuf.output.manifest import manifest_path
from recshuf.output.quarantine import Quarantine, check_path
from recshuf.run import resolve
from tests.support.formats.bad_json import BAD
from tests.support.formats.json_oracle import is_sound
from tests.support.processes.killed_runs import run_and_die

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from recshuf.job.plan import Plan
    from tests.conftest import Run

NAMES = ["in/a.jsonl", 'b"\n\udcff.txt']
TEXTS = [
    b"",
    b"plain",
    "é\u2028\U0001f600".encode(),
    b"\xff\xfe",
    b'"\\\x00\t\r',
    b"x" * 3000,
    b"\xed\xa0\x80",
]


@pytest.fixture
def open_quarantine() -> Iterator[Callable[..., Quarantine]]:
    """Return a function that opens one, which is closed at the end."""
    with ExitStack() as cleanup:

        def open_one(folder: Path, **options: Any) -> Quarantine:
            made = Quarantine(folder / "bad.jsonl", folder, NAMES, "run", **options)
            cleanup.callback(made.close)
            return made

        yield open_one


def put(made: Quarantine, input_index: int, first_row: int, records: list[bytes], index: list[int]) -> None:
    batch = pa.record_batch([pa.array([*records, b"?"], pa.large_binary())], ["record"]).slice(
        0, len(records)
    )
    reasons = [f"reason {first_row + at}" for at in index]
    made.put(input_index, first_row, BadRecords(np.array(index, np.int64), reasons), batch)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


def bytes_of(line: dict[str, Any]) -> bytes:
    return base64.b64decode(line["record_base64"]) if "record_base64" in line else line["record"].encode()


@pytest.mark.parametrize(("workers", "piece_bytes"), [(1, 100), (8, 1 << 22)])
def test_the_file_is_in_the_order_of_the_inputs_whoever_wrote_first(
    tmp_path: Path,
    open_quarantine: Callable[..., Quarantine],
    monkeypatch: pytest.MonkeyPatch,
    workers: int,
    piece_bytes: int,
):
    # A piece is planned with memory: no option leads to it.
    monkeypatch.setattr(bad_lines, "_PIECE_BYTES", piece_bytes)
    chooser = random.Random(workers)
    records = {index: [chooser.choice(TEXTS) + b"\r\n" for _ in range(400)] for index in (0, 1)}
    bad = {index: sorted(chooser.sample(range(400), 150)) for index in (0, 1)}
    blocks = [(index, start) for index in (0, 1) for start in range(0, 400, 40)]
    chooser.shuffle(blocks)
    made = open_quarantine(tmp_path, header_lines=2, separator_bytes=2)

    def put_block(block: tuple[int, int]) -> None:
        index, start = block
        rows = [row - start for row in bad[index] if start <= row < start + 40]
        if rows:
            put(made, index, start, records[index][start : start + 40], rows)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(put_block, blocks))
    assert made.counts == [150, 150]
    made.finish()
    made.settle()
    found = read(tmp_path / "bad.jsonl")
    expected = [(index, row) for index in (0, 1) for row in bad[index]]
    assert [(one["input"], one["line"]) for one in found] == [(NAMES[i], row + 3) for i, row in expected]
    assert [one["reason"] for one in found] == [f"reason {row}" for _, row in expected]
    assert [bytes_of(one) + b"\r\n" for one in found] == [records[i][row] for i, row in expected]
    assert all(("record" in one) != ("record_base64" in one) for one in found)


def test_no_bad_record_makes_an_empty_file(tmp_path: Path, open_quarantine: Callable[..., Quarantine]):
    made = open_quarantine(tmp_path)
    made.finish()
    assert (tmp_path / "bad.jsonl").read_bytes() == b""


@pytest.mark.parametrize("previous", [None, b"before"])
def test_what_stood_there_comes_back_unless_the_run_ends_well(
    tmp_path: Path, open_quarantine: Callable[..., Quarantine], previous: bytes | None
):
    path = tmp_path / "bad.jsonl"
    if previous is not None:
        path.write_bytes(previous)
    made = open_quarantine(tmp_path)
    put(made, 0, 0, [b"x\n"], [0])
    made.finish()
    assert read(path)[0]["record"] == "x"
    made.withdraw()
    made.withdraw()
    assert (path.read_bytes() if path.exists() else None) == previous
    made.finish()
    made.settle()
    made.withdraw()
    made.close()
    made.close()
    assert read(path)[0]["record"] == "x"
    assert [one.name for one in tmp_path.iterdir()] == ["bad.jsonl"]


def test_files_with_one_name_only_are_replaced_too(
    tmp_path: Path, open_quarantine: Callable[..., Quarantine], monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object) -> None:
        raise PermissionError(1, "no links")

    monkeypatch.setattr(quarantine.os, "link", refuse)
    test_what_stood_there_comes_back_unless_the_run_ends_well(tmp_path, open_quarantine, b"before")


def test_a_damaged_part_is_found(tmp_path: Path, open_quarantine: Callable[..., Quarantine]):
    made = open_quarantine(tmp_path)
    put(made, 0, 0, [b"a\n", b"b\n"], [0, 1])
    part = made._parts.fileno()
    data = os.pread(part, 1000, 0)
    for place in range(len(data)):
        os.pwrite(part, bytes([data[place] ^ 1]), place)
        with pytest.raises(PileError, match="do not read back"):
            made.finish()
        os.pwrite(part, data, 0)
    os.ftruncate(part, len(data) - 1)
    with pytest.raises(PileError, match="do not read back"):
        made.finish()
    assert not made.path.exists()


def test_what_is_set_aside_has_no_name_until_the_end(
    tmp_path: Path, open_quarantine: Callable[..., Quarantine]
):
    made = open_quarantine(tmp_path)
    put(made, 0, 0, [b"a\n"], [0])
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_named(tmp_path: Path, open_quarantine: Callable[..., Quarantine]):
    made = open_quarantine(tmp_path)
    full = os.open("/dev/full", os.O_RDWR)
    os.dup2(full, made._parts.fileno())
    os.close(full)
    with pytest.raises(DiskFullError, match=r"bad\.jsonl"):
        put(made, 0, 0, [b"a\n"], [0])


def test_a_folder_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(OutputError, match=r"bad\.jsonl"):
        Quarantine(tmp_path / "bad.jsonl", tmp_path / "none", NAMES, "run")


def test_files_that_cannot_be_meant_are_refused(tmp_path: Path):
    data, there, link = tmp_path / "in.jsonl", tmp_path / "there", tmp_path / "link"
    data.touch()
    there.touch()
    link.symlink_to(data)
    for path, overwrite, problem in (
        (tmp_path / "none" / "bad", True, "does not exist"),
        (data, True, "is one of the inputs"),
        (link, True, "is one of the inputs"),
        (tmp_path / "out", True, "lies in the output"),
        (tmp_path / "out" / "x" / ".." / "bad", True, "lies in the output"),
        (tmp_path / "out.recshuf.json", True, "is the manifest or work folder"),
        (tmp_path / ".out.recshuf", True, "is the manifest or work folder"),
        (tmp_path, True, "is not a regular file"),
        (there, False, "--overwrite"),
    ):
        if ".." in path.parts:
            (tmp_path / "out" / "x").mkdir(parents=True)
        with pytest.raises(UsageError, match=problem):
            check_path(path, [data], tmp_path / "out", overwrite=overwrite)
    check_path(there, [data], tmp_path / "out", overwrite=True)
    check_path(tmp_path / "new", [data], None, overwrite=False)


# Whole runs.


def make_lines(seed: int, count: int) -> list[bytes]:
    chooser = random.Random(seed)
    bad = [line for line in BAD if b"\n" not in line]
    return [
        chooser.choice(bad) if chooser.random() < 0.1 else b'{"a":%d,"t":"%d"}' % (seed, row)
        for row in range(count)
    ]


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"in{index}.jsonl" for index in range(3)]
    for index, path in enumerate(paths):
        path.write_bytes(b"".join(line + b"\n" for line in make_lines(index, 250)))
    return paths


def expected_rows(inputs: list[Path]) -> tuple[list[tuple[str, int, bytes]], list[dict[str, Any]]]:
    """Return the bad lines, and the records."""
    bad, good = [], []
    for path in inputs:
        for row, line in enumerate(path.read_bytes().split(b"\n")[:-1]):
            if is_sound(line) and line not in BAD:
                good.append(json.loads(line))
            else:
                bad.append((str(path), row + 1, line))
    return bad, good


def shuffle(inputs: list[Path], output: Path, bad: Path, **options: Any) -> recshuf.ShuffleReport:
    given = {"seed": 1, "to": "parquet", "on_bad_record": f"quarantine:{bad}"} | options
    return recshuf.shuffle(inputs, f"{output}/", **given)


def test_bad_lines_are_set_aside_and_all_others_written(tmp_path: Path, inputs: list[Path], cores: int):
    bad, good = expected_rows(inputs)
    report = shuffle(inputs, tmp_path / "out", tmp_path / "bad", workers=cores, shards=2)
    found = read(tmp_path / "bad")
    assert [(one["input"], one["line"], bytes_of(one)) for one in found] == bad
    rows = [
        row
        for path in sorted((tmp_path / "out").glob("*.parquet"))
        for row in pq.read_table(path).to_pylist()
    ]
    assert sorted(row["t"] + str(row["a"]) for row in rows) == sorted(
        row["t"] + str(row["a"]) for row in good
    )
    assert pq.read_schema(tmp_path / "out" / "shard-00000.parquet").names == ["a", "t"]
    assert report.quarantined == len(bad)
    assert report.records == len(bad) + len(good)
    assert report.records_written == len(good)
    assert [one.quarantined for one in report.inputs] == [
        sum(name == str(path) for name, _, _ in bad) for path in inputs
    ]
    manifest = json.loads(manifest_path(tmp_path / "out").read_text())
    assert sum(one["quarantined"] for one in manifest["inputs"]) == len(bad)
    assert sum(one["records"] for one in manifest["inputs"]) == len(bad) + len(good)
    assert manifest["records"] == len(good)


def test_bad_lines_of_small_inputs_that_are_read_together_count_for_their_own(tmp_path: Path, cores: int):
    """The first or the last of an input, all of them, or none, and inputs without any."""
    inputs = [tmp_path / f"in{index:02d}.jsonl" for index in range(32)]
    for index, path in enumerate(inputs):
        lines = [
            b'{"a":%d,"t":"%d"}' % (index, row) if index >> row & 1 else b"{" for row in range(index % 5)
        ]
        path.write_bytes(b"".join(line + b"\n" for line in lines))
    bad, good = expected_rows(inputs)
    report = shuffle(inputs, tmp_path / "out", tmp_path / "bad", workers=cores, shards=1)
    found = read(tmp_path / "bad")
    assert [(one["input"], one["line"], bytes_of(one)) for one in found] == bad
    assert [one.quarantined for one in report.inputs] == [
        sum(name == str(path) for name, _, _ in bad) for path in inputs
    ]
    rows = pq.read_table(tmp_path / "out" / "shard-00000.parquet").to_pylist()
    assert sorted(rows, key=str) == sorted(good, key=str)


def test_the_bytes_do_not_depend_on_threads_memory_or_piles(tmp_path: Path, inputs: list[Path]):
    made = []
    for name, options in (
        ("one", {"workers": 1}),
        ("two", {"workers": 4, "piles": 7}),
        ("three", {"memory": "400MB", "piles": 50, "workers": 2}),
    ):
        shuffle(inputs, tmp_path / name, tmp_path / f"{name}.bad", shards=1, **options)
        made.append(
            ((tmp_path / name / "shard-00000.parquet").read_bytes(), (tmp_path / f"{name}.bad").read_bytes())
        )
    assert made[0] == made[1] == made[2]


def test_bad_lines_do_not_move_the_others(tmp_path: Path):
    lines = [b'{"n":%d}' % row for row in range(500)]
    orders = []
    for name, gone in (("all", set()), ("some", set(range(0, 500, 3)))):
        path = tmp_path / f"{name}.jsonl"
        path.write_bytes(b"".join((b"{" if row in gone else line) + b"\n" for row, line in enumerate(lines)))
        shuffle([path], tmp_path / name, tmp_path / f"{name}.bad", shards=1)
        numbers = pq.read_table(tmp_path / name / "shard-00000.parquet")["n"].to_pylist()
        orders.append([number for number in numbers if number % 3])
    assert orders[0] == orders[1]


@pytest.mark.parametrize("lines", [[b"{", b"}"], [b'{"a":1}'], []], ids=["all bad", "none bad", "no line"])
def test_all_none_or_no_lines_at_all(tmp_path: Path, lines: list[bytes]):
    (tmp_path / "in.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    report = shuffle([tmp_path / "in.jsonl"], tmp_path / "out", tmp_path / "bad")
    bad, good = expected_rows([tmp_path / "in.jsonl"])
    assert len(read(tmp_path / "bad")) == report.quarantined == len(bad)
    assert report.records_written == len(good)


def test_text_that_is_not_utf8_is_set_aside(tmp_path: Path):
    (tmp_path / "in.txt").write_bytes(b"head\nok\r\n\xff\r\n\n\xc3\xa9")
    shuffle([tmp_path / "in.txt"], tmp_path / "out", tmp_path / "bad", format="text", header=1, shards=1)
    assert read(tmp_path / "bad") == [
        {
            "input": str(tmp_path / "in.txt"),
            "line": 3,
            "reason": "is not UTF-8",
            "record_base64": base64.b64encode(b"\xff\r").decode(),
        }
    ]
    table = pq.read_table(tmp_path / "out" / "shard-00000.parquet")
    assert sorted(table["text"].to_pylist()) == ["", "ok\r", "é"]


def test_streams_have_bad_lines_too(tmp_path: Path):
    out = io.BytesIO()
    report = recshuf.shuffle(
        "-",
        "-",
        format="jsonl",
        to="text",
        schema=pa.schema([("t", pa.string())]),
        on_bad_record=f"quarantine:{tmp_path / 'bad'}",
        stdin=io.BytesIO(b'{"t":"a"}\n{"t":"b"\n{"u":"c"}\n'),
        stdout=out,
    )
    assert out.getvalue() == b"a\n"
    assert [one["line"] for one in read(tmp_path / "bad")] == [2, 3]
    assert read(tmp_path / "bad")[0]["input"] == "standard input"
    assert report.quarantined == 2
    assert [one.name for one in tmp_path.iterdir()] == ["bad"]


def test_the_command_says_how_many_and_where(tmp_path: Path, inputs: list[Path], call: Run):
    bad, _ = expected_rows(inputs)
    arguments = [
        *inputs,
        "-o",
        f"{tmp_path}/out/",
        "--to",
        "parquet",
        "--on-bad-record",
        f"quarantine:{tmp_path}/bad",
    ]
    done = call(*arguments, "--report", tmp_path / "report")
    assert done.returncode == 0
    assert f", {len(bad)} bad records set aside in {tmp_path}/bad, seed ".encode() in done.stderr
    report = json.loads((tmp_path / "report").read_text())
    assert (report["quarantined"], report["quarantine"]) == (len(bad), f"{tmp_path}/bad")
    again = call(*arguments, "--overwrite")
    assert again.returncode == 0
    assert len(read(tmp_path / "bad")) == len(bad)
    refused = call(*arguments)
    assert refused.returncode == 2 or b"--overwrite" in refused.stderr


def test_what_cannot_be_meant_is_refused(
    tmp_path: Path, inputs: list[Path], call: Run, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    before = {path: path.read_bytes() for path in inputs}
    for options, problem in (
        (["--on-bad-record", "skip"], "neither fail nor quarantine:FILE"),
        (["--on-bad-record", "quarantine:"], "neither fail nor quarantine:FILE"),
        (["--on-bad-record", "quarantine:bad", "--to", "jsonl"], "for a conversion"),
        (["--on-bad-record", "quarantine:in0.jsonl", "--overwrite"], "one of the inputs"),
        (["--on-bad-record", "quarantine:rep", "--report", "rep"], "another option"),
        (["--on-bad-record", "quarantine:out/bad"], "lies in the output"),
        (["--on-bad-record", "quarantine:new/bad"], "does not exist"),
        (["--on-bad-record", "quarantine:./out.recshuf.json"], "manifest"),
    ):
        done = call("in0.jsonl", "-o", "out/", "--to", "parquet", *options)
        assert done.returncode == 2
        assert problem in done.stderr.decode()
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_formats_that_parse_no_lines_have_no_bad_ones(tmp_path: Path):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "in.parquet")
    with pytest.raises(UsageError, match="on_bad_record"):
        shuffle([tmp_path / "in.parquet"], tmp_path / "out", tmp_path / "bad", to="jsonl")
    (tmp_path / "in.txt").write_bytes(b"x\n")
    with pytest.raises(UsageError, match="on_bad_record"):
        shuffle(
            [tmp_path / "in.txt"],
            tmp_path / "out",
            tmp_path / "bad",
            schema=pa.schema([("text", pa.binary())]),
        )


def test_a_run_that_fails_leaves_nothing(tmp_path: Path, inputs: list[Path]):
    with inputs[2].open("ab") as file:
        file.write(b'{"a":"no number"}\n')
    before = {path.name for path in tmp_path.iterdir()}
    with pytest.raises(InputError, match="schema"):
        shuffle(inputs, tmp_path / "out", tmp_path / "bad")
    assert {path.name for path in tmp_path.iterdir()} == before


def test_a_commit_that_fails_brings_the_old_file_back(
    tmp_path: Path, inputs: list[Path], monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "bad").write_bytes(b"before")

    def fail(*_: object) -> None:
        assert len(read(tmp_path / "bad")) > 1, "the file must be whole before the shards are in place"
        raise OutputError("no")

    monkeypatch.setattr("recshuf.output.local.stage.commit", fail)
    with pytest.raises(OutputError, match="no"):
        shuffle(inputs, tmp_path / "out", tmp_path / "bad", overwrite=True)
    assert (tmp_path / "bad").read_bytes() == b"before"


@pytest.mark.parametrize(
    ("parts", "schema"), [(1, None), (4, None), (2, pa.schema([("a", pa.int64()), ("t", pa.string())]))]
)
def test_a_continued_run_sets_the_same_aside(
    tmp_path: Path, inputs: list[Path], parts: int, schema: pa.Schema | None, monkeypatch: pytest.MonkeyPatch
):
    whole = resolve.make_plan

    def plan_sets(*arguments: Any) -> Plan:
        plan = whole(*arguments)
        sets = tuple(range(len(plan.set_of_input)))
        return replace(plan, resident_bytes=0, set_of_input=sets, scatter_workers=1)

    monkeypatch.setattr(resolve, "make_plan", plan_sets)
    options = {"to": "parquet", "schema": schema, "on_bad_record": f"quarantine:{tmp_path / 'bad'}"}
    run_and_die(parts, inputs, tmp_path / "out", **options)
    assert not (tmp_path / "bad").exists()
    report = recshuf.shuffle(
        inputs, f"{tmp_path}/out/", resume=True, seed=5, shards=3, piles=4, workers=1, **options
    )
    undisturbed = recshuf.shuffle(
        inputs,
        f"{tmp_path}/other/",
        **options | {"on_bad_record": f"quarantine:{tmp_path / 'other.bad'}"},
        seed=5,
        shards=3,
    )
    assert (tmp_path / "bad").read_bytes() == (tmp_path / "other.bad").read_bytes()
    assert report.quarantined == undisturbed.quarantined == len(read(tmp_path / "bad"))
    for path in (tmp_path / "other").iterdir():
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()
    assert not list(tmp_path.glob(".*"))


def test_a_run_killed_with_the_file_in_place_is_continued(
    tmp_path: Path, inputs: list[Path], monkeypatch: pytest.MonkeyPatch
):
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("recshuf.output.local.stage.commit", die)
        patch.setattr(Quarantine, "withdraw", lambda _: None)
        with pytest.raises(KeyboardInterrupt):
            shuffle(inputs, tmp_path / "out", tmp_path / "bad", shards=2)
    before = (tmp_path / "bad").read_bytes()
    shuffle(inputs, tmp_path / "out", tmp_path / "bad", shards=2, resume=True)
    assert (tmp_path / "bad").read_bytes() == before
    assert len(list((tmp_path / "out").glob("*.parquet"))) == 2
    assert not list(tmp_path.glob(".*"))
