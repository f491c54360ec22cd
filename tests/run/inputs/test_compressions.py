"""Compressed lines from end to end, and suffixes of outputs that contradict options."""

import bz2
import gzip
import io
import lzma
import os
import pty
import sys
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import lz4.frame
import pyarrow as pa
import pytest
import zstandard

import recshuf
from recshuf.errors import InputError, UsageError
from recshuf.formats import load_format
from tests.support.formats.format_tools import OneWayReader, OneWayWriter, decompress_file
from tests.support.numbered_files import write_hdf5

PACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".zst": zstandard.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".lz4": lz4.frame.compress,
}
NAMES = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".xz": "xz", ".lz4": "lz4"}
LINES = b"".join(b'{"id": %d}\n' % index for index in range(5_000))


@pytest.fixture
def expected(tmp_path: Path) -> bytes:
    """Return the lines in their order by seed 1."""
    (tmp_path / "plain.jsonl").write_bytes(LINES)
    recshuf.shuffle(tmp_path / "plain.jsonl", tmp_path / "expected.jsonl", seed=1)
    return (tmp_path / "expected.jsonl").read_bytes()


@pytest.mark.parametrize("suffix", PACK)
def test_a_compression_is_written_by_suffix_and_by_option(
    tmp_path: Path, expected: bytes, suffix: str
) -> None:
    plain, contents = tmp_path / "plain.jsonl", set()
    for name, options in {
        f"out.jsonl{suffix}": {"workers": 1},
        f"again.jsonl{suffix}": {"workers": 4, "memory": "64MB"},
        f"asked.jsonl{suffix}": {"compression": NAMES[suffix]},
    }.items():
        recshuf.shuffle(plain, tmp_path / name, seed=1, verify=True, **options)
        contents.add((tmp_path / name).read_bytes())
        assert decompress_file(tmp_path / name) == expected
    stream = OneWayWriter()
    recshuf.shuffle(plain, "-", seed=1, compression=NAMES[suffix], stdout=stream)
    assert contents == {stream.content}


def test_compressed_records_do_not_go_to_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in.txt").write_text("a\nb\n")
    master, terminal = pty.openpty()
    try:
        name = os.ttyname(terminal)
        said = rf"^{name} is a terminal, and the output is compressed \(gzip\); name a file, or give compression='none'"
        with pytest.raises(UsageError, match=said):
            recshuf.shuffle(tmp_path / "in.txt", name, to="text", compression="gzip")
        said = r"^standard output is a terminal, and the output is compressed \(gzip\); redirect it, or give"
        with os.fdopen(os.dup(terminal), "w") as stdout:
            monkeypatch.setattr(sys, "stdout", stdout)
            with pytest.raises(UsageError, match=said):
                recshuf.shuffle(tmp_path / "in.txt", "-", compression="gzip")
    finally:
        os.close(master)
        os.close(terminal)


