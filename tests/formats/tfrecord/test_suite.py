"""TFRecord: frames are kept byte for byte, whoever wrote them, and damaged ones are told."""

from __future__ import annotations

import gzip
import io
import json
import re
import struct
import sys
import zlib
from typing import TYPE_CHECKING

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import ConversionError, InputError, UsageError
from recshuf.formats.tfrecord import FORMAT
from tests.support.effort import mostly_slow
from tests.support.formats.format_tools import OneWayReader, decompress_file
from tests.support.formats.line_suite import LineSuite

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Run


def checksum(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def frame(payload: bytes) -> bytes:
    length = struct.pack("<Q", len(payload))
    return length + checksum(length) + payload + checksum(payload)


def parse(content: bytes) -> list[bytes]:
    """Return the payloads of whole frames: the oracle."""
    payloads, at = [], 0
    while at < len(content):
        (size,) = struct.unpack_from("<Q", content, at)
        assert content[at + 8 : at + 12] == checksum(content[at : at + 8])
        payload = content[at + 12 : at + 12 + size]
        assert content[at + 12 + size : at + 16 + size] == checksum(payload)
        payloads.append(payload)
        at += 16 + size
    return payloads


PAYLOADS = [b"%d:" % row + bytes(range(256)) * (row % 3) + b"\n" * (row % 5) for row in range(300)]
CONTENT = b"".join(map(frame, PAYLOADS))


class TestTFRecord(LineSuite):
    format = FORMAT
    bulk_rows = 10_000

    def make_content(self, index: int, count: int) -> bytes:
        return b"".join(frame(b"%d %d %s" % (index, row, b"\n\0\xff" * (row % 40))) for row in range(count))

    def read_back(self, path: Path) -> list[bytes]:
        return parse(decompress_file(path))

    def records_of(self, batch: pa.RecordBatch) -> list[bytes]:
        return [payload for one in batch.column("record").to_pylist() for payload in parse(one)]


def test_a_payload_may_begin_like_a_byte_order_mark_and_have_no_bytes(tmp_path: Path) -> None:
    payloads = [bytes(0xBFBBEF), b"", b"\x78\x9c"]
    (tmp_path / "a.tfrecord").write_bytes(b"".join(map(frame, payloads)))
    recshuf.shuffle(tmp_path / "a.tfrecord", tmp_path / "b.tfrecord", verify=True)
    assert sorted(parse((tmp_path / "b.tfrecord").read_bytes())) == sorted(payloads)


@pytest.mark.parametrize(
    "name",
    mostly_slow(
        ["train.tfrecord-00000-of-00010", "a.tfrec", "a.tfrecords.gz", "a.tfrecord", "b"],
        *("train.tfrecord-00000-of-00010", "a.tfrecords.gz", "b"),
    ),
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress, zlib.compress])
def test_names_and_compressions(tmp_path: Path, name: str, pack: object) -> None:
    if (pack is gzip.compress) is not name.endswith(".gz") and name not in ("b", "a.tfrecord"):
        return
    path = tmp_path / name
    path.write_bytes(pack(CONTENT))  # type: ignore[operator] # one of the three
    given = {"format": "tfrecord"} if pack is zlib.compress and name == "b" else {}
    recshuf.shuffle(path, tmp_path / "out.tfrecord", seed=1, compression="none", **given)
    written = parse((tmp_path / "out.tfrecord").read_bytes())
    assert sorted(written) == sorted(PAYLOADS)
    if name not in ("b", "a.tfrecord"):
        recshuf.shuffle(tmp_path, f"{tmp_path}/out/", seed=1, shards=1)
    with (
        pytest.warns(recshuf.errors.RecshufWarning) if pack is zlib.compress else pytest.MonkeyPatch.context()
    ):
        recshuf.shuffle(path, f"{tmp_path}/shards/", seed=1, **given)
    recshuf.shuffle(tmp_path / "shards", tmp_path / "again.tfrecord", seed=2)
    assert (tmp_path / "again.tfrecord").read_bytes().startswith(b"\x1f\x8b") is (pack is not bytes)
    (shard,) = (tmp_path / "shards").glob("*.tfrecord*")
    assert parse(decompress_file(shard)) == written


