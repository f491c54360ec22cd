"""The commands on pile stores, as a user calls them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

import recshuf

if TYPE_CHECKING:
    from pathlib import Path

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


def test_info_tells_the_space_on_disk(tmp_path: Path, call: Run):
    """A writer reserves space for regions that it may not fill."""
    with recshuf.PileWriter(tmp_path / "store", "a") as writer:
        writer.write([{"id": 1}])
    found = json.loads(call("store", "info", tmp_path / "store", "--json").stdout)
    blocks = sum(file.stat().st_blocks for file in (tmp_path / "store" / "sets").iterdir())
    assert found["disk_bytes"] == 512 * blocks


def test_scatter_and_gather_write_what_the_shuffle_writes(given: Path, tmp_path: Path, call: Run):
    done = call("scatter", given, "-o", tmp_path / "new", "--seed", "5", "--report", "-")
    assert done.returncode == 0
    assert b"1,000 records" in done.stderr
    assert b"seed 5" in done.stderr
    assert json.loads(done.stdout)["records"] == 1000
    done = call("gather", tmp_path / "new", "-o", tmp_path / "out.parquet")
    assert (done.returncode, done.stdout) == (0, b"")
    recshuf.shuffle(given, tmp_path / "expected.parquet", seed=5)
    assert (tmp_path / "out.parquet").read_bytes() == (tmp_path / "expected.parquet").read_bytes()


def test_gather_writes_an_epoch(store: Path, tmp_path: Path, call: Run):
    assert call("gather", store, "-o", tmp_path / "a.jsonl", "--epoch", "2", "--mix", "2").returncode == 0
    recshuf.gather(store, tmp_path / "b.jsonl", epoch=2, mix=2)
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()


def test_a_complete_gather_that_is_resumed_may_have_its_report(store: Path, tmp_path: Path, call: Run):
    command = ("gather", store, "-o", f"{tmp_path}/out/", "--resume", "--report", tmp_path / "report")
    assert call(*command).returncode == 0
    first = (tmp_path / "report").read_bytes()
    again = call(*command)
    assert (again.returncode, (tmp_path / "report").read_bytes()) == (0, first)
    other = call("gather", store, "-o", f"{tmp_path}/other/", "--resume", "--report", tmp_path / "report")
    assert (other.returncode, b"report: exists; give --overwrite" in other.stderr) == (1, True)


def test_info_says_what_a_store_holds(store: Path, call: Run):
    done = call("store", "info", store)
    assert done.returncode == 0
    for word in (b"snapshot 1", b"1,000", b"jsonl", b"seed"):
        assert word in done.stdout
    found = json.loads(call("store", "info", store, "--json").stdout)
    assert (found["records"], found["piles"], found["seed"]) == (1000, 3, "5")


def test_verify_names_a_damaged_file(store: Path, call: Run):
    done = call("store", "verify", store)
    assert (done.returncode, done.stdout) == (0, f"{store}: whole, 1,000 records in 1 sets\n".encode())
    (path,) = (store / "sets").iterdir()
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    done = call("store", "verify", store)
    assert done.returncode == 1
    assert path.name.encode() in done.stderr
    assert call("gather", store, "-o", store.parent / "out.jsonl").returncode == 1
    assert not (store.parent / "out.jsonl").exists()


def test_drop_deletes_a_store_and_nothing_else(store: Path, tmp_path: Path, call: Run):
    loader = recshuf.PileLoader(store, 10)
    done = call("store", "drop", store)
    assert (done.returncode, store.exists()) == (1, True)
    assert b"a process reads or writes it" in done.stderr
    del loader
    assert call("store", "drop", store).returncode == 0
    assert not store.exists()
    assert call("store", "drop", tmp_path).returncode == 2
    assert tmp_path.exists()


def test_drop_refuses_before_it_deletes(store: Path, tmp_path: Path, call: Run):
    def list_all() -> set[Path]:
        return set(store.rglob("*"))

    before = list_all()
    (tmp_path / "link").symlink_to(store)
    done = call("store", "drop", tmp_path / "link")
    assert (done.returncode, list_all()) == (1, before)
    assert f"is a symbolic link; name the folder that it leads to, {store}".encode() in done.stderr
    (store / "notes.txt").write_bytes(b"")
    done = call("store", "drop", store)
    assert (done.returncode, list_all()) == (1, before | {store / "notes.txt"})
    assert b"holds 'notes.txt', which is not of the store; move it away" in done.stderr


def test_drop_deletes_a_damaged_store(store: Path, call: Run):
    (store / "snapshot-000001.json").write_bytes(b"?")
    assert call("store", "drop", store).returncode == 0
    assert not store.exists()


def test_a_drop_that_was_killed_is_given_again(store: Path, call: Run):
    for path in (store / "sets").iterdir():
        path.unlink()
    (store / "sets").rmdir()
    assert call("store", "drop", store).returncode == 0
    assert not store.exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("scatter", "{given}"), 2, "usage: recshuf scatter"),
        (
            ("scatter", "{given}", "-o", "{store}"),
            1,
            "is a pile store already; choose another name, or delete it with recshuf store drop ",
        ),
        (("scatter", "{given}", "-o", "{given}"), 1, "is a file; choose another name"),
        (("scatter", "{given}", "-o", "{given}/new"), 1, "in.jsonl: is a file; choose another folder"),
        (("scatter", "{given}", "-o", "{folder}"), 1, "not empty"),
        (("scatter", "{folder}/missing", "-o", "{folder}/new"), 1, "missing"),
        (
            ("scatter", "{given}", "-o", "{folder}/new", "--datasets", "a"),
            2,
            "--datasets: for inputs of hdf5",
        ),
        (("gather", "{store}"), 2, "usage: recshuf gather"),
        (("gather", "{folder}/missing", "-o", "{folder}/x.jsonl"), 2, "no such pile store"),
        (("gather", "{given}", "-o", "{folder}/x.jsonl"), 2, "is no pile store"),
        (("gather", "{store}", "-o", "{given}"), 1, "give --overwrite"),
        (("gather", "{store}", "-o", "{folder}/x.jsonl", "--seed", "6"), 2, "have seed 5"),
        (("{store}", "-o", "{folder}/x.jsonl"), 2, "is a pile store; write it with recshuf gather"),
        (("scatter", "{store}", "-o", "{folder}/new"), 2, "is a pile store; write it with recshuf gather"),
        (("verify", "{store}", "{given}"), 2, "is a pile store; recshuf gather"),
        (("verify", "{given}", "{store}"), 2, "is a pile store; recshuf gather"),
        (("check", "{store}", "--column", "a"), 2, "recshuf check --loader"),
        (("check", "{given}", "--against", "{store}"), 2, "is a pile store; recshuf gather"),
        (
            ("picture", "{store}", "--column", "a", "-o", "{folder}/x.png"),
            2,
            "is a pile store; recshuf gather",
        ),
        (("store",), 2, "no command; usage: recshuf store info|verify|compact|drop STORE"),
        (("store", "inf", "{store}"), 2, "Did you mean 'info'"),
        (("store", "list"), 2, "No such command 'list'; see recshuf store --help"),
        (("store", "info", "{store}", "--list"), 2, "No such option '--list'; see recshuf store info --help"),
        (("picture", "{given}", "--column", "a"), 2, "no file for the picture; usage: recshuf picture"),
        (("gallery",), 2, "no folder; usage: recshuf gallery -o DIR"),
        (("scater", "{given}"), 2, "did you mean: recshuf scatter"),
        (("check", "--loader", "{store}", "--epoch", "-1"), 2, "--epoch=-1: give an integer"),
        (("gather", "{store}", "-o", "{folder}/x.jsonl", "--mix", "0"), 2, "--mix=0: give an integer"),
        (("window", "{store}", "--keep-records", "-1"), 2, "--keep-records=-1: give an integer"),
        (("store", "compact", "{store}", "--sets", "0"), 2, "--sets=0: give an integer"),
    ],
)
def test_slips_get_one_line_and_change_nothing(
    given: Path, store: Path, call: Run, arguments: tuple[str, ...], code: int, message: str
):
    def list_all() -> list[Path]:
        return sorted(given.parent.rglob("*"))

    before = list_all()
    names = {"given": given, "store": store, "folder": given.parent}
    done = call(*(argument.format(**names) for argument in arguments))
    assert done.returncode == code
    assert message in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1
    assert list_all() == before


def test_check_tests_two_epochs_of_a_store(store: Path, call: Run):
    done = call("check", "--loader", store, "--json", "-v")
    assert done.returncode == 0
    report = json.loads(done.stdout)
    assert report["records"] == 2000
    assert "meetings" in {score["name"] for score in report["scores"]}
    done = call("check", "--loader", store, store, "--provenance")
    assert done.returncode == 2
    assert b"--loader and DATA contradict each other" in done.stderr


@pytest.mark.parametrize(
    "options", [{"reshuffle": "none", "mix": 2}, {"seed": 9, "epoch": 3, "reshuffle": "piles"}]
)
def test_the_check_of_a_loader_takes_its_options(store: Path, call: Run, options: dict[str, Any]) -> None:
    given = [word for name, value in options.items() for word in (f"--{name}", value)]
    found = json.loads(call("check", "--loader", store, "--json", *given).stdout)
    expected = recshuf.check_loader(store, **options).to_json()
    assert found | {"seconds": 0} == json.loads(json.dumps(expected)) | {"seconds": 0}
    assert expected["scores"] != recshuf.check_loader(store).to_json()["scores"]
    done = call("check", "x", "--provenance", *given)
    assert (done.returncode, done.stdout) == (2, b"")
    assert re.search(rb"--(seed|epoch|reshuffle): is for --loader; leave it out", done.stderr)


def test_a_check_of_two_loaders_is_refused(store: Path, call: Run) -> None:
    done = call("check", "--loader", store, "--loader", store)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"--loader: names 2 stores; check one after the other" in done.stderr


@pytest.mark.parametrize(
    "options",
    [
        ["--against", "x"],
        ["--provenance"],
        ["--html", "page.html"],
        ["--format", "text"],
        ["--memory", "1GB"],
        ["--id", "row"],
    ],
)
def test_a_check_of_a_loader_takes_no_options_of_data(store: Path, call: Run, options: list[str]) -> None:
    done = call("check", "--loader", store, *options)
    assert (done.returncode, done.stdout) == (2, b"")
    assert f"{options[0]}: does not go with --loader" in done.stderr.decode()
