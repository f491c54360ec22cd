"""Lines that do not parse are set aside, exactly those, in the order of the inputs, all or nothing."""

from __future__ import annotations

import base64
import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import recshuf
from recshuf.errors import InputError, OutputError, UsageError
from tests.support.effort import examples
from tests.support.processes.killed_runs import Killed, kill_after
from tests.support.small_runs import Listener, spill

if TYPE_CHECKING:
    from pathlib import Path

GOOD = (b'{"a": 1}', b'{"a": 22, "b": "x"}', b'{"b": "\xc3\xa9"}', b"{}")
BAD = (b"{", b'{"a": 1', b'{"a": 1}}', b"\xff", b'{"b": "\xff"}', b"[1]", b'{"a" 1}', b"17", b'{"a": tru}')


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def is_good(line: bytes) -> bool:
    """Tell by the standard library whether a line is an object."""
    try:
        return isinstance(json.loads(line.decode()), dict)
    except ValueError:
        return False


def canonical(row: dict[str, Any]) -> str:
    return json.dumps(row, sort_keys=True)


def expect(files: dict[str, list[bytes]]) -> list[tuple[str, int, bytes]]:
    """Return input, line number and content of every bad line."""
    return [
        (name, number, line)
        for name, lines in files.items()
        for number, line in enumerate(lines, 1)
        if not is_good(line)
    ]


def found_in(path: Path) -> list[tuple[str, int, bytes]]:
    return [
        (
            one["input"],
            one["line"],
            one["record"].encode() if "record" in one else base64.b64decode(one["record_base64"]),
        )
        for one in read_lines(path)
    ]


def write_inputs(folder: Path, parts: list[list[bytes]]) -> dict[str, list[bytes]]:
    """Write files and return their lines by name."""
    folder.mkdir(exist_ok=True)
    files = {str(folder / f"in{index}.jsonl"): lines for index, lines in enumerate(parts)}
    for name, lines in files.items():
        with open(name, "wb") as file:  # noqa: PTH123 - a name
            file.write(b"".join(line + b"\n" for line in lines))
    return files


@settings(max_examples=examples(80), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parts=st.lists(st.lists(st.sampled_from([*GOOD, *GOOD, *BAD]), max_size=40), min_size=1, max_size=3)
    | st.lists(st.lists(st.sampled_from([*GOOD, *BAD]), max_size=3), min_size=20, max_size=40),
    workers=st.integers(1, 3),
    number=st.integers(0, 10**9),
)
def test_exactly_the_bad_lines_are_set_aside(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[bytes]], workers: int, number: int
):
    """Also those of many small inputs, which are read together."""
    kept = [line for lines in parts for line in lines if is_good(line)]
    assume(not kept or any(line != b"{}" for line in kept))  # Parquet has no rows without columns
    folder = tmp_path_factory.mktemp("quarantine")
    files = write_inputs(folder / "in", parts)
    report = recshuf.shuffle(
        list(files),
        folder / "out.parquet",
        seed=number,
        workers=workers,
        on_bad_record=f"quarantine:{folder}/bad.jsonl",
    )
    assert found_in(folder / "bad.jsonl") == expect(files)
    good = [json.loads(line) for lines in files.values() for line in lines if is_good(line)]
    rows = [
        {key: value for key, value in row.items() if value is not None}
        for row in pq.read_table(folder / "out.parquet").to_pylist()
    ]
    assert sorted(map(canonical, rows)) == sorted(map(canonical, good))
    assert report.records == sum(map(len, parts))
    assert report.records_written == len(good)
    assert report.quarantined == len(expect(files)) == sum(one.quarantined for one in report.inputs)
    for one, lines in zip(report.inputs, parts, strict=True):
        assert (one.records, one.quarantined) == (len(lines), sum(not is_good(line) for line in lines))
    assert sorted(os.listdir(folder)) == ["bad.jsonl", "in", "out.parquet"]


def test_lines_are_numbered_with_those_of_the_header(tmp_path: Path):
    lines = [b"first", b"\xffsecond", b"third", b"", b"\xfelast"]
    for index in range(2):
        (tmp_path / f"{index}.txt").write_bytes(b"one\ntwo\n" + b"\n".join(lines[index:]) + b"\n")
    names = [str(tmp_path / f"{index}.txt") for index in range(2)]
    given = {"header": 2, "on_bad_record": f"quarantine:{tmp_path}/bad"}
    report = recshuf.shuffle(names, tmp_path / "out.parquet", seed=1, **given)
    assert found_in(tmp_path / "bad") == [
        (name, number, line)
        for index, name in enumerate(names)
        for number, line in enumerate(lines[index:], 3)
        if line[:1] > b"~"
    ]
    assert (report.records, report.records_written, report.quarantined) == (9, 5, 4)


