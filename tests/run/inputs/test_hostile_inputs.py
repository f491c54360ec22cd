"""Inputs made to do harm: a clean error that names them or the right records, within memory and time.

Those of HDF5 and Parquet are in `tests/formats`, damaged files of all formats in `tests/fuzzing`.
"""

import bz2
import contextlib
import gzip
import lzma
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import recshuf
from recshuf.errors import InputError, OutputError
from recshuf.formats.folders import NameRules
from recshuf.storage.reading.local import expand_input
from tests.support.effort import mostly_slow
from tests.support.processes.command_line import GB, refusal
from tests.support.processes.command_server import Server


@pytest.fixture(scope="module")
def child() -> Iterator[Server]:
    """Return what runs the command line in a process with 3 GB of address space and half a minute of time."""
    with Server(seconds=120, memory_bytes=3 * GB) as server:
        yield server


# Lines


ZEROS: dict[str, Callable[[], bytes]] = {
    ".zst": lambda: zstandard.compress(bytes(GB)),
    ".gz": lambda: gzip.compress(bytes(1 << 26), 6, mtime=0) * 16,
    ".xz": lambda: lzma.compress(bytes(1 << 26), preset=1) * 16,
    ".bz2": lambda: bz2.compress(bytes(1 << 26)) * 16,
}
"""1 GiB, some in members of 64 MiB."""


@pytest.mark.parametrize("suffix", mostly_slow(ZEROS, ".zst"))
def test_a_bomb_is_streamed_and_its_record_refused(tmp_path: Path, child: Server, suffix: str) -> None:
    name = f"in.txt{suffix}"
    (tmp_path / name).write_bytes(ZEROS[suffix]())
    assert (tmp_path / name).stat().st_size < 2 << 20
    line = refusal(child.run([name, "-o", "out.txt", "--memory", "300MB"], tmp_path), tmp_path)
    assert f"{name}: byte 0 of the decompressed data: the record that starts here is longer than" in line
    assert "raise --memory" in line


def test_a_high_ratio_alone_is_no_fault(tmp_path: Path) -> None:
    lines = (b"x" * 99 + b"\n") * 200_000
    (tmp_path / "in.txt.zst").write_bytes(zstandard.compress(lines))
    assert (tmp_path / "in.txt.zst").stat().st_size < len(lines) // 1000
    recshuf.shuffle(tmp_path / "in.txt.zst", tmp_path / "out.txt", seed=1, memory="300MB")
    assert (tmp_path / "out.txt").read_bytes() == lines


@pytest.mark.parametrize("depth", mostly_slow([20_000, 100_000], 20_000))
def test_deep_json_is_a_line_like_others_unless_it_is_parsed(
    tmp_path: Path, child: Server, depth: int
) -> None:
    deep = b'{"a":' * depth + b"1" + b"}" * depth
    (tmp_path / "in.jsonl").write_bytes(b'{"a": 1}\n' + deep + b"\n")
    assert child.run(["in.jsonl", "-o", "lines.jsonl"], tmp_path).status == 0
    assert Counter((tmp_path / "lines.jsonl").read_bytes().split(b"\n")) == Counter([b'{"a": 1}', deep, b""])
    line = refusal(child.run(["in.jsonl", "-o", "out.parquet"], tmp_path), tmp_path)
    assert "in.jsonl: line 2: " in line


# What a path may lead to


def test_an_endless_device_ends_at_the_record_limit(tmp_path: Path, child: Server) -> None:
    ended = child.run(["--format", "text", "/dev/zero", "-o", "out.txt", "--memory", "300MB"], tmp_path)
    assert "/dev/zero: byte 0: the record that starts here is longer than" in refusal(ended, tmp_path)


@pytest.mark.parametrize("kind", ["pipe", "device", pytest.param("socket", marks=pytest.mark.slow)])
def test_parquet_is_not_waited_for_where_there_is_no_file(tmp_path: Path, child: Server, kind: str) -> None:
    path = tmp_path / "in.parquet"
    with contextlib.ExitStack() as stack:
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "socket":
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            with contextlib.chdir(tmp_path):  # the name of a socket may not be long
                listener.bind(path.name)
        else:
            path.symlink_to("/dev/zero")
        line = refusal(child.run(["in.parquet", "-o", "out/"], tmp_path), tmp_path)
    assert "in.parquet: is not a regular file, which Parquet needs; save it to a file first" in line


def test_a_pipe_named_by_its_path_loses_no_byte(tmp_path: Path, child: Server) -> None:
    """A pipe gives its bytes once, so that nothing may be taken from it to tell the format."""
    lines = b"".join(b"%d\n" % number for number in range(50_000))
    os.mkfifo(tmp_path / "pipe")
    threading.Thread(target=feed, args=(tmp_path / "pipe", lines), daemon=True).start()
    assert child.run(["pipe", "-o", "out.txt"], tmp_path).status == 0
    assert Counter((tmp_path / "out.txt").read_bytes().split(b"\n")) == Counter(lines.split(b"\n"))


