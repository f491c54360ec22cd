"""`recshuf verify` as a command: exit codes, what it prints, its report."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from tests.cli.conftest import Refuse
from tests.conftest import Run


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Return an input of 100 lines and a directory of two shards made of it."""
    path = tmp_path / "in.txt"
    path.write_text("".join(f"line {number}\n" for number in range(100)))
    recshuf.shuffle(path, f"{tmp_path}/out/", shards=2, seed=1)
    return path, tmp_path / "out"


def lose(output: Path) -> None:
    """Replace one record of the first shard by another of the same length."""
    shard = output / "shard-00000.txt"
    lines = sorted(shard.read_bytes().splitlines(keepends=True), key=len)
    shard.write_bytes(b"".join([b"L" + lines[0][1:], *lines[1:]]))


def test_equal_is_0_and_said_in_one_line_which_is_nothing_if_quiet(pair: tuple[Path, Path], call: Run):
    report = pair[0].parent / "report.json"
    done, quiet = call("verify", *pair), call("verify", "-q", *pair, "--report", report)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(f"equal: {pair[1]} holds 100 records of 1 input".encode())
    assert done.stdout.count(b"\n") == 1
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, b"", b"")
    assert json.loads(report.read_text())["equal"] is True


def test_different_is_1_and_says_what_and_where(pair: tuple[Path, Path], call: Run, tmp_path: Path):
    path, output = pair
    lose(output)
    (output / "new.txt").write_text("x\n")
    done, quiet = call("verify", path, output), call("verify", "-q", path, output)
    lines = done.stdout.decode().splitlines()
    assert (done.returncode, done.stderr) == (1, b"")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (1, b"", b"")
    assert lines[0] == f"different: in {output}, 1 record missing, 1 record extra, 2 other differences"
    assert lines[1] == f"{output}/shard-00000.txt: has another checksum in the manifest"
    assert lines[2] == f"{output}/new.txt: is not named in the manifest"
    missing, extra = lines[3:]
    assert missing.startswith(f"missing: {path}: record ")
    assert extra == f"extra: {output}/shard-00000.txt: record 0"
    report = json.loads(call("verify", *pair, "--report", "-").stdout)
    assert (report["equal"], report["missing"], report["extra"]) == (False, 1, 1)
    assert report["extra_places"] == [{"name": f"{output}/shard-00000.txt", "index": 0, "copies": 1}]
    assert [one["records"] for one in report["shards"]] == [50, 50]
    assert call("verify", *pair, "--report", tmp_path / "report.json").returncode == 1
    assert json.loads((tmp_path / "report.json").read_text()) | {"seconds": 0} == report | {"seconds": 0}


def test_what_differs_beside_the_records_is_1_too(pair: tuple[Path, Path], call: Run):
    (pair[1] / "new.txt").touch()
    tables = pair[0].with_name("in.parquet"), pair[0].with_name("out.parquet")
    pq.write_table(pa.table({"a": [1]}), tables[0])
    pq.write_table(pa.table({"a": ["1"]}), tables[1])
    for sides in (pair, tables):
        done, report = call("verify", *sides), call("verify", *sides, "--report", "-")
        assert (done.returncode, report.returncode) == (1, 1)
        assert done.stdout.startswith(b"different: ")
        assert json.loads(report.stdout)["equal"] is False


def test_wrong_usage_is_2_and_a_file_that_cannot_be_read_1(pair: tuple[Path, Path], refuse: Refuse):
    for arguments in ("", "one", "-q -v a b", "--nonsense a b", "a -"):
        refuse(f"verify {arguments}")
    refuse("verify in.txt out.gone", "recshuf: error: out.gone: ", code=1)
    for report in ("in.txt", "out/shard-00000.txt"):
        refuse(
            f"verify in.txt out --report {report}", "lies among the inputs" if report == "in.txt" else report
        )


def test_options_of_the_shuffle_are_understood(pair: tuple[Path, Path], call: Run, tmp_path: Path):
    path, _ = pair
    output = tmp_path / "out.jsonl"
    recshuf.shuffle(path, output, head_count=7, header=3)
    done = call("verify", path, output, "-n", "7", "--header", "3", "--workers", "2", "--memory", "100MB")
    assert done.returncode == 0
    assert b"7 of 97 records" in done.stdout


def test_several_inputs_are_compared_together_and_one_shard_of_several_is_said(
    pair: tuple[Path, Path], call: Run
):
    path, output = pair
    halves = sorted(output.glob("shard-*"))
    assert call("verify", *halves, path).returncode == 0
    assert call("verify", halves[0], path).returncode == 1
    done = call("verify", path, halves[0])
    assert done.returncode == 1
    hint = f"shard-00000.txt: is one of 2 shards; give their folder {output.resolve()} to compare all of them"
    assert hint in done.stdout.decode()
    assert b"--provenance" not in done.stdout


def test_the_last_line_of_a_run_says_whether_it_verified(pair: tuple[Path, Path], call: Run, tmp_path: Path):
    for options, is_verified in (([], False), (["--verify"], True)):
        done = call(pair[0], "-o", tmp_path / f"new{len(options)}.txt", "--seed", "5", *options)
        last = done.stderr.decode().splitlines()[-1]
        assert ", seed 5" in last
        assert ("verified, seed 5" in last) == is_verified
