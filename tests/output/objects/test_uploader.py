"""The uploader: few shards on the disk, few parts in memory, and uploads that stay open."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from recshuf.errors import OutputError
from recshuf.output.objects import uploader
from recshuf.output.objects.uploader import ShardUploader, UploadTarget, choose_part_bytes, count_slots
from recshuf.output.transaction import FinishedShard
from recshuf.records.digests import Digest
from recshuf.storage.bucket import MOST_PART_BYTES, MOST_PARTS, Match
from recshuf.storage.s3 import S3Bucket
from recshuf.storage.settings import StorageOptions

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.object_server import Bucket, ProxiedRequest


def make_uploader(bucket: Bucket, kept: list[FinishedShard], part_threads: int = 4) -> ShardUploader:
    target = UploadTarget(
        S3Bucket(bucket.name, StorageOptions()), "out/{}".format, lambda _: Match(), "token"
    )
    return ShardUploader(target, kept.append, part_threads)


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


def test_parts_and_slots_fit_any_size():
    for size in (0, 1, 8 << 20, 10**9, 83_886_080_000, 83_886_080_001, 10**13, MOST_PARTS * MOST_PART_BYTES):
        part_bytes = choose_part_bytes(size)
        assert 8 << 20 <= part_bytes <= MOST_PART_BYTES
        assert part_bytes * MOST_PARTS >= size
        assert 2 <= count_slots(size) <= uploader.MOST_SHARDS
        assert count_slots(size) == 2 or count_slots(size) * size <= 256 << 20
    assert choose_part_bytes(MOST_PARTS * MOST_PART_BYTES + 1) > MOST_PART_BYTES
