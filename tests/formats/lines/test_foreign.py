"""Foreign content is refused under any name, compressed or not, and text is not taken for it."""

from __future__ import annotations

import bz2
import gzip
import io
import os
import pickle
import sqlite3
import struct
import sys
import tarfile
import wave
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import InputError
from tests.support.formats.format_tools import OneWayReader, find_open_files

if TYPE_CHECKING:
    from collections.abc import Callable

TABLE = pa.table({"a": list(range(300)), "b": ["line\n"] * 300})


def write_ipc(path: Path, opened: Callable[..., Any]) -> None:
    with path.open("wb") as file, opened(file, TABLE.schema) as writer:
        writer.write_table(TABLE)


def write_hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["a"] = np.arange(300)


def write_sqlite(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("create table a (b int)")
    connection.commit()
    connection.close()


def write_archive(path: Path, kind: str) -> None:
    inner = path.with_name("inner")
    inner.write_bytes(b"line\n" * 99)
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.write(inner)
    else:
        with tarfile.open(
            path, "w", format=tarfile.GNU_FORMAT if kind == "gnu" else tarfile.PAX_FORMAT
        ) as tar:
            tar.add(inner)
    inner.unlink()


WRITERS: dict[str, Callable[[Path], object]] = {
    "NumPy array": lambda path: path.write_bytes(_save(np.save, np.arange(300))),
    "zip archive": lambda path: path.write_bytes(_save(np.savez, a=np.arange(300))),
    "a zip archive": lambda path: write_archive(path, "zip"),
    "tar archive": lambda path: write_archive(path, "gnu"),
    "a tar archive": lambda path: write_archive(path, "pax"),
    "Arrow file": lambda path: write_ipc(path, pa.ipc.new_file),
    "Arrow stream": lambda path: write_ipc(path, pa.ipc.new_stream),
    "Feather file of version 1": lambda path: path.write_bytes(b"FEA1" + bytes(4) + b"line\n"),
    "ORC": lambda path: pyarrow.orc.write_table(TABLE, path),
    "Parquet": lambda path: pq.write_table(TABLE, path),
    "HDF5": write_hdf5,
    "SQLite database": write_sqlite,
    "pickle": lambda path: path.write_bytes(pickle.dumps(list(range(300)))),
    "a Python pickle": lambda path: path.write_bytes(pickle.dumps({"a": 1}, protocol=2)),
    "Avro": lambda path: path.write_bytes(b"Obj\x01\x04\x14avro.codec\x08null\n"),
    "UTF-16": lambda path: path.write_bytes("a\nb\n".encode("utf-16")),
    "7z archive": lambda path: path.write_bytes(b"7z\xbc\xaf\x27\x1c\0\4 rest"),
    "data of compress": lambda path: path.write_bytes(b"\x1f\x9d\x90 rest\n"),
    "lzma data": lambda path: path.write_bytes(b"\x5d\0\0\x80\0" + b"\xff" * 8 + b"rest"),
    "safetensors": lambda path: path.write_bytes(b"\x40" + bytes(7) + b'{"a":{}}'),
    "TFRecord": lambda path: path.write_bytes(b"".join(map(_frame, range(9)))),
    "PDF document": lambda path: path.write_bytes(b"%PDF-1.7\nline\n"),
    "an image": lambda path: path.write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"),
}


KNOWN = ("Parquet", "HDF5", "NumPy array", "Arrow file", "Arrow stream", "tar archive", "a tar archive")
"""Kinds that are read under other names."""


def _frame(record: int) -> bytes:
    """Return a record of TFRecord; its checksums are wrong, and have no bytes of binary data."""
    return struct.pack("<Q4s", 5, b"abcd") + b"line%d" % record + b"efgh"


def _save_silence() -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        sound.writeframes(bytes(4000))
    return file.getvalue()


def _save(save: Callable[..., None], *arrays: Any, **named: Any) -> bytes:
    file = io.BytesIO()
    save(file, *arrays, **named)
    return file.getvalue()


BINARY: dict[str, Callable[[], bytes]] = {
    "program": lambda: Path(sys.executable).resolve().read_bytes()[:99_999],
    "silence": _save_silence,
    "class file": lambda: b"\xca\xfe\xba\xbe\0\0\0\x34\0\x1d\nline\n",
    "integers": lambda: np.arange(300).tobytes(),
    "unknown compression": lambda: np.random.default_rng(1).bytes(9000),
    "Cyrillic UTF-16": lambda: "Ж\nЙЦ\n".encode("utf-16-le"),
}


PACKS: list[Callable[[bytes], bytes]] = [bytes, gzip.compress]


@pytest.mark.parametrize(("number", "what"), [*enumerate(WRITERS)], ids=[*WRITERS])
def test_it_is_refused_from_files_and_streams_but_not_as_text(tmp_path: Path, number: int, what: str) -> None:
    name = ("in.txt", "in.jsonl", "in")[number % 3 if what not in KNOWN else 0]
    path, out, problem = tmp_path / name, tmp_path / "out.txt", rf"begins like .*{what}.*, and not like lines"
    WRITERS[what](path)
    content = path.read_bytes()
    with pytest.raises(InputError, match=rf"{name}: {problem}; \w+ it"):
        recshuf.shuffle(path, out)
    stream = OneWayReader(PACKS[number % 2](content))
    with pytest.raises(InputError, match=f"standard input: {problem}"):
        recshuf.shuffle(
            "-", out, stdin=stream, **({"format": "jsonl"} if number % 4 < 2 or what in KNOWN else {})
        )
    assert [one.name for one in tmp_path.iterdir()] == [name]
    recshuf.shuffle(path, out, format="text")
    assert sorted(out.read_bytes()) == sorted(content + b"\n" * (content[-1:] != b"\n"))


@pytest.mark.parametrize(
    ("what", "name"),
    [*zip(BINARY, ["in.txt", "in.jsonl", "in.csv", "in", "in.txt.gz", "in.csv"], strict=True)],
)
def test_binary_data_is_refused(tmp_path: Path, what: str, name: str) -> None:
    content = BINARY[what]()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(InputError, match=rf"{name}: begins like .* data, and not like lines; convert it"):
        recshuf.shuffle(tmp_path / name, tmp_path / "out.txt")
    with pytest.raises(InputError, match=r"standard input: begins like .* data"):
        recshuf.shuffle("-", tmp_path / "out.txt", stdin=OneWayReader(content))
    recshuf.shuffle(tmp_path / name, tmp_path / "out.txt", format="text", verify=True)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_other_encodings_are_refused_without_a_mark(tmp_path: Path, encoding: str) -> None:
    for name in ("in.txt", "in.csv", "in"):
        (tmp_path / name).write_bytes("first\nsecond\n".encode(encoding))
        with pytest.raises(InputError, match=r"begins like text in UTF-16 or UTF-32.*convert it to UTF-8"):
            recshuf.shuffle(tmp_path / name, tmp_path / "out.txt")


LINES_OF_TEXT = [
    b"stray\0NUL", b"\0" * 9000, "é\0|\0|ü".encode("latin-1"), b"\x1b[0m\0\t\x1a", b"a\x01b\x02c",
    b"\x80\xff\0", b"x" * 5000 + b"\0\1", b"PARENT,CHILD", b"ORC\tELF", b"FEA1,FEA2", b"BZh9", b"PK,name",
    b"GIF", b"LZIP", b"Obj", b"RDX2", b"scrooge DUCKS", b"GGUF", b"CDF,x", b"7z", b"%PDF", b"ARROW1", b"]",
    b"", b"\xff", b"x" * 257 + b"ustar", b"Rar!",
]  # fmt: skip


def test_text_that_begins_like_it_is_text(tmp_path: Path) -> None:
    for line in LINES_OF_TEXT:
        (tmp_path / "in").write_bytes(line + b"\nsecond\n")
        recshuf.shuffle(tmp_path / "in", tmp_path / "out.txt", overwrite=True)
        assert sorted((tmp_path / "out.txt").read_bytes().split(b"\n")) == sorted([line, b"second", b""])


@pytest.mark.parametrize(
    ("content", "options"),
    [(b"a\0b\0c\0d\0e\0", {"zero_terminated": True}), (b"a\0\1\x1eb\0\1\x1e", {"separator": "\x1e"})],
)
def test_other_separators_may_stand_among_nuls(
    tmp_path: Path, content: bytes, options: dict[str, Any]
) -> None:
    (tmp_path / "in").write_bytes(content)
    recshuf.shuffle(tmp_path / "in", tmp_path / "out.txt", verify=True, **options)
    assert sorted((tmp_path / "out.txt").read_bytes()) == sorted(content)


def test_a_shuffle_may_bring_bytes_to_the_top_that_look_foreign(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_bytes(b"line\n" * 2000 + b"\0\1\n" * 1000)
    report = recshuf.shuffle(tmp_path / "in.txt", tmp_path / "out.txt", seed=1, verify=True)
    assert report.records == 3000


def test_it_is_refused_inside_of_a_compressed_file(tmp_path: Path) -> None:
    WRITERS["a tar archive"](tmp_path / "in")
    for what, content in (
        ("tar archive", (tmp_path / "in").read_bytes()),
        ("bz2 data", bz2.compress(b"x\n")),
    ):
        (tmp_path / "in.txt.gz").write_bytes(gzip.compress(content))
        with pytest.raises(InputError, match=rf"in\.txt\.gz: begins like .*{what}"):
            recshuf.shuffle(tmp_path / "in.txt.gz", tmp_path / "out.txt")


def test_it_is_refused_from_a_named_pipe_which_is_closed(tmp_path: Path) -> None:
    WRITERS["NumPy array"](tmp_path / "in")
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit((tmp_path / "pipe").write_bytes, (tmp_path / "in").read_bytes())
        with pytest.raises(InputError, match="pipe: begins like a NumPy array"):
            recshuf.shuffle(tmp_path / "pipe", tmp_path / "out.txt")
        with suppress(BrokenPipeError):
            writing.result()
    assert not find_open_files(tmp_path)
