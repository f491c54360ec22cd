"""Streams of shards: their bytes in parts of the planned sizes."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
import xxhash

from recshuf.output.objects.uploader import MOST_STREAMED_BYTES, ShardStream, choose_next_bytes
from recshuf.storage.writing.bucket import MOST_PART_BYTES, MOST_PARTS, Part
from recshuf.storage.writing.parts import PART_BYTES


@pytest.mark.parametrize("write_bytes", [1, 3, 10, 25, 100])
def test_full_parts_are_sent_and_the_rest_is_taken(write_bytes: int):
    content = bytes(range(47))
    sent: list[bytes] = []

    def send(stream: ShardStream, part: bytes) -> None:
        sent.append(part)
        stream.parts.append(Future[Part]())

    stream = ShardStream("key", 10, send)
    for place in range(0, len(content), write_bytes):
        assert stream.write(memoryview(content)[place : place + write_bytes]) <= write_bytes
    assert [len(part) for part in sent] == [10, 10, 10, 10]
    assert stream.waiting_bytes == 7
    assert b"".join(sent) + stream.take() == content
    assert stream.waiting_bytes == 0
    assert stream.written.byte_count == len(content)
    assert stream.written.checksum == xxhash.xxh3_128_hexdigest(content)


def test_a_shard_may_be_a_hundred_times_larger_than_expected():
    sizes = [choose_next_bytes(number, PART_BYTES) for number in range(1, MOST_PARTS + 1)]
    assert sizes == sorted(sizes)
    assert sizes[0] == PART_BYTES
    assert sizes[-1] <= MOST_PART_BYTES
    assert sum(sizes) > 100 * MOST_STREAMED_BYTES
