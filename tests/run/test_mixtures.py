"""Weights and copies of inputs: exact counts, whole copies and a sample, in uniform order; and samples by a share."""

import io
import json
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import RecshufWarning, UsageError
from tests.support.group_oracle import expect_copies
from tests.support.numbered_files import SUFFIXES, make_inputs, read_ids, write_lines
from tests.support.small_runs import change_plans, forge_keys

COUNTS = (60, 40, 20)


def list_ids(sources: Sequence[Sequence[int]], places: Sequence[tuple[int, int]]) -> list[int]:
    """Return the numbers of the records at some places, which `make_inputs` gave them."""
    counts = [count for source in sources for count in source]
    return [sum(counts[:index]) + row for index, row in places]


def make_sources(folder: Path, name: str) -> list[Path]:
    """Write two sources: a folder of two files, and one file."""
    first, second, third = make_inputs(folder, name, COUNTS)
    (folder / "pair").mkdir()
    for path in (first, second):
        path.rename(folder / "pair" / path.name)
    return [folder / "pair", third]


SOURCES = ((60, 40), (20,))
MIXTURES: list[tuple[dict[str, Any], tuple[int, int]]] = [
    ({"weights": [0.7, 0.3], "head_count": 300}, (210, 90)),
    ({"weights": "1,0", "head_count": 30}, (30, 0)),
    ({"copies": [0.255, 2.5]}, (26, 50)),  # 25.5 is rounded up
    ({"copies": "1,1"}, (100, 20)),
    ({"copies": "2,3"}, (200, 60)),
]
PLANS: list[dict[str, Any]] = [
    {"pile_count": 50, "resident_bytes": 0, "block_bytes": 200},
    {},
    {"pile_count": 1},
]


@pytest.mark.parametrize("name", ["hdf5", "csv"])
def test_counts_samples_and_order_are_those_of_the_formulas(tmp_path: Path, name: str):
    paths = make_sources(tmp_path / "in", name)
    for number, (options, taken) in enumerate(MIXTURES):
        output = tmp_path / f"out{SUFFIXES[name]}"
        with pytest.MonkeyPatch.context() as patch:
            change_plans(patch, **PLANS[number % 3])
            report = recshuf.shuffle(paths, output, seed=7, overwrite=True, **options)
        assert read_ids(output) == list_ids(SOURCES, expect_copies(7, SOURCES, taken))
        assert (report.records, report.records_written) == (120, sum(taken))
        assert recshuf.verify(paths, output, **options)


def test_equal_keys_are_in_the_order_of_inputs_rows_and_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    forge_keys(monkeypatch, 1, 0)
    path = tmp_path / "in.jsonl"
    write_lines(path, 0, 30)
    recshuf.shuffle(path, tmp_path / "out.jsonl", seed=7, copies=[3])
    ids = read_ids(tmp_path / "out.jsonl")
    assert Counter(ids) == dict.fromkeys(range(30), 3)
    assert sum(after < before for before, after in pairwise(ids)) == 1  # two keys


def test_manifest_and_report_tell_what_was_taken_and_verify_takes_it_from_there(tmp_path: Path):
    paths = make_sources(tmp_path / "in", "text")
    report = recshuf.shuffle(
        paths, f"{tmp_path}/out/", seed=7, weights=[0.7, "1/3"], head_count=62, verify=True
    )
    manifest = json.loads((tmp_path / ".out.recshuf.json").read_text())
    assert manifest["sources"] == report.features["sources"] == report.to_json()["sources"]
    assert manifest["sources"] == [
        {"input": str(paths[0]), "weight": "0.7", "records": 100, "written": 42},
        {"input": str(paths[1]), "weight": "1/3", "records": 20, "written": 20},
    ]
    assert [one["records"] for one in manifest["inputs"]] == [60, 40, 20]
    assert recshuf.verify(paths, tmp_path / "out")
    assert recshuf.verify(paths, tmp_path / "out", head_count=62)
    (difference,) = recshuf.verify(paths, tmp_path / "out", head_count=64).differences
    assert difference == f"{tmp_path}/out: holds 62 records, and the mixture has 64"
    with pytest.raises(
        UsageError, match="mixture of 2 inputs by its manifest, not of 1; give those of the run"
    ):
        recshuf.verify(tmp_path / "in", tmp_path / "out")


@pytest.mark.parametrize(
    ("copies", "change", "found"),
    [
        (
            1.5,
            lambda lines: lines[:-1],
            (0, 0, 1),
        ),  # one of two copies, or the one of a sample: the number tells
        (1.5, lambda lines: [*lines[:-1], lines[0]], (0, 0, 0)),
        (1.5, lambda lines: [line for line in lines if line != lines[0]], (1, 0, 1)),
        (1.5, lambda lines: [*lines, lines[0], lines[0]], (0, 1, 1)),
        (1.5, lambda lines: [*lines[:-1], b"new\n"], (0, 1, 0)),
        (2, lambda lines: [*lines[:-1], lines[0]], (1, 1, 0)),  # though each record is there
    ],
)
def test_verify_finds_records_taken_too_seldom_or_too_often(
    tmp_path: Path, copies: float, change: Any, found: tuple[int, int, int]
):
    path, output = tmp_path / "in.txt", tmp_path / "out.txt"
    path.write_text("".join(f"{number}\n" for number in range(10)))
    recshuf.shuffle(path, output, seed=1, copies=[copies])
    lines = output.read_bytes().splitlines(keepends=True)
    output.write_bytes(b"".join(change(sorted(lines, key=lambda line: (lines.count(line), line)))))
    report = recshuf.verify(path, output, copies=[copies])
    missing, extra, other = found
    assert (report.missing, report.extra > 0, len(report.differences)) == (missing, extra > 0, other)


