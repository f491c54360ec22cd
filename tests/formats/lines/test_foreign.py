"""What is no lines, or lines that are no records, is refused under any name, compressed or not; other text is not taken for it."""

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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import InputError
from tests.conftest import Run
from tests.support.formats.format_tools import OneWayReader, find_open_files

TABLE = pa.table({"a": list(range(300)), "b": ["line\n"] * 300})
MARK = b"\xef\xbb\xbf"


def write_ipc(file: BinaryIO, opened: Callable[..., Any]) -> None:
    with opened(file, TABLE.schema) as writer:
        writer.write_table(TABLE)


def write_hdf5(file: BinaryIO) -> None:
    with h5py.File(file, "w") as made:
        made["a"] = np.arange(300)


def write_sqlite(file: BinaryIO) -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("create table a (b int)")
    file.write(connection.serialize())
    connection.close()


def write_tar(file: BinaryIO, kind: int) -> None:
    with tarfile.open(fileobj=file, mode="w", format=kind) as archive:
        archive.addfile(tarfile.TarInfo("inner"))


def write_zip(file: BinaryIO) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("inner", b"line\n" * 99)


def write_silence(file: BinaryIO) -> None:
    with wave.open(file, "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        sound.writeframes(bytes(4000))


def write_frames(file: BinaryIO) -> None:
    """Write records of TFRecord; their checksums are wrong, and have no bytes of binary data."""
    for record in range(9):
        file.write(struct.pack("<Q4s", 5, b"abcd") + b"line%d" % record + b"efgh")


def fill(write: Callable[[BinaryIO], object]) -> bytes:
    """Return what is written to a file."""
    file = io.BytesIO()
    write(file)
    return file.getvalue()


KNOWN: list[tuple[str, bytes]] = [
    ("NumPy array", fill(lambda file: np.save(file, np.arange(300)))),
    ("zip archive", fill(lambda file: np.savez(file, a=np.arange(300)))),
    ("tar archive", fill(lambda file: write_tar(file, tarfile.GNU_FORMAT))),
    ("a tar archive", fill(lambda file: write_tar(file, tarfile.PAX_FORMAT))),
    ("Arrow file", fill(lambda file: write_ipc(file, pa.ipc.new_file))),
    ("Arrow stream", fill(lambda file: write_ipc(file, pa.ipc.new_stream))),
    ("Parquet", fill(lambda file: pq.write_table(TABLE, file))),
    ("HDF5", fill(write_hdf5)),
]
"""Kinds that are read under other names."""
OTHERS: list[tuple[str, bytes]] = [
    ("a zip archive", fill(write_zip)),
    ("Feather file of version 1", b"FEA1" + bytes(4) + b"line\n"),
    ("ORC", fill(lambda file: pyarrow.orc.write_table(TABLE, file))),
    ("SQLite database", fill(write_sqlite)),
    ("pickle", fill(lambda file: pickle.dump(list(range(300)), file))),
    ("a Python pickle", fill(lambda file: pickle.dump({"a": 1}, file, protocol=2))),
    ("Avro", b"Obj\x01\x04\x14avro.codec\x08null\n"),
    ("UTF-16", "a\nb\n".encode("utf-16")),
    ("7z archive", b"7z\xbc\xaf\x27\x1c\0\4 rest"),
    ("data of compress", b"\x1f\x9d\x90 rest\n"),
    ("lzma data", b"\x5d\0\0\x80\0" + b"\xff" * 8 + b"rest"),
    ("safetensors", b"\x40" + bytes(7) + b'{"a":{}}'),
    ("TFRecord", fill(write_frames)),
    ("PDF document", b"%PDF-1.7\nline\n"),
    ("an image", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"),
    ("binary data", Path(sys.executable).resolve().read_bytes()[:99_999]),
    ("binary data", fill(write_silence)),
    ("binary data", b"\xca\xfe\xba\xbe\0\0\0\x34\0\x1d\nline\n"),
    ("binary data", np.arange(300).tobytes()),
    ("binary data", np.random.default_rng(1).bytes(9000)),
    ("binary data", "Ж\nЙЦ\n".encode("utf-16-le")),
    ("UTF-16 or UTF-32", "first\nsecond\n".encode("utf-16-le")),
    ("UTF-16 or UTF-32", "first\nsecond\n".encode("utf-16-be")),
    ("UTF-16 or UTF-32", "first\nsecond\n".encode("utf-32-le")),
    ("UTF-16 or UTF-32", "first\nsecond\n".encode("utf-32-be")),
]
KINDS = {
    "FASTQ": b"@r0\nACGT\n+\nIIII\n@r1\nNNA\n+\nIII\n",
    "FASTQ ": b"@long read\r\n" + b"ACGTN" * 3000 + b"\r\n+\r\n" + b"I" * 15000 + b"\r\n",
    "FASTA": b">chr1 of a genome\nACGTNNacgt\nACG\n>chr2\nA\n",
    "FASTA ": b">sp|P1|X\nMKVLAAGIVGLCAKAYW*\n",
    "PGN": b'\n[Event "a"]\n[Site "b"]\n\n1. e4 e5 1-0\n',
    "CoNLL": b"-DOCSTART- -X- O O\n\nEU NNP B-NP B-ORG\n",
    "CoNLL ": b"EU B-ORG\nrejects O\n. O\n\nPeter B-PER\n\n",
    "CoNLL  ": b"# sent_id = 1\n1\tA\ta\tDET\t_\t_\t2\tdet\t_\t_\n",
    "CoNLL   ": b"1\tA\ta\tDET\t2\n2\tcat\tcat\tN\t0\n\n1\tB\tb\tX\t0\n",
    "subtitles": b"1\r\n00:00:01,000 --> 00:00:02,000\r\nHello\r\n\r\n",
    "XML": b'<?xml version="1.0"?>\n<a>\n</a>\n',
    "HTML": b"<!DOCTYPE html>\n<html>\n",
    "a mailbox": b"From a@b Thu Jan  1 00:00:00 1970\nFrom: a\n\nx\n",
    "ARFF": b"% a\n@RELATION iris\n\n@ATTRIBUTE a NUMERIC\n@DATA\n5.1\n",
    "WARC": b"WARC/1.0\r\nWARC-Type: warcinfo\r\nContent-Length: 2\r\n\r\na\n\r\n\r\n",
    "an SD file": b"\n  made\n\n  1  0  0  0  0  0  0  0  0  0999 V2000\nM  END\n$$$$\n",
    "VCF": b"##fileformat=VCFv4.2\n#CHROM\tPOS\n1\t2\n",
}
"""Text of which a line is no record."""
PACKED = [*KNOWN[2::3], ("bz2 data", bz2.compress(b"x\n"))]
NO_LINES = r"begins like .*{}.*, and not like lines; \w+ it"
NO_RECORDS = "begins like {}, of which a line is not a record; .*; format='text' takes"
NAMES = cycle(["in", "in.txt", "in.csv", "in.txt.gz"])
CASES = [
    *((*case, "in.txt", NO_LINES) for case in KNOWN),
    *((*case, "in.txt.gz", NO_LINES) for case in PACKED),
    *((*case, name.replace("txt.gz", "jsonl"), NO_LINES) for case, name in zip(OTHERS, NAMES, strict=False)),
    *((*case, name, NO_RECORDS) for case, name in zip(KINDS.items(), NAMES, strict=False)),
]


@pytest.mark.parametrize(
    ("what", "content", "name", "problem"), CASES, ids=[f"{what} as {name}" for what, _, name, _ in CASES]
)
def test_what_is_no_lines_or_of_several_is_refused(
    tmp_path: Path, what: str, content: bytes, name: str, problem: str
) -> None:
    """Under a name and from standard input, packed or behind a mark; it is taken where text is asked for."""
    path, out, said = tmp_path / name, tmp_path / "out.txt", problem.format(what.strip())
    options, stream = {"header": "none"}, MARK + content
    if problem == NO_LINES:
        options, stream = {}, gzip.compress(content)
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(InputError, match=rf"{name}: {said}"):
        recshuf.shuffle(path, out, **options)
    format_ = {"format": "jsonl"} if name.startswith("in.txt") else {}
    with pytest.raises(InputError, match=f"standard input: {said}"):
        recshuf.shuffle("-", out, stdin=OneWayReader(stream), **format_)
    assert [one.name for one in tmp_path.iterdir()] == [name]
    recshuf.shuffle(path, out, format="text", verify=name != "in.txt.gz")
    assert sorted(out.read_bytes()) == sorted(content + b"\n" * (content[-1:] != b"\n"))


LINES = [
    b"stray\0NUL\nx\n", b"\0" * 9000 + b"\nx\n", "é\0|\0|ü\nx\n".encode("latin-1"), b"\x1b[0m\0\t\x1a\nx\n", b"a\x01b\x02c\nx\n",
    b"\x80\xff\0\nx\n", b"x" * 5000 + b"\0\1\nx\n", b"PARENT,CHILD\nx\n", b"ORC\tELF\nx\n", b"FEA1,FEA2\nx\n", b"BZh9\nx\n",
    b"PK,name\nx\n", b"GIF\nx\n", b"LZIP\nx\n", b"Obj\nx\n", b"RDX2\nx\n", b"scrooge DUCKS\nx\n", b"GGUF\nx\n", b"CDF,x\nx\n",
    b"7z\nx\n", b"%PDF\nx\n", b"ARROW1\nx\n", b"]\nx\n", b"\nx\n", b"\xff\nx\n", b"x" * 257 + b"ustar\nx\n", b"Rar!\nx\n",
    b"@user hello\nfoo\n+1\n", b"> quoted text\nanswer\n", b">50K\nabc def\n", b"1\ta\tb\n2\tc\td\n", b"1\ta\n\n2\tb\n",
    b'["Event", "a"]\n["x", "y"]\n', b"# sent from home\nx\n", b"A O\nB O\n", b"From here to 2024\nnot a header\n",
    b"1\n2\n00:00\n", b"[section]\nkey\n", b"<a>\n<b>\n", b"##x\n", b"LOCUS,id\n", b"@relation\nx\n", b"WARC/1.0 is old\n", b"version https://example.org\n",
]  # fmt: skip


def test_text_that_begins_like_it_is_lines(tmp_path: Path) -> None:
    for content in LINES:
        (tmp_path / "in").write_bytes(content)
        recshuf.shuffle(tmp_path / "in", tmp_path / "out.txt", overwrite=True)
        assert sorted((tmp_path / "out.txt").read_bytes().split(b"\n")) == sorted(content.split(b"\n"))


@pytest.mark.parametrize(
    ("content", "options"),
    [
        (b"a\0b\0c\0d\0e\0", {"zero_terminated": True}),
        (b"a\0\1\x1eb\0\1\x1e", {"separator": "\x1e"}),
        (KINDS["CoNLL "], {"separator": "\n\n"}),
        (KINDS["VCF"], {"header": 2}),
        (KINDS["an SD file"] * 2, {"separator": "$$$$\n"}),
    ],
)
def test_whoever_says_what_the_records_are_is_not_refused(
    tmp_path: Path, content: bytes, options: dict[str, Any]
) -> None:
    for name in ("in", "in.conll"):
        (tmp_path / name).write_bytes(content)
        recshuf.shuffle(tmp_path / name, tmp_path / f"out {name}", verify=True, **options)
        assert sorted((tmp_path / f"out {name}").read_bytes()) == sorted(content)


def test_a_shuffle_may_bring_bytes_to_the_top_that_look_foreign(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_bytes(b"line\n" * 2000 + b"\0\1\n" * 1000)
    report = recshuf.shuffle(tmp_path / "in.txt", tmp_path / "out.txt", seed=1, verify=True)
    assert report.records == 3000


def test_it_is_refused_from_a_named_pipe_which_is_closed(tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", np.arange(300))
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit((tmp_path / "pipe").write_bytes, (tmp_path / "in.npy").read_bytes())
        with pytest.raises(InputError, match="pipe: begins like a NumPy array"):
            recshuf.shuffle(tmp_path / "pipe", tmp_path / "out.txt")
        with suppress(BrokenPipeError):
            writing.result()
    assert not find_open_files(tmp_path)


@pytest.mark.parametrize("suffix", [".fastq", ".fq.gz", ".fasta", ".pgn", ".conllu", ".warc.wet.gz"])
def test_a_name_is_enough_and_may_be_that_of_an_output(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"in{suffix}"
    path.write_bytes(gzip.compress(b"a\nb\n") if suffix.endswith(".gz") else b"a\nb\n")
    with pytest.raises(InputError, match=f"in{suffix}: is .* by its name, of which a line is not a record"):
        recshuf.shuffle(path, tmp_path / "out.txt")
    assert recshuf.shuffle(path, tmp_path / f"out{suffix}", format="text").records == 2


# Pointers


SUFFIXES = [".jsonl", "", ".xyz", ".csv", ".txt", ".json", ".parquet", ".h5", ".csv.zst", ".jsonl.gz"]
SUFFIXES += [".arrow", ".npy", ".npz", ".tfrecord", ".tar"]
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize 12345\n" % (b"4d" * 32)


@pytest.mark.parametrize(("suffix", "is_named"), [*zip(SUFFIXES, cycle([True, False]), strict=False)])
def test_a_pointer_is_refused_in_place_of_any_file(
    tmp_path: Path, suffix: str, is_named: bool, call: Run
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / f"in{suffix}").write_bytes(POINTER)
    done = call(folder / f"in{suffix}" if is_named else folder, "-o", tmp_path / f"out{suffix}")
    assert done.returncode == 1
    assert f"in{suffix}: is a pointer of Git LFS, and not the file" in done.stderr.decode()
    assert "git lfs pull" in done.stderr.decode()


def test_a_pointer_among_other_files_is_refused(tmp_path: Path) -> None:
    for index in range(600):  # of so many, some are not looked into closely
        (tmp_path / f"{index}.jsonl").write_bytes(POINTER if index == 321 else b'{"a": 1}\n')
    with pytest.raises(InputError, match=r"321\.jsonl: is a pointer of Git LFS"):
        recshuf.shuffle(tmp_path, tmp_path / "out.jsonl")
    with pytest.raises(InputError, match="standard input: is a pointer of Git LFS"):
        recshuf.shuffle("-", "-", stdin=io.BytesIO(POINTER), stdout=io.BytesIO())
