"""Short ways to encode and read compressed bytes."""

import io
from collections.abc import Iterator

from recshuf.formats.compression import open_encoder, open_reader
from recshuf.formats.compression.readers import ByteReader

TEXT = b"".join(b"line %d of some text\n" % (i * i) for i in range(300))


class Trickle(io.BytesIO):
    """Gives a few bytes at a time, as a pipe may."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(min(size or 0, 3))


def open_data(data: bytes, kind: str, *, trickle: bool = False) -> ByteReader:
    return open_reader("in", Trickle(data) if trickle else io.BytesIO(data), kind)


def read_all(data: bytes, kind: str, size: int = 1 << 16, *, trickle: bool = False) -> bytes:
    reader, buffer, out = open_data(data, kind, trickle=trickle), memoryview(bytearray(size)), bytearray()
    while count := reader.readinto(buffer):
        out += buffer[:count]
    assert reader.readinto(buffer) == 0
    reader.close()
    return bytes(out)


def drain(reader: ByteReader) -> None:
    buffer = memoryview(bytearray(1 << 20))
    while reader.readinto(buffer):
        pass


def encode(data: bytes, kind: str, level: int | None = None) -> bytes:
    encoder = open_encoder(kind, level)
    assert encoder is not None
    size = encoder.piece_bytes
    begin = encoder.begin()
    tasks = [encoder.prepare(memoryview(data)[at : at + size]) for at in range(0, len(data), size)]
    encoded = [task() for task in reversed(tasks)]  # the order of the work must not matter
    return begin + b"".join(reversed(encoded)) + encoder.end()


def flip_bits(data: bytes) -> Iterator[bytes]:
    """Yield copies with one bit flipped, one of five bits after the other."""
    changed = bytearray(data)
    for bit in range(0, 8 * len(data), 5):
        changed[bit // 8] ^= 1 << bit % 8
        yield bytes(changed)
        changed[bit // 8] ^= 1 << bit % 8