def test_verify_takes_no_size_of_a_sample_where_the_manifest_tells_of_copies_or_duplicates(tmp_path: Path):
    (path,) = make_inputs(tmp_path, "text", [9])
    for option, said in {"copies": "has copies", "dedup": "holds the first record of each value"}.items():
        output = f"{tmp_path}/{option}/"
        recshuf.shuffle(path, output, **{option: [1] if option == "copies" else "record"})
        assert recshuf.verify(path, output)
        with pytest.raises(UsageError, match=f"{said} by its manifest.*; leave out head_count"):
            recshuf.verify(path, output, head_count=9)


def test_whole_copies_of_a_stream_are_taken_and_many_copies_are_told(tmp_path: Path):
    (path,) = make_inputs(tmp_path, "text", [3])
    output = io.BytesIO()
    recshuf.shuffle("-", "-", stdin=io.BytesIO(b"1\n2\n"), stdout=output, copies=[2], seed=3)
    assert sorted(output.getvalue().split()) == [b"1", b"1", b"2", b"2"]
    with pytest.warns(RecshufWarning, match=r"input0\.txt: each of its records is taken 5 times or more"):
        recshuf.shuffle(path, tmp_path / "out.txt", copies=[5.5])


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("in.csv", b"id,x\n1,a\n2,b\n# the end", {"comment": "#"}),
        ("in.csv", b"id,x\r\n1,a\r\n2,b\r\n\r", {}),
        ("in.txt", b"1\na\n2\nb\n\n", {"record_lines": 2}),
    ],
)
def test_what_ends_an_input_and_is_no_record_is_not_counted(
    tmp_path: Path, name: str, content: bytes, options: dict[str, Any]
):
    (tmp_path / name).write_bytes(content)
    taken = {"weights": [1], "head_count": 6}
    report = recshuf.shuffle(tmp_path / name, tmp_path / f"out {name}", seed=1, **options, **taken)
    assert report.records_written == 6


def test_a_share_of_the_records_is_a_sample_of_exact_size(tmp_path: Path):
    paths = make_inputs(tmp_path, "jsonl", [10, 15])
    whole = tmp_path / "whole.jsonl"
    recshuf.shuffle(paths, whole, seed=3)
    for share, count in {"10%": 3, "50%": 13, "0%": 0, "100%": 25, "33.3%": 8}.items():
        recshuf.shuffle(paths, tmp_path / "out.jsonl", seed=3, head_count=share, overwrite=True, verify=True)
        assert read_ids(tmp_path / "out.jsonl") == read_ids(whole)[:count]
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(b"".join(path.read_bytes() for path in paths) + b"{no\n" * 5)
    recshuf.shuffle(
        bad, tmp_path / "out.parquet", seed=3, head_count="40%", on_bad_record=f"quarantine:{tmp_path}/q"
    )
    assert pq.read_metadata(tmp_path / "out.parquet").num_rows == 10  # of the 25 that parse


@pytest.mark.parametrize(
    ("options", "features"),
    [
        ({"group_by": "id"}, {"group_by": {"fields": ["id"], "order": "input"}}),
        ({"dedup": "record"}, {"dedup": {"fields": "record"}}),
        ({"split": "a=0.5,b=1/2"}, {"split": {"shares": {"a": "0.5", "b": "0.5"}}}),
        (
            {"copies": [2, 1]},
            {"sources": [{"input": "in.jsonl", "copies": "2"}, {"input": "more.jsonl", "copies": "1"}]},
        ),
    ],
)
def test_a_plan_tells_what_a_run_does_besides(
    tmp_path: Path, options: dict[str, Any], features: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    names = ["in.jsonl", "more.jsonl"]
    for name in names:
        write_lines(tmp_path / name, 0, 3)
    planned = recshuf.plan(names, "out/", **options)
    assert planned.features == features
    assert features.items() <= planned.to_json().items()


def test_words_of_keys_are_no_bytes_of_records(tmp_path: Path):
    (path,) = make_inputs(tmp_path, "text", [50])
    plain = recshuf.shuffle(path, tmp_path / "plain.txt").byte_count
    for options in ({"dedup": "record"}, {"group_by": "id", "format": "jsonl"}):
        found = recshuf.shuffle(path, tmp_path / "out.jsonl", overwrite=True, **options).byte_count
        assert found == plain
