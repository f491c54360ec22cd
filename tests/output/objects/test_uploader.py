"""The uploader: few shards on the disk, few parts in memory, and uploads that stay open."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING

import pytest
import xxhash

from recshuf.errors import OutputError
from recshuf.output.objects import uploader
from recshuf.output.objects.uploader import ShardUploader, UploadLimits, UploadTarget, count_slots
from recshuf.output.stage import FinishedShard, WrittenBytes
from recshuf.records.digests import Digest
from recshuf.storage.settings import StorageOptions
from recshuf.storage.writing.bucket import MOST_PART_BYTES, MOST_PARTS, Match, Part
from recshuf.storage.writing.parts import PART_BYTES, choose_part_bytes
from recshuf.storage.writing.s3 import S3Bucket

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

    from tests.support.objects.object_server import Bucket, ProxiedRequest

PART = 5 << 20
"""Least bytes of a part but the last."""


def make_uploader(bucket: Bucket, kept: list[FinishedShard], part_threads: int = 4) -> ShardUploader:
    target = UploadTarget(
        S3Bucket(bucket.name, StorageOptions()), "out/{}".format, lambda _: Match(), "token"
    )
    return ShardUploader(target, kept.append, UploadLimits(part_threads, stream_count=2))


def make_shard(folder: Path, number: int, content: bytes = b"x") -> FinishedShard:
    path = folder / f"shard-{number:05d}.txt"
    path.write_bytes(content)
    return FinishedShard(number, path, Digest(), None)


def test_shards_are_uploaded_noted_and_deleted(bucket: Bucket, tmp_path: Path):
    kept: list[FinishedShard] = []
    made = make_uploader(bucket, kept)
    shards = [make_shard(tmp_path, number) for number in range(3)]
    for shard in shards:
        made.add(shard)
    made.finish()
    made.close()
    assert sorted(shard.number for shard in kept) == [0, 1, 2]
    assert all(shard.place["token"] == "token" for shard in kept)
    assert list(tmp_path.iterdir()) == bucket.list_keys() == []
    assert sorted(bucket.list_uploads()) == [f"out/shard-{number:05d}.txt" for number in range(3)]


@pytest.mark.parametrize("part_threads", [1, 3])
def test_as_many_shards_wait_and_parts_are_sent_as_planned(bucket: Bucket, tmp_path: Path, part_threads: int):
    """The parts are held until as many shards are in progress as may be."""
    kept: list[FinishedShard] = []
    begun, may_go = threading.Semaphore(0), threading.Event()
    most = [0]
    sending, lock = [0], threading.Lock()

    def begin(_: ProxiedRequest) -> bool:
        begun.release()
        return False

    def hold(request: ProxiedRequest) -> bool:
        with lock:
            sending[0] += 1
            most[0] = max(most[0], sending[0])
        assert may_go.wait(60)
        with lock:
            sending[0] -= 1
        return request.forward()

    bucket.proxy.add("POST .*uploads", begin, 10**6)
    bucket.proxy.add("PUT .*partNumber", hold, 10**6)
    made = make_uploader(bucket, kept, part_threads)
    shards = [make_shard(tmp_path, number) for number in range(20)]
    added: list[int] = []

    def add_all() -> None:
        for shard in shards:
            made.add(shard)
            added.append(shard.number)

    thread = threading.Thread(target=add_all)
    thread.start()
    for _ in range(uploader.MOST_SHARDS):
        assert begun.acquire(timeout=60)
    assert bucket.proxy.count("POST .*uploads") == uploader.MOST_SHARDS
    assert len(added) <= uploader.MOST_SHARDS
    may_go.set()
    thread.join()
    made.finish()
    made.close()
    assert len(kept) == len(shards)
    assert most[0] <= part_threads


def test_a_failed_shard_is_told_to_who_waits_and_leaves_no_upload(bucket: Bucket, tmp_path: Path):
    bucket.proxy.answer("PUT .*partNumber", 403, "AccessDenied", times=100)
    kept: list[FinishedShard] = []
    made = make_uploader(bucket, kept)

    def add_many() -> None:
        for number in range(100):
            made.add(make_shard(tmp_path, number))

    with pytest.raises(OutputError, match="access is denied"):
        add_many()
    with pytest.raises(OutputError, match="access is denied"):
        made.finish()
    made.close()
    assert kept == bucket.list_uploads() == bucket.list_keys() == []


def test_a_shard_that_cannot_be_noted_leaves_no_upload(bucket: Bucket, tmp_path: Path):
    def refuse(_: FinishedShard) -> None:
        raise OutputError("no")

    target = UploadTarget(
        S3Bucket(bucket.name, StorageOptions()), "out/{}".format, lambda _: Match(), "token"
    )
    made = ShardUploader(target, refuse)
    made.add(make_shard(tmp_path, 0))
    with pytest.raises(OutputError, match="no"):
        made.finish()
    made.close()
    assert bucket.list_uploads() == []


def open_stream(made: ShardUploader, folder: Path, number: int) -> tuple[BinaryIO, FinishedShard]:
    shard = FinishedShard(number, folder / f"shard-{number:05d}.txt", Digest(), None)
    stream = made.open_stream(shard.path, 1 << 20)
    assert stream is not None
    return stream, shard


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploader, "PART_BYTES", PART)


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("size", [0, 1, PART, PART + 1, 3 * PART + 5])
@pytest.mark.usefixtures("small_parts")
def test_a_stream_is_uploaded_and_noted_without_a_file(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, in_order: bool
):
    monkeypatch.setattr(S3Bucket, "sends_in_order", in_order)
    content = random.Random(1).randbytes(size)
    kept: list[FinishedShard] = []
    made = make_uploader(bucket, kept)
    stream, shard = open_stream(made, tmp_path, 0)
    for place in range(0, size, 1_000_000):
        stream.write(content[place : place + 1_000_000])
    assert kept == bucket.list_keys() == []
    made.add(shard)
    made.finish()
    made.close()
    assert bucket.list_uploads() == ["out/shard-00000.txt"]
    assert kept[0].written == WrittenBytes(size, xxhash.xxh3_128_hexdigest(content))
    parts = [Part(*part) for part in kept[0].place["parts"]]
    assert len(parts) == max(1, -(-size // PART))
    assert made._target.bucket.is_whole("out/shard-00000.txt", kept[0].place["upload"], parts, size)
    made._target.bucket.complete_upload("out/shard-00000.txt", kept[0].place["upload"], parts, Match())
    assert bucket.read("out/shard-00000.txt") == content
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("small_parts")
def test_parts_of_streams_are_sent_while_they_are_written_and_few_are_in_memory(
    bucket: Bucket, tmp_path: Path
):
    """The store holds the parts: the writer waits for them."""
    held, may_go = threading.Semaphore(0), threading.Event()

    def hold(request: ProxiedRequest) -> bool:
        held.release()
        assert may_go.wait(60)
        return request.forward()

    bucket.proxy.add("PUT .*partNumber", hold, 10**6)
    made = make_uploader(bucket, [], part_threads=2)
    stream, shard = open_stream(made, tmp_path, 0)
    written: list[int] = []

    def write_all() -> None:
        written.extend(stream.write(bytes(PART)) for _ in range(5))
        made.add(shard)

    thread = threading.Thread(target=write_all)
    thread.start()
    assert held.acquire(timeout=60)
    assert held.acquire(timeout=60)
    thread.join(0.2)
    assert len(written) == 2
    may_go.set()
    thread.join()
    made.finish()
    made.close()
    assert bucket.proxy.count("PUT .*partNumber") == 5


@pytest.mark.usefixtures("small_parts")
def test_a_failed_part_of_a_stream_is_told_to_its_writer_and_leaves_no_upload(bucket: Bucket, tmp_path: Path):
    bucket.proxy.answer("PUT .*partNumber", 403, "AccessDenied", times=100)
    made = make_uploader(bucket, [])
    stream, _ = open_stream(made, tmp_path, 0)

    def write_many() -> None:
        for _ in range(100):
            stream.write(bytes(PART))

    with pytest.raises(OutputError, match="access is denied"):
        write_many()
    with pytest.raises(OutputError, match="access is denied"):
        made.finish()
    made.close()
    assert bucket.list_uploads() == bucket.list_keys() == []


@pytest.mark.usefixtures("small_parts")
def test_a_stream_that_is_not_finished_leaves_no_upload(bucket: Bucket, tmp_path: Path):
    made = make_uploader(bucket, [])
    stream, _ = open_stream(made, tmp_path, 0)
    stream.write(bytes(PART + 1))
    open_stream(made, tmp_path, 1)
    made.close()
    assert bucket.proxy.count("POST .*uploads") == 1
    assert bucket.list_uploads() == []


def test_large_shards_and_little_memory_need_files(bucket: Bucket, tmp_path: Path):
    made = make_uploader(bucket, [])
    assert made.open_stream(tmp_path / "x", uploader.MOST_STREAMED_BYTES + 1) is None
    assert made.open_stream(tmp_path / "x", uploader.MOST_STREAMED_BYTES) is not None
    made.close()
    assert not UploadLimits.within(95 << 20, 2).can_stream(1)
    assert UploadLimits.within(96 << 20, 2).can_stream(1)
    for size in (0, 10 << 20, 95 << 20, 96 << 20, 1 << 40):
        assert UploadLimits.within(size, 2).memory_bytes <= max(size, PART_BYTES)


def test_parts_and_slots_fit_any_size():
    for size in (0, 1, 8 << 20, 10**9, 83_886_080_000, 83_886_080_001, 10**13, MOST_PARTS * MOST_PART_BYTES):
        part_bytes = choose_part_bytes(size)
        assert 8 << 20 <= part_bytes <= MOST_PART_BYTES
        assert part_bytes * MOST_PARTS >= size
        assert 2 <= count_slots(size) <= uploader.MOST_SHARDS
        assert count_slots(size) == 2 or count_slots(size) * size <= 256 << 20
    assert choose_part_bytes(MOST_PARTS * MOST_PART_BYTES + 1) > MOST_PART_BYTES