def test_the_order_of_the_good_ones_does_not_depend_on_the_bad_ones(tmp_path: Path):
    lines = [b'{"n": %d}' % number for number in range(500)]
    (name,) = write_inputs(tmp_path / "in", [lines])
    recshuf.shuffle(name, tmp_path / "all.parquet", seed=1)
    lines[7] = lines[100] = lines[499] = b"{"
    write_inputs(tmp_path / "in", [lines])
    recshuf.shuffle(name, tmp_path / "most.parquet", seed=1, on_bad_record=f"quarantine:{tmp_path}/bad")
    whole = pq.read_table(tmp_path / "all.parquet")["n"].to_pylist()
    kept = [number for number in whole if number not in (7, 100, 499)]
    assert pq.read_table(tmp_path / "most.parquet")["n"].to_pylist() == kept


def test_the_default_is_to_fail(tmp_path: Path):
    (name,) = write_inputs(tmp_path / "in", [[*GOOD, BAD[0]]])
    for options in ({}, {"on_bad_record": "fail"}):
        with pytest.raises(InputError, match="line 5"):
            recshuf.shuffle(name, tmp_path / "out.parquet", **options)


def test_nothing_bad_gives_an_empty_file(tmp_path: Path):
    (name,) = write_inputs(tmp_path / "in", [list(GOOD)])
    recshuf.shuffle(name, tmp_path / "out.parquet", on_bad_record=f"quarantine:{tmp_path}/bad")
    assert (tmp_path / "bad").read_bytes() == b""


def test_records_that_only_disagree_with_others_remain_an_error(tmp_path: Path):
    (name,) = write_inputs(tmp_path / "in", [[b'{"a": 1}', b'{"a": "x"}']])
    with pytest.raises(InputError, match="schema"):
        recshuf.shuffle(name, tmp_path / "out.parquet", on_bad_record=f"quarantine:{tmp_path}/bad")
    assert sorted(os.listdir(tmp_path)) == ["in"]


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_run_that_fails_leaves_the_file_as_it_was(tmp_path: Path, overwrite: bool):
    """The shards cannot be put in place after the bad records were."""
    (name,) = write_inputs(tmp_path / "in", [[*GOOD, *BAD]])
    if overwrite:
        (tmp_path / "bad").write_text("old")
    before = sorted(os.listdir(tmp_path))

    def take_place() -> None:
        (tmp_path / "out.parquet").mkdir(exist_ok=True)

    with pytest.raises(OutputError, match=r"out\.parquet"):
        recshuf.shuffle(
            name,
            tmp_path / "out.parquet",
            on_bad_record=f"quarantine:{tmp_path}/bad",
            overwrite=overwrite,
            progress=Listener(take_place),
        )
    (tmp_path / "out.parquet").rmdir()
    shutil.rmtree(tmp_path / ".out.parquet.recshuf", ignore_errors=True)
    assert sorted(os.listdir(tmp_path)) == before
    if overwrite:
        assert (tmp_path / "bad").read_text() == "old"


@pytest.mark.parametrize("parts", [1, 4])
def test_a_run_that_is_continued_sets_the_same_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: int
):
    files = write_inputs(tmp_path / "in", [[*GOOD, *BAD] * 9] * 3)
    spill(monkeypatch)
    options: dict[str, Any] = {"to": "parquet", "seed": 1, "shards": 3, "piles": 4, "workers": 1}
    recshuf.shuffle(list(files), f"{tmp_path}/whole/", **options, on_bad_record=f"quarantine:{tmp_path}/a")
    options["on_bad_record"] = f"quarantine:{tmp_path}/b"
    with pytest.MonkeyPatch.context() as patch:
        kill_after(patch, parts)
        with pytest.raises(Killed):
            recshuf.shuffle(list(files), f"{tmp_path}/out/", **options)
    assert not (tmp_path / "b").exists()
    recshuf.shuffle(list(files), f"{tmp_path}/out/", **options, resume=True)
    assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()
    assert found_in(tmp_path / "b") == expect(files)
    for path in (tmp_path / "whole").iterdir():
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("output", "options", "word"),
    [
        ("out.jsonl", {}, "without|only"),
        ("out.parquet", {"on_bad_record": "quarantine:{folder}/in/in0.jsonl"}, "one of the inputs"),
        ("out.parquet", {"on_bad_record": "quarantine:{folder}/none/bad"}, "does not exist"),
        ("out.parquet", {"on_bad_record": "quarantine:"}, "neither"),
        ("out.parquet", {"on_bad_record": "skip"}, "neither"),
        ("out.parquet", {"on_bad_record": "quarantine:{folder}/out.parquet"}, "output"),
        ("out.parquet", {"on_bad_record": "quarantine:{folder}/in"}, "is not a regular file"),
        ("out.parquet", {"verify": True}, "verify=True"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, output: str, options: dict[str, Any], word: str):
    (name,) = write_inputs(tmp_path / "in", [list(GOOD)])
    given = {"on_bad_record": f"quarantine:{tmp_path}/bad"} | options
    given["on_bad_record"] = given["on_bad_record"].format(folder=tmp_path)
    with pytest.raises(UsageError, match=word):
        recshuf.shuffle(name, tmp_path / output, **given)
    assert os.listdir(tmp_path) == ["in"]