def feed(path: Path, content: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):
        path.write_bytes(content)


def test_a_socket_is_an_error_for_lines_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("in.txt")
        with pytest.raises(InputError, match=r"^in.txt: "):
            recshuf.shuffle("in.txt", "out.txt")


@pytest.mark.parametrize("name", ["in.parquet", "in.jsonl"])
def test_a_link_to_itself_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / name).symlink_to(name)
    with pytest.raises(InputError, match=r"symbolic links"):
        recshuf.shuffle(tmp_path / name, f"{tmp_path}/out/")


def test_a_link_to_itself_is_replaced_like_any_output(tmp_path: Path) -> None:
    source, loop = tmp_path / "in.txt", tmp_path / "loop"
    source.write_bytes(b"a\nb\n")
    loop.symlink_to(loop.name)
    with pytest.raises(OutputError, match=r"loop: exists already"):
        recshuf.shuffle([source], loop)
    recshuf.shuffle([source], loop, overwrite=True)
    assert sorted(loop.read_bytes().split()) == [b"a", b"b"]


def make_circle(folder: Path) -> None:
    """Make files, and links that lead back to folders above them, several so that the ways double each time."""
    (folder / "deep").mkdir(parents=True)
    for name in ("a.txt", "deep/b.txt"):
        (folder / name).write_bytes(b"line\n")
    for name in ("back", "again", "deep/up"):
        (folder / name).symlink_to(folder, target_is_directory=True)
    (folder / "outside").symlink_to("..", target_is_directory=True)


def test_links_that_lead_back_double_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_circle(tmp_path / "top" / "in")
    heard: list[str] = []
    monkeypatch.chdir(tmp_path / "top")
    files = expand_input("in", NameRules(None), heard.append)
    assert [file.name for file in files] == ["in/a.txt", "in/deep/b.txt"]
    assert sorted(message.partition(":")[0] for message in heard) == [
        "in/again",
        "in/back",
        "in/deep/up",
        "in/outside/in",
    ]


def test_a_glob_that_links_would_lead_in_circles_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_circle(tmp_path / "in")
    monkeypatch.chdir(tmp_path)
    for pattern in ("in/**/*.txt", "**", "i*/**", f"{tmp_path}/in/**"):
        with pytest.raises(InputError, match=r"in/\w+: leads back to a folder above it"):
            expand_input(pattern, NameRules(None), lambda _: None)
    names = [file.name for file in expand_input("in/*.txt", NameRules(None), lambda _: None)]
    assert names == ["in/a.txt"]


# Names


@pytest.mark.parametrize("name", ["a\n\x1b[2Jb", "a\udcffb"])
def test_odd_file_names_stay_in_one_line(tmp_path: Path, child: Server, name: str) -> None:
    (tmp_path / f"{name}.parquet").write_bytes(b"PAR1 no more")
    (tmp_path / f"{name}.txt").write_bytes(b"line\n")
    assert ".parquet: is cut off" in refusal(child.run([f"{name}.parquet", "-o", "out/"], tmp_path), tmp_path)
    ended = child.run([f"{name}.txt", "-o", f"out{name}/"], tmp_path)
    assert (ended.status, len(ended.stderr.splitlines())) == (0, 1)
    assert "\x1b" not in ended.stderr
    assert sorted(os.listdir(tmp_path / f"out{name}")) == ["shard-00000.txt"]


def test_odd_column_names_survive_and_stay_in_one_line(tmp_path: Path, child: Server) -> None:
    names = ["a\nb", "", "\x00", "../x", "a.b", "a", "a"]
    pq.write_table(pa.table([[float("nan")]] * len(names), names), tmp_path / "in.parquet")
    assert child.run(["in.parquet", "-o", "copy.parquet"], tmp_path).status == 0
    assert pq.ParquetFile(tmp_path / "copy.parquet").schema_arrow.names == names
    refusal(child.run(["in.parquet", "-o", "out.jsonl"], tmp_path), tmp_path)


def test_partition_folders_are_names_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "in" / "x=.." / "y\n=%2e%2e%2Fetc" / "z=\n"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"a": [1]}), folder / "part.parquet")
    recshuf.shuffle(tmp_path / "in", f"{tmp_path}/out/")
    [row] = pq.ParquetFile(tmp_path / "out" / "shard-00000.parquet").read().to_pylist()
    assert row["a"] == 1
    assert row["x"] == ".."
    assert set(row) == {"a", "x", "y\n", "z"}
    assert sorted(os.listdir(tmp_path)) == [".out.recshuf.json", "in", "out"]
