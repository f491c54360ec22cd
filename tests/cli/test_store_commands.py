"""The commands on pile stores, and the one that compares, as a user calls them."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from tests.cli.conftest import Refuse
from tests.conftest import Run


@pytest.fixture
def given(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(f'{{"id":{number}}}\n' for number in range(1000)))
    return path


@pytest.fixture
def store(given: Path) -> Path:
    recshuf.scatter(given, given.parent / "store", seed=5, piles=3)
    return given.parent / "store"


def test_info_says_what_a_store_holds(store: Path, call: Run):
    done = call("store", "info", store)
    assert done.returncode == 0
    for word in (
        b"snapshot 1",
        b"1,000",
        b"jsonl",
        b"seed",
        b"3 times as often as by chance, with mix=2 1.12 times",
    ):
        assert word in done.stdout
    found = json.loads(call("store", "info", store, "--json").stdout)
    assert (found["records"], found["piles"], found["seed"]) == (1000, 3, "5")
    files = [path.stat() for path in (store / "sets").iterdir()]
    assert found["file_bytes"] == sum(one.st_size for one in files)
    assert found["disk_bytes"] == sum(512 * one.st_blocks for one in files)


def test_gather_writes_a_shuffle_unless_an_epoch_is_named(
    store: Path, given: Path, tmp_path: Path, call: Run
):
    recshuf.shuffle(given, tmp_path / "shuffle.jsonl", seed=5)
    recshuf.gather(store, tmp_path / "epoch.jsonl", epoch=1)
    for options, name in (((), "shuffle"), (("--epoch", "1"), "epoch")):
        assert call("gather", store, "-o", tmp_path / f"{len(options)}.jsonl", *options).returncode == 0
        made = (tmp_path / f"{len(options)}.jsonl").read_bytes()
        assert made == (tmp_path / f"{name}.jsonl").read_bytes()


def test_compact_leaves_a_store_of_few_sets_as_it_is(store: Path, given: Path, call: Run):
    recshuf.window(store, given)
    for options, count in (((), 2), (("--sets", "1"), 1)):
        assert call("store", "compact", store, *options).returncode == 0
        assert len(json.loads(call("store", "info", store, "--json").stdout)["sets"]) == count


def test_verify_names_a_damaged_file(store: Path, call: Run):
    done = call("store", "verify", store)
    assert (done.returncode, done.stdout) == (0, f"{store}: whole, 1,000 records in 1 set\n".encode())
    (path,) = (store / "sets").iterdir()
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    done = call("store", "verify", store)
    assert done.returncode == 1
    assert path.name.encode() in done.stderr
    assert call("gather", store, "-o", store.parent / "out.jsonl").returncode == 1
    assert not (store.parent / "out.jsonl").exists()


def test_drop_deletes_a_store_and_nothing_else(store: Path, tmp_path: Path, call: Run, refuse: Refuse):
    loader = recshuf.PileLoader(store, 10)
    refuse("store drop store", "a process reads or writes it", code=1)
    del loader
    (tmp_path / "link").symlink_to(store)
    refuse("store drop link", f"is a symbolic link; name the folder that it leads to, {store}", code=1)
    (store / "notes.txt").write_bytes(b"")
    refuse("store drop store", "holds 'notes.txt', which is not of the store; move it away", code=1)
    (store / "notes.txt").unlink()
    refuse("store drop .", "is no pile store")
    assert call("store", "drop", store).returncode == 0
    assert not store.exists()


SLIPS: dict[str, list[tuple[int, str, str]]] = {
    "scatter": [
        (2, "scatter in.jsonl", "usage: recshuf scatter"),
        (1, "scatter in.jsonl -o store", "is a pile store already; choose another name, or delete it with recshuf store drop "),
        (1, "scatter in.jsonl -o in.jsonl", "is a file; choose another name"),
        (1, "scatter in.jsonl -o in.jsonl/new", "in.jsonl: is a file; choose another folder"),
        (1, "scatter in.jsonl -o .", "not empty"),
        (1, "scatter ./missing -o ./new", "missing"),
        (2, "scatter in.jsonl -o ./new --datasets a", "--datasets: for inputs of hdf5"),
        (2, "scater in.jsonl", "did you mean: recshuf scatter"),
        (1, "scatter in.jsonl -o ./new --report ./old", "old: exists; give --overwrite"),
        (2, "scatter in.jsonl -o ./new --schema ./old --report ./old --overwrite", "lies among the inputs"),
        (2, "scatter in.jsonl -o ./new --report ./bad --on-bad-record quarantine:./bad", "is also another option's file"),
    ],
    "gather": [
        (2, "gather store", "usage: recshuf gather"),
        (2, "gather ./missing -o ./x.jsonl", "no such pile store"),
        (2, "gather in.jsonl -o ./x.jsonl", "is no pile store"),
        (1, "gather store -o in.jsonl", "give --overwrite"),
        (2, "gather store -o ./x.jsonl --seed 6 --epoch 1", "--epoch needs the keys of the store"),
        (2, "gather store -o ./x.jsonl --mix 0", "--mix=0: give an integer"),
        (1, "gather store -o ./x.jsonl --report ./old", "old: exists; give --overwrite"),
        (2, "gather store -o ./x.jsonl --reshuffle all", "'--reshuffle': 'all' is not one of 'rotate', 'piles', 'none'"),
        (1, "gather store -o ./x --to text", "of strings or bytes, not 'id' of int64; give another --to"),
    ],
    "other commands": [
        (2, "./store -o ./x.jsonl", "is a pile store; write it with recshuf gather"),
        (2, "scatter store -o ./new", "is a pile store; write it with recshuf gather"),
        (2, "verify store in.jsonl", "is a pile store; recshuf gather"),
        (2, "verify in.jsonl store", "is a pile store; recshuf gather"),
        (2, "check store --column a", "recshuf check --loader"),
        (2, "check in.jsonl --against store", "is a pile store; recshuf gather"),
        (2, "picture store --column a -o ./x.png", "is a pile store; recshuf gather"),
        (2, "picture in.jsonl --column a", "no file for the picture; usage: recshuf picture"),
        *(
            (2, f"{line} -q -v", "-q and -v contradict each other; give one of them")
            for line in ("scatter in.jsonl -o ./new", "gather store -o ./x.jsonl", "window store --append in.jsonl", "picture in.jsonl --column a -o ./x.png")
        ),
        (2, "gallery", "no folder; usage: recshuf gallery -o DIR"),
        (2, "check --loader store --epoch -1", "--epoch=-1: give an integer"),
        (2, "check --loader store --loader store", "--loader: names 2 stores; check one after the other"),
        (2, "check --loader store store --provenance", "--loader and DATA contradict each other"),
        *(
            (2, f"check --loader store {option}", f"{option.split()[0]}: does not go with --loader")
            for option in ("--against x", "--provenance", "--html p.html", "--format text", "--memory 1GB", "--id row")
        ),
        *(
            (2, f"check x --provenance {option}", f"{option.split()[0]}: is for --loader; leave it out")
            for option in ("--seed 9", "--epoch 3", "--reshuffle piles", "--mix 2")
        ),
    ],
    "store": [
        (2, "store", "no command; usage: recshuf store info|verify|compact|drop STORE"),
        (2, "store info .", "is no pile store, but holds some; name one: store\n"),
        (2, "store inf store", "No such command 'inf'"),
        (2, "store list", "No such command 'list'; see recshuf store --help"),
        (2, "store info store --list", "No such option '--list'; see recshuf store info --help"),
        (2, "window store --keep-records -1", "--keep-records=-1: give an integer"),
        (2, "window store --append in.jsonl --seed 6", "has 5; leave it out"),
        (2, "window store --append in.jsonl --piles 4", "has 3; leave it out"),
        (2, "window store --append in.jsonl --split-by a", "No such option '--split-by'"),
        (2, "window store", "nothing to do; give --append INPUT"),
        (2, "window store --time 2026-01-31 --keep-records 5", "--time: is that of what is appended; give --append, too"),
        *(
            (2, f"window store --keep-records 5 {option}", f"{option.split()[0]}: is for what is appended; give --append, too")
            for option in (
                "--seed 5", "--piles 4", "--format jsonl", "--columns id", "--widen", "--schema ./old", "--overwrite",
                "--on-bad-record quarantine:./bad", "--separator x", "--max-record-bytes 1MB", "--spill-compression none",
            )
        ),
        (2, "store compact store --sets 0", "--sets=0: give an integer"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", SLIPS)
def test_slips_get_one_line_and_change_nothing(store: Path, refuse: Refuse, kind: str):
    (store.parent / "old").write_text("old")
    for code, line, message in SLIPS[kind]:
        refuse(line, message, code=code)


def test_a_window_keeps_the_newest_slices_and_compact_joins_them(store: Path, given: Path, call: Run):
    def append(name: str, *options: str) -> None:
        more = given.with_name(f"{name}.jsonl")
        more.write_bytes(given.read_bytes())
        done = call("window", store, "--append", more, *options)
        assert done.returncode == 0, done.stderr

    def list_sets() -> list[dict[str, Any]]:
        done = call("store", "info", store, "--json")
        assert done.returncode == 0
        return json.loads(done.stdout)["sets"]

    for day in (3, 1, 2):
        append(f"day{day}", "--time", f"2026-01-0{day}")
    size = max(one["bytes"] for one in list_sets())
    for limit, first in (
        ("--keep-records 3999", 1),
        ("--expire-before 2026-01-02", 2),
        (f"--keep-bytes {2 * size - 1}", 3),
    ):
        assert call("window", store, *limit.split()).returncode == 0
        shown = call("store", "info", store).stdout.decode()
        assert f"2026-01-0{first}T00:00:00+00:00 to 2026-01-03T00:00:00+00:00" in shown
        assert f"records   {4000 - 1000 * first:,}, " in shown
        assert ("with mix=2" in shown) == (first > 1)  # fewer sets than piles
    append("more")
    append("most")
    done = call("store", "compact", store, "--sets", "2")
    assert (done.returncode, len(list_sets())) == (0, 2)
    assert done.stdout.startswith(f"{store}: 3,000 records, snapshot ".encode())
    assert call("store", "verify", "-q", store).stdout == b""


# `recshuf verify`: exit codes, what it prints, its report


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