@pytest.mark.parametrize(
    ("suffix", "name"),
    [*zip(PACK, ["in.jsonl", "in.txt.zst", "in.json", "in", "in.txt"], strict=True), (".zst", "in")],
)
def test_files_are_recognised_by_content_under_any_name_and_keep_their_compression(
    tmp_path: Path, expected: bytes, suffix: str, name: str
) -> None:
    half = LINES.index(b"\n", len(LINES) // 2) + 1
    (tmp_path / name).write_bytes(PACK[suffix](LINES[:half]) + PACK[suffix](LINES[half:]))
    recshuf.shuffle(tmp_path / name, f"{tmp_path}/out/", seed=1, verify=True)
    (made,) = (tmp_path / "out").iterdir()
    assert made.suffix == suffix
    assert decompress_file(made) == expected


def test_one_of_hundreds_of_files_is_recognised_by_content(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    lines = [b"%d\n" % index for index in range(300)]
    for index, line in enumerate(lines):
        (tmp_path / "in" / f"{index}.txt").write_bytes(gzip.compress(line) if index == 277 else line)
    recshuf.shuffle(tmp_path / "in", tmp_path / "out.txt", verify=True)
    assert sorted((tmp_path / "out.txt").read_bytes().splitlines(keepends=True)) == sorted(lines)


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [*((one, "cut") for one in PACK), *((one, "garbage") for one in (".gz", ".zst", ".xz"))],
)
def test_damaged_data_leaves_nothing(tmp_path: Path, suffix: str, damage: str) -> None:
    content = PACK[suffix](LINES)
    content = content[:-5] if damage == "cut" else content + b"garbage"
    (tmp_path / f"in.jsonl{suffix}").write_bytes(content)
    for source, stdin in ((tmp_path / f"in.jsonl{suffix}", None), ("-", OneWayReader(content))):
        with pytest.raises(InputError, match=r"truncated|behind its last"):
            recshuf.shuffle(source, tmp_path / "out.jsonl", stdin=stdin)
    assert [path.name for path in tmp_path.iterdir()] == [f"in.jsonl{suffix}"]


def test_a_conversion_takes_a_compression_that_its_target_has(tmp_path: Path) -> None:
    for suffix in (".bz2", ".xz", ".lz4"):
        (tmp_path / f"in.jsonl{suffix}").write_bytes(PACK[suffix](LINES))
        recshuf.shuffle(tmp_path / f"in.jsonl{suffix}", tmp_path / f"out{suffix}.parquet", seed=1)
        table = pa.parquet.read_table(tmp_path / f"out{suffix}.parquet")
        assert sorted(table["id"].to_pylist()) == list(range(5_000))
        codec = pa.parquet.ParquetFile(tmp_path / f"out{suffix}.parquet").metadata.row_group(0).column(0)
        assert codec.compression == {".lz4": "LZ4"}.get(suffix, "ZSTD")


def test_an_output_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(LINES)
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("x.jsonl.zst", {"compression": "gzip"}, "compression gzip contradicts the suffix, which says zstd"),
        ("x.jsonl.gz", {"compression": "none"}, "compression none contradicts the suffix, which says gzip"),
        ("x.jsonl", {"compression": "xz:3"}, "compression xz contradicts the suffix, which says none"),
        ("b.jsonl", {"to": "parquet"}, r"suffix \.jsonl contradicts to='parquet'"),
        ("b.parquet", {"to": "jsonl"}, r"suffix \.parquet contradicts to='jsonl'"),
        ("a.avro", {}, "Avro is not written; choose a suffix of"),
        ("a.tgz", {}, "a tar archive is not written"),
        ("a.zarr", {}, "a Zarr store is not written; choose a suffix of"),
        ("a.lance", {}, "a Lance data set is not written"),
        ("a.mds", {}, "an MDS shard is not written"),
        ("a.jsonl.br", {}, r"brotli is not written; choose one of \.zst, \.gz, \.bz2, \.xz, \.lz4"),
        ("a.zip", {}, "zip is not written"),
        (
            "a.parquet.xz",
            {},
            "not compressed as a whole; name it .*parquet, and for compression choose one of none, z",
        ),
        ("a.parquet.gz", {}, r"name it .*a\.parquet, and give compression='gzip'"),
        ("a.pq.ZSTD", {}, r"name it .*a\.pq, and give compression='zstd'"),
        ("a.parquet.snappy", {}, "give compression='snappy'"),
        ("a.parquet.br", {}, "parquet is not compressed as a whole"),
        ("a.gz", {"to": "parquet"}, r"name it .*a, and give compression='gzip'"),
        ("a.h5.gz", {}, r"name it .*a\.h5, and give compression='gzip'"),
        ("a.h5.bz2", {}, r"name it .*a\.h5, and for compression choose one of none, gzip"),
        ("a.jsonl.snappy", {}, "snappy is not written"),
    ]
    for name, options, problem in cases:
        with pytest.raises(UsageError, match=problem):
            recshuf.shuffle(tmp_path / "in.jsonl", tmp_path / name, **options)
        assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


FILES: dict[str, Callable[[Path], object]] = {
    "in.parquet": lambda path: pa.parquet.write_table(pa.table({"id": [1, 2]}), path),
    "in.h5": lambda path: write_hdf5(path, 0, 2),
}


@pytest.mark.parametrize(("suffix", "name"), [*zip(PACK, cycle(FILES), strict=False)])
def test_a_file_that_is_compressed_as_a_whole_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, suffix: str
) -> None:
    """Not by its name: one that is not compressed is read, as others do."""
    monkeypatch.chdir(tmp_path)
    FILES[name](Path(name))
    plain = Path(name).read_bytes()
    for packed in (f"{name}{suffix}", f"renamed {name}"):
        Path(packed).write_bytes(PACK[suffix](plain))
        with pytest.raises(InputError, match=r"is compressed with \w+ as a whole.*; decompress it first$"):
            recshuf.shuffle(packed, f"out-{name}")
    Path(f"{name}{suffix}").write_bytes(plain)
    assert recshuf.shuffle(f"{name}{suffix}", f"out-{name}").records == 2


def test_a_level_that_a_compression_lacks_is_refused_for_every_format(tmp_path: Path) -> None:
    for compression, problem in (
        ("zstd:99", "levels go from -131072 to 22"),
        ("gzip:10", "levels go from 0 to 9"),
        ("bz2:0", "levels go from 1 to 9"),
        ("lz4:13", "levels go from 0 to 12"),
        ("none:1", "has no level"),
        ("snappy:1", "has no level"),
        ("lzf:1", "has no level"),
    ):
        for output in ("out.jsonl", "out.parquet", "out.h5", "out/"):
            with pytest.raises(UsageError, match=f"compression {compression}: .*{problem}"):
                recshuf.shuffle("-", f"{tmp_path}/{output}", stdin=io.BytesIO(LINES), compression=compression)
    assert list(tmp_path.iterdir()) == []


def test_a_compression_that_a_package_adds_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recshuf.formats.hdf5.find_spec", lambda _: None)
    monkeypatch.setitem(vars(load_format("hdf5")), "traits", type(load_format("hdf5"))().traits)
    (tmp_path / "in.jsonl").write_bytes(LINES)
    for name in ("zstd", "lz4"):
        problem = r"not possible for hdf5 without recshuf\[hdf5plugin\]; install it, or choose one of none, gzip, lzf$"
        with pytest.raises(UsageError, match=f"^compression {name} is {problem}"):
            recshuf.shuffle(tmp_path / "in.jsonl", tmp_path / "out.h5", compression=name)
    with pytest.raises(
        UsageError, match="compression bz2 is not possible for hdf5; choose one of none, gzip"
    ):
        recshuf.shuffle(tmp_path / "in.jsonl", tmp_path / "out.h5", compression="bz2")
