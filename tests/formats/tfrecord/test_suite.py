"""TFRecord: frames are kept byte for byte, whoever wrote them, and damaged ones are told."""

import base64
import gzip
import json
import re
import struct
import sys
import zlib
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import ConversionError, InputError, RecshufWarning, UsageError
from recshuf.formats.tfrecord import FORMAT
from tests.conftest import Run
from tests.support.effort import mostly_slow
from tests.support.formats.file_suite import LineSuite, refused
from tests.support.formats.format_tools import decompress_file


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
    has_checksums = True
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


NAMED = [
    *((name, pack) for name in ("train.tfrecord-00000-of-00010", "b") for pack in (bytes, zlib.compress)),
    *((name, gzip.compress) for name in ("b", "a.tfrecords.gz", "a.tfrecord")),
    *(("a.tfrec", pack) for pack in (bytes, zlib.compress)),
]


@pytest.mark.parametrize(("name", "pack"), mostly_slow(NAMED, *NAMED[:6]))
def test_names_and_compressions(tmp_path: Path, name: str, pack: Callable[[bytes], bytes]) -> None:
    path, is_zlib = tmp_path / name, pack is zlib.compress
    path.write_bytes(pack(CONTENT))
    given = {"format": "tfrecord"} if is_zlib and name == "b" else {}
    recshuf.shuffle(path, tmp_path / "out.tfrecord", seed=1, compression="none", **given)
    written = parse((tmp_path / "out.tfrecord").read_bytes())
    assert sorted(written) == sorted(PAYLOADS)
    if name not in ("b", "a.tfrecord"):
        recshuf.shuffle(tmp_path, f"{tmp_path}/out/", seed=1, shards=1)
    with pytest.warns(RecshufWarning, match="with zlib; shards are") if is_zlib else nullcontext():
        recshuf.shuffle(path, f"{tmp_path}/shards/", seed=1, **given)
    recshuf.shuffle(tmp_path / "shards", tmp_path / "again.tfrecord", seed=2)
    assert (tmp_path / "again.tfrecord").read_bytes().startswith(b"\x1f\x8b") is (pack is not bytes)
    (shard,) = (tmp_path / "shards").glob("*.tfrecord*")
    assert parse(decompress_file(shard)) == written


def test_payloads_are_a_column_and_no_other_table_is_written(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(CONTENT)
    for name in ("a.parquet", "b.tfrecord", "c.jsonl", "d.json"):
        recshuf.shuffle(tmp_path / "a.tfrecord", tmp_path / name, seed=5, verify=True)
    payloads = parse((tmp_path / "b.tfrecord").read_bytes())
    assert pq.read_table(tmp_path / "a.parquet").to_pydict() == {"record": payloads}
    objects = [{"record": base64.b64encode(payload).decode()} for payload in payloads]
    assert [json.loads(line) for line in (tmp_path / "c.jsonl").read_text().splitlines()] == objects
    assert json.loads((tmp_path / "d.json").read_text()) == objects
    for columns, said in (
        ({"a": [1]}, "TFRecord holds one column of strings or bytes, not 'a' of int64; choose one"),
        ({}, "TFRecord holds one column of strings or bytes, not none; choose one"),
        ({"a": ["x"], "b": ["y"]}, "TFRecord holds one column of strings or bytes, not 'a' of string, 'b'"),
        ({"a": ["x", None]}, "'a': TFRecord cannot hold nulls"),
    ):
        refused(ConversionError, said, pa.table(columns), tmp_path / "d.tfrecord")


def flip(at: int) -> bytes:
    content = bytearray(CONTENT)
    content[at] ^= 1
    return bytes(content)


SECOND, END = len(frame(PAYLOADS[0])), len(CONTENT)
HUGE = struct.pack("<Q", 1 << 60)
LENGTH, CUT_OFF = (
    "the length of the record that starts here is damaged",
    "the record that starts here is cut off",
)
DAMAGE = {
    "first length": (flip(3), "byte 0: is no TFRecord: the length of its first record has another checksum"),
    "length": (flip(SECOND + 1), f"byte {SECOND}: {LENGTH}"),
    "checksum of a length": (flip(SECOND + 9), f"byte {SECOND}: {LENGTH}"),
    "payload": (flip(SECOND + 13), f"byte {SECOND}: the payload of the record that starts here is damaged"),
    "truncated": (CONTENT[:-1], f"{CUT_OFF}: the file is truncated"),
    "longer": (CONTENT + b"\0" * 7, f"byte {END}: {CUT_OFF}"),
    "huge length": (CONTENT + HUGE + b"1234" * 9, f"byte {END}: {LENGTH}"),
    "negative length": (CONTENT + b"\xff" * 40, f"byte {END}: {LENGTH}"),
    "huge frame": (CONTENT + HUGE + checksum(HUGE), f"byte {END}: {CUT_OFF}"),
    "huge frame that goes on": (frame(b"a") + HUGE + checksum(HUGE) + bytes(1 << 20), "byte 17: the record that starts here is "),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_frames_are_told_by_place(tmp_path: Path, kind: str) -> None:
    content, said = DAMAGE[kind]
    (tmp_path / "a.tfrecord").write_bytes(content)
    refused(InputError, re.escape(said), tmp_path / "a.tfrecord", tmp_path / "b.tfrecord")
    assert not (tmp_path / "b.tfrecord").exists()


@pytest.mark.parametrize("kind", ["parquet", "tfrecord"])
def test_a_damaged_payload_is_set_aside(tmp_path: Path, call: Run, kind: str) -> None:
    (tmp_path / "a.tfrecord").write_bytes(flip(SECOND + 13))
    bad, out = tmp_path / "bad.jsonl", tmp_path / f"b.{kind}"
    done = call(tmp_path / "a.tfrecord", "-o", out, "--on-bad-record", f"quarantine:{bad}")
    assert done.returncode == 0, done.stderr
    recshuf.shuffle(out, tmp_path / "a.parquet")
    found = pq.read_table(tmp_path / "a.parquet")["record"].to_pylist()
    assert sorted(found) == sorted([PAYLOADS[0], *PAYLOADS[2:]])
    (told,) = map(json.loads, bad.read_bytes().splitlines())
    assert (told["line"], told["reason"]) == (2, "its checksum differs")
    size = len(frame(PAYLOADS[1]))
    assert base64.b64decode(told["record_base64"]) == flip(SECOND + 13)[SECOND : SECOND + size]


def test_without_the_library_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.tfrecord").write_bytes(CONTENT)
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    said = r"pip install 'recshuf\[tfrecord\]'"
    refused(UsageError, said, tmp_path / "a.tfrecord", tmp_path / "b.tfrecord")