def test_streams_stores_and_tables(tmp_path: Path) -> None:
    out, source = io.BytesIO(), tmp_path / "a.tfrecord"
    source.write_bytes(CONTENT)
    recshuf.shuffle("-", "-", format="tfrecord", stdin=OneWayReader(CONTENT), stdout=out, seed=5)
    payloads = parse(out.getvalue())
    assert sorted(payloads) == sorted(PAYLOADS)
    recshuf.shuffle(source, tmp_path / "a.parquet", seed=5, verify=True)
    assert pq.read_table(tmp_path / "a.parquet")["record"].to_pylist() == payloads
    recshuf.shuffle(tmp_path / "a.parquet", tmp_path / "b.tfrecord", verify=True)
    assert sorted(parse((tmp_path / "b.tfrecord").read_bytes())) == sorted(PAYLOADS)
    recshuf.scatter(source, tmp_path / "store", seed=5)
    recshuf.gather(tmp_path / "store", tmp_path / "c.tfrecord", verify=True)
    assert parse((tmp_path / "c.tfrecord").read_bytes()) == payloads
    for table in (pa.table({"a": [1]}), pa.table({"a": ["x", None]}), pa.table({"a": ["x"], "b": ["y"]})):
        pq.write_table(table, tmp_path / "bad.parquet")
        with pytest.raises(ConversionError, match=r"TFRecord (holds one column|cannot hold nulls)"):
            recshuf.shuffle(tmp_path / "bad.parquet", tmp_path / "d.tfrecord")


def flip(at: int) -> bytes:
    content = bytearray(CONTENT)
    content[at] ^= 1
    return bytes(content)


SECOND = len(frame(PAYLOADS[0]))
HUGE = struct.pack("<Q", 1 << 60)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (flip(3), "byte 0: the length of its first record has another checksum"),
        (flip(SECOND + 1), f"byte {SECOND}: the length of the record that starts here is damaged"),
        (flip(SECOND + 9), f"byte {SECOND}: the length of the record that starts here is damaged"),
        (flip(SECOND + 13), f"byte {SECOND}: the payload of the record that starts here is damaged"),
        (CONTENT[:-1], "the record that starts here is cut off: the file is truncated"),
        (CONTENT + b"\0" * 7, f"byte {len(CONTENT)}: the record that starts here is cut off"),
        (CONTENT + HUGE + b"1234" * 9, f"byte {len(CONTENT)}: the length of the record that starts here is damaged"),
        (CONTENT + b"\xff" * 40, f"byte {len(CONTENT)}: the length of the record that starts here is damaged"),
        (CONTENT + HUGE + checksum(HUGE), f"byte {len(CONTENT)}: the record that starts here is cut off"),
        (frame(b"a") + HUGE + checksum(HUGE) + bytes(1 << 20), "byte 17: the record that starts here is "),
    ],
)  # fmt: skip
def test_damaged_frames_are_told_by_place(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.tfrecord").write_bytes(content)
    problem = message.replace("byte 0: the", "byte 0: is no TFRecord: the")
    with pytest.raises(InputError, match=re.escape(problem)):
        recshuf.shuffle(tmp_path / "a.tfrecord", tmp_path / "b.tfrecord")
    assert not (tmp_path / "b.tfrecord").exists()


@pytest.mark.parametrize("kind", ["parquet", "tfrecord"])
def test_a_damaged_payload_is_set_aside(tmp_path: Path, call: Run, kind: str) -> None:
    (tmp_path / "a.tfrecord").write_bytes(flip(SECOND + 13))
    bad, out = tmp_path / "bad.jsonl", tmp_path / f"b.{kind}"
    done = call(tmp_path / "a.tfrecord", "-o", out, "--on-bad-record", f"quarantine:{bad}")
    assert done.returncode == 0, done.stderr
    recshuf.shuffle(out, tmp_path / "a.parquet")
    assert sorted(pq.read_table(tmp_path / "a.parquet")["record"].to_pylist()) == sorted(
        [PAYLOADS[0], *PAYLOADS[2:]]
    )
    (told,) = map(json.loads, bad.read_bytes().splitlines())
    assert (told["line"], told["reason"]) == (2, "its checksum differs")


def test_without_the_library_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.tfrecord").write_bytes(CONTENT)
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    with pytest.raises(UsageError, match=r"pip install 'recshuf\[tfrecord\]'"):
        recshuf.shuffle(tmp_path / "a.tfrecord", tmp_path / "b.tfrecord")
