"""What an error proposes, the running command has, and does."""

import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.cli.commands import commands
from recshuf.piles.kept.upkeep import drop_store
from tests.conftest import Result, Run
from tests.formats.tfrecord.test_suite import frame
from tests.support.objects.object_server import Bucket
from tests.support.processes.command_line import COMMAND, DEADLINE, assert_one_line, numbers, wait_until

_FLAG = re.compile(r"(?<![\w./-])--[a-z][a-z-]*|(?<!\S)-[a-z]\b")
_OTHER_COMMAND = re.compile(r"recshuf (?:[a-z]|INPUT)|GNU tar")
"""What follows is for another command."""
_OTHER_RUN = "; then scatter the inputs anew"
"""Says that options are those of another command."""
_TEXTS = {
    "line.jsonl": b'{"a":1}\n{"a":\n',
    "empty.jsonl": b'{"a":1}\n\n',
    "types.jsonl": b'{"a":1}\n{"a":"x"}\n',
    "nan.jsonl": b'{"a":1}\n{"a":NaN}\n',
    "width.csv": b"a,b\n1,2\n3\n",
    "quote.csv": b'a,b\n3,"x"y\n4,5\n',
    "headers/1.csv": b"a,b\n1,2\n",
    "headers/2.csv": b"a,b,c\n1,2,3\n",
    "bytes.txt": b"a\n\xff\n",
    "long.txt": b"a" * 2000 + b"\n",
    "bad.tfrecord": frame(b"abc") + frame(b"defg")[:-1] + b"?",
}
_LINES = [
    "verify {} {}", "verify {} good.parquet", "verify good.parquet {}", "verify --dedup a {} {}",
    "check {} --column a", "check {} --against {}", "check {} --provenance", "picture {} --column a -o p.png",
    "scatter {} -o {}.store", "window store --append {}", "{} -o out.parquet --overwrite", "{} -o out.npy --overwrite",
    *(f"gather {{}}.store -o out/ --overwrite --to {to}" for to in ("text", "npy", "csv", "megatron", "tfrecord")),
]  # fmt: skip


def _fill(folder: Path) -> list[str]:
    """Write inputs with common errors, a good one and a store, and return the names of those with errors."""
    for name, content in _TEXTS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    tables = {
        "kinds": [{"a": [1]}, {"a": [1.5]}],
        "names": [{"a": [1]}, {"b": [1]}],
        "two": [{"a": [1], "b": [None]}],
    }
    for name, files in tables.items():
        (folder / name).mkdir()
        for index, columns in enumerate(files):
            pq.write_table(pa.table(columns), folder / name / f"{index}.parquet")
    with h5py.File(folder / "lengths.h5", "w") as file:
        file["a"], file["b"] = np.arange(3), np.arange(5)
    np.savez(folder / "lengths.npz", a=np.arange(3), b=np.arange(5))
    pq.write_table(pa.table({"a": [1]}), folder / "good.parquet")
    recshuf.scatter(folder / "good.parquet", folder / "store")
    return [*dict.fromkeys(name.split("/")[0] for name in _TEXTS), *tables, "lengths.h5", "lengths.npz"]


def _list_flags(line: str) -> set[str]:
    command = commands.commands.get(line.split()[0], commands.default)
    own = command.list_own().values()
    return {flag for one in (command.params, *own) for option in one for flag in option.opts} | {"--help"}


@pytest.mark.usefixtures("folder")
def test_errors_propose_options_of_their_command(call: Run, tmp_path: Path):
    proposed = set()
    for name in _fill(tmp_path):
        for line in _LINES:
            result = call(*line.format(name, name).split())
            message = _OTHER_COMMAND.split(result.stderr.decode())[0]
            if _OTHER_RUN in message:
                continue
            named = {flag for flag in _FLAG.findall(message) if f" {flag}" not in line}
            assert named <= _list_flags(line), (line.format(name, name), message)
            proposed |= {(line.split()[0], flag) for flag in named}
    assert {("{}", "--on-bad-record"), ("scatter", "--on-bad-record"), ("verify", "--widen")} <= proposed
    assert len(proposed) > 10


@pytest.mark.usefixtures("folder")
def test_functions_propose_their_arguments(tmp_path: Path):
    (tmp_path / "a.csv").write_bytes(_TEXTS["width.csv"])
    with pytest.raises(
        recshuf.errors.InputError, match=r"has 2; correct it, or set .* on_bad_record="
    ) as caught:
        recshuf.shuffle("a.csv", "out.parquet")
    whole = str(caught.value)
    with pytest.raises(recshuf.errors.InputError) as caught:
        recshuf.check("a.csv", column="a")
    assert str(caught.value) == whole.partition(", or set")[0]


# Stores that are damaged, half deleted or silent: the advice of every error works as it is written, and a signal ends the wait


