"""The uploader: few shards on the disk, few parts in memory, and uploads that stay open."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest
import xxhash

from recshuf.errors import OutputError
from recshuf.output.entries import FinishedShard
from recshuf.output.objects import uploader
from recshuf.output.objects.uploader import (
    ShardUploader,
    UploadLimits,
    UploadTarget,
    count_slots,
)
from recshuf.records.digests import Digest
from recshuf.storage import StorageOptions
from recshuf.storage.writing import (
    MOST_PART_BYTES,
    MOST_PARTS,
    PART_BYTES,
    Match,
    Part,
    choose_part_bytes,
)
from recshuf.storage.writing.s3 import S3Bucket
from tests.support.objects.object_server import Bucket, ProxiedRequest

PART = 5 << 20
"""Least bytes of a part but the last."""
PARTS = "PUT .*partNumber"


def make_uploader(
    bucket: Bucket, on_kept: Callable[[FinishedShard], object], part_threads: int = 4
) -> ShardUploader:
    store = S3Bucket(bucket.name, StorageOptions())
    target = UploadTarget(store, "out/{}".format, lambda _: Match(), "token")
    return ShardUploader(target, on_kept, UploadLimits(part_threads, stream_count=2))


@contextmanager
def closing(uploader: ShardUploader) -> Iterator[ShardUploader]:
    yield uploader
    uploader.finish()
    uploader.close()


def make_shard(folder: Path, number: int, content: bytes = b"x") -> tuple[Path, FinishedShard]:
    path = folder / f"shard-{number:05d}.txt"
    path.write_bytes(content)
    return path, FinishedShard(number, path.name, Digest(), None)


def open_stream(
    made: ShardUploader, folder: Path, number: int
) -> tuple[BinaryIO, tuple[Path, FinishedShard]]:
    path = folder / f"shard-{number:05d}.txt"
    stream = made.open_stream(path.name, 1 << 20)
    assert stream is not None
    return stream, (path, FinishedShard(number, path.name, Digest(), None))


def test_as_many_shards_wait_and_parts_are_sent_as_planned(bucket: Bucket, tmp_path: Path):
    """The parts are held until as many shards are in progress as may be."""
    kept: list[FinishedShard] = []
    begun, may_go, lock = threading.Semaphore(0), threading.Event(), threading.Lock()
    sending, counts = [0], [0]

    def count(change: int) -> None:
        with lock:
            sending[0] += change
            counts.append(sending[0])

    def hold(request: ProxiedRequest) -> bool:
        count(1)
        assert may_go.wait(60)
        count(-1)
        return request.forward()

    bucket.proxy.call("POST .*uploads", begun.release, 10**6)
    bucket.proxy.add(PARTS, hold, 10**6)
    added: list[int] = []
    with closing(make_uploader(bucket, kept.append, part_threads=3)) as made:

        def add_all() -> None:
            for number in range(20):
                made.add(*make_shard(tmp_path, number))
                added.append(number)

        thread = threading.Thread(target=add_all)
        thread.start()
        for _ in range(uploader.MOST_SHARDS):
            assert begun.acquire(timeout=60)
        assert bucket.proxy.count("POST .*uploads") == uploader.MOST_SHARDS
        assert len(added) <= uploader.MOST_SHARDS
        may_go.set()
        thread.join()
    assert len(kept) == 20
    assert max(counts) <= 3
    assert not list(tmp_path.glob("shard-*")), "files of shards that the store has"


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploader, "PART_BYTES", PART)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(
    ("size", "in_order"), [(0, False), (2 * PART + 5, True), (PART, False), (PART + 1, False)]
)
def test_a_stream_is_uploaded_and_noted_without_a_file(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, in_order: bool
):
    # As a store of Google needs it.
    monkeypatch.setattr(S3Bucket, "sends_in_order", in_order)
    content, counts = random.Random(1).randbytes(size), [0]
    kept: list[FinishedShard] = []

    def count(request: ProxiedRequest) -> bool:
        counts.append(counts[-1] + 1)
        request.forward()
        counts.append(counts[-1] - 1)
        return True

    if in_order:
        bucket.proxy.add(PARTS, count, 10**6)
    with closing(make_uploader(bucket, kept.append)) as made:
        stream, shard = open_stream(made, tmp_path, 0)
        for place in range(0, size, 1_000_000):
            stream.write(content[place : place + 1_000_000])
        assert kept == bucket.list_keys() == []
        made.add(*shard)
    assert max(counts) == in_order
    assert bucket.list_uploads() == ["out/shard-00000.txt"]
    assert (kept[0].byte_count, kept[0].checksum) == (size, xxhash.xxh3_128_hexdigest(content))
    parts = [Part(*part) for part in kept[0].place["parts"]]
    assert len(parts) == max(1, -(-size // PART))
    store = S3Bucket(bucket.name, StorageOptions())
    store.complete_upload("out/shard-00000.txt", kept[0].place["upload"], parts, Match())
    assert bucket.read("out/shard-00000.txt") == content


@pytest.mark.usefixtures("small_parts")
def test_parts_of_streams_are_sent_while_they_are_written_and_few_are_in_memory(
    bucket: Bucket, tmp_path: Path
):
    """The store holds the parts: the writer waits for them."""
    held, may_go, written = threading.Semaphore(0), threading.Event(), threading.Semaphore(0)

    def hold(request: ProxiedRequest) -> bool:
        held.release()
        assert may_go.wait(60)
        return request.forward()

    bucket.proxy.add(PARTS, hold, 10**6)
    with closing(make_uploader(bucket, [].append, part_threads=2)) as made:
        stream, shard = open_stream(made, tmp_path, 0)

        def write_all() -> None:
            for _ in range(5):
                stream.write(bytes(PART))
                written.release()
            made.add(*shard)

        thread = threading.Thread(target=write_all)
        thread.start()
        for semaphore in (held, held, written, written):
            assert semaphore.acquire(timeout=60)
        # A writer that does not wait has written all by then.
        assert not written.acquire(timeout=0.2)
        may_go.set()
        thread.join()
    assert bucket.proxy.count(PARTS) == 5


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("is_stream", [False, True])
def test_a_part_that_fails_is_told_to_who_waits_and_leaves_no_upload(
    bucket: Bucket, tmp_path: Path, is_stream: bool
):
    bucket.proxy.answer(PARTS, 403, "AccessDenied", times=100)
    kept: list[FinishedShard] = []
    made = make_uploader(bucket, kept.append)
    stream, _ = open_stream(made, tmp_path, 100)

    def write_many() -> None:
        for number in range(100):
            if is_stream:
                stream.write(bytes(PART))
            else:
                made.add(*make_shard(tmp_path, number))

    for call in (write_many, made.finish):
        with pytest.raises(OutputError, match="access is denied"):
            call()
    made.close()
    assert kept == bucket.list_uploads() == bucket.list_keys() == []


# Sizes


def test_large_shards_and_little_memory_need_files(bucket: Bucket):
    made = make_uploader(bucket, [].append)
    assert made.open_stream("x", uploader.MOST_STREAMED_BYTES + 1) is None
    assert made.open_stream("x", uploader.MOST_STREAMED_BYTES) is not None
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
    assert MOST_PARTS * PART_BYTES > 19 * uploader.MOST_STREAMED_BYTES, "a shard may be larger than expected"