RECORDS = [b"%d" % number for number in range(1000)]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store whose path a shell takes apart."""
    (tmp_path / "in.txt").write_bytes(b"\n".join([*RECORDS, b""]))
    path = tmp_path / "my store"
    recshuf.scatter(tmp_path / "in.txt", path, seed=5, piles=3)
    return path


def scatter(store: Path, call: Run) -> Result:
    return call("scatter", store.parent / "in.txt", "-o", store, "--seed", "5", "--piles", "3")


def gather(store: Path, call: Run) -> Result:
    return call("gather", store, "-o", store.parent / "out.txt", "--overwrite")


def follow(advice: bytes, call: Run) -> None:
    """Give the command that an error names."""
    assert advice.count(b"\n") == 1
    assert advice.count(b"recshuf store drop") == 1
    found = re.search(rb"delete the store with recshuf (store drop .*), and make it again", advice)
    assert found
    done = call(*shlex.split(os.fsdecode(found[1])))
    assert (done.returncode, done.stderr) == (0, b"")


def exchange_set(file: Path) -> None:
    folder = file.parents[2]
    recshuf.scatter(folder / "in.txt", folder / "other", seed=6, piles=2)
    (folder / "other" / "sets" / file.name).replace(file)


def spoil_slice(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:48] + b"\xff" * 32 + content[80:])


SPOILS: dict[str, Callable[[Path], object]] = {
    "snapshot spoiled": lambda file: (file.parents[1] / "snapshot-000001.json").write_bytes(b"?"),
    "set lost": Path.unlink,
    "set cut": lambda file: os.truncate(file, 100),
    "set of another store": exchange_set,
    "slice spoiled": spoil_slice,
}


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS)
def test_a_damaged_store_is_made_again(store: Path, call: Run, spoil: Callable[[Path], object]) -> None:
    assert gather(store, call).returncode == 0
    expected = (store.parent / "out.txt").read_bytes()
    (file,) = (store / "sets").iterdir()
    spoil(file)
    done = gather(store, call)
    assert done.returncode == 1
    assert scatter(store, call).returncode == 1
    follow(done.stderr, call)
    assert not store.exists()
    assert (scatter(store, call).returncode, gather(store, call).returncode) == (0, 0)
    assert (store.parent / "out.txt").read_bytes() == expected


class Killed(BaseException):
    """Ends a function as the system ends a process."""


def stop_after(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a number of files and folders be deleted, and then nothing more."""
    left = [count]
    for name in ("unlink", "rmdir"):
        delete = getattr(os, name)

        def stop(*arguments: Any, delete: Callable[..., None] = delete, **options: Any) -> None:
            if not left[0]:
                raise Killed
            left[0] -= 1
            delete(*arguments, **options)

        monkeypatch.setattr(os, name, stop)


def test_a_drop_that_is_stopped_anywhere_is_given_again(
    store: Path, call: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What reads the store meanwhile says so, and what makes it again says how."""
    reader = recshuf.PileLoader(store, 10)  # keeps the first snapshot
    with recshuf.PileStore(store).update() as update:
        update.append(store.parent / "in.txt")
    del reader
    kept = store.parent / "kept"
    store.rename(kept)
    is_done, count = False, 0
    while not is_done:
        shutil.rmtree(store, ignore_errors=True)
        shutil.copytree(kept, store)
        with monkeypatch.context() as patch:
            stop_after(count, patch)
            try:
                drop_store(store)
                is_done = True
            except Killed:
                pass
        count += 1
        if count == 1 or is_done:
            continue  # nothing was deleted, or all
        for done in (call("store", "info", store), call("store", "verify", store), gather(store, call)):
            assert (done.returncode in (1, 2), done.stderr.count(b"\n")) == (True, 1)
            assert os.fsencode(store) in done.stderr
            if list(store.iterdir()):
                assert re.search(rb"recshuf store drop '.*/my store', and make it again\n$", done.stderr)
            else:
                assert b"run recshuf scatter again\n" in done.stderr
        assert call("store", "drop", store).returncode == 0
        assert not store.exists()
    assert count > 5
    assert scatter(store, call).returncode == 0


# A signal ends a run within seconds that waits for a store which takes requests and never answers


@pytest.mark.parametrize(
    ("waits_for", "number"),
    [
        ("GET .*/in.txt", signal.SIGINT),
        *(
            pytest.param(one, signal.SIGTERM, marks=pytest.mark.slow)
            for one in ("HEAD .*/in.txt", "PUT .*partNumber", "PUT .*partNumber, piles too")
        ),
    ],
)
def test_a_signal_ends_the_wait(tmp_path: Path, s3_bucket: Bucket, waits_for: str, number: signal.Signals):
    """For a request of an input; or for a part of an upload, which is to be aborted, and the journal to be deleted."""
    request, _, piles = waits_for.partition(", ")
    temp_dir = f"{s3_bucket.url}/tmp/" if piles else tmp_path
    if "in.txt" in request:
        s3_bucket.put("in.txt", numbers(1000))
        s3_bucket.proxy.hang(request)
        command = [*COMMAND, f"{s3_bucket.url}/in.txt", "-o", tmp_path / "out.txt"]
    else:
        (tmp_path / "in.txt").write_bytes(numbers(1000))
        s3_bucket.proxy.call("POST .*uploads", lambda: s3_bucket.proxy.hang(""))
        command = [*COMMAND, tmp_path / "in.txt", "-o", f"{s3_bucket.url}/out/", "--temp-dir", temp_dir]
    before = list(tmp_path.iterdir())
    with subprocess.Popen(command, stderr=subprocess.PIPE) as child:
        wait_until(lambda: s3_bucket.proxy.count(request) > 0)
        child.send_signal(number)
        assert child.wait(DEADLINE) == 128 + number
        assert child.stderr is not None
        said = child.stderr.read()
    if before:
        assert b"stopped by SIGTERM" in said
    else:
        assert_one_line(said, number.name)
    assert list(tmp_path.iterdir()) == before
