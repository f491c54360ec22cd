"""Mutations: one valid file in, one damaged file out, from the draws of a generator alone."""

from collections.abc import Sequence

import numpy as np

from tests.fuzzing.seeds import Seed

EXTREMES = (
    *(bytes([value]) for value in (0, 1, 0x7F, 0x80, 0xFF)),
    *(
        value.to_bytes(size, order, signed=value < 0)
        for size in (2, 4, 8)
        for value in (0, -1, 1 << (8 * size - 2), (1 << (8 * size - 1)) - 1, -(1 << (8 * size - 1)))
        for order in ("little", "big")
    ),
    b"\xff\xff\xff\xff\x0f",  # variable-length integers, as thrift has them
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80",
)


def mutate(rng: np.random.Generator, seed: Seed, others: Sequence[Seed]) -> tuple[bytes, str]:
    """Return a damaged copy of a seed file, and what was done to it."""
    data, steps = seed.data, []
    count = int(rng.choice([1, 1, 1, 2, 3, 6]))
    for _ in range(count):
        change = _CHANGES[int(rng.integers(len(_CHANGES)))]
        data, step = change(rng, data, seed, others)
        steps.append(step)
    return data, ", ".join(steps)


def _place(rng: np.random.Generator, data: bytes, seed: Seed) -> int:
    """Return an offset: anywhere, near a structure's edge, or near the end, where footers are."""
    kind = int(rng.integers(4))
    if kind == 0 and seed.edges:
        at = int(rng.choice(seed.edges)) + int(rng.integers(-3, 12))
    elif kind == 1:
        at = len(data) - 1 - int(rng.integers(max(1, len(data) // 4)))
    else:
        at = int(rng.integers(max(1, len(data))))
    return min(max(at, 0), max(0, len(data) - 1))


def _span(rng: np.random.Generator, data: bytes, seed: Seed) -> tuple[int, int]:
    begin = _place(rng, data, seed)
    size = int(rng.choice([1, 2, 4, 8, 16, 64, 300]))
    return begin, min(begin + int(rng.integers(1, size + 1)), len(data))


def _flip(rng: np.random.Generator, data: bytes, seed: Seed, _: Sequence[Seed]) -> tuple[bytes, str]:
    changed = bytearray(data)
    places = [_place(rng, data, seed) for _ in range(int(rng.choice([1, 1, 1, 2, 8])))]
    for at in places:
        if changed:
            changed[at] ^= 1 << int(rng.integers(8))
    return bytes(changed), f"flip a bit at {places}"


def _scribble(rng: np.random.Generator, data: bytes, seed: Seed, _: Sequence[Seed]) -> tuple[bytes, str]:
    begin, end = _span(rng, data, seed)
    return data[:begin] + rng.bytes(end - begin) + data[end:], f"random bytes {begin}:{end}"


def _fill(rng: np.random.Generator, data: bytes, seed: Seed, _: Sequence[Seed]) -> tuple[bytes, str]:
    begin, end = _span(rng, data, seed)
    byte = (b"\0", b"\0", b"\xff")[int(rng.integers(3))]
    return data[:begin] + byte * (end - begin) + data[end:], f"fill {begin}:{end} with {byte!r}"


def _delete(rng: np.random.Generator, data: bytes, seed: Seed, _: Sequence[Seed]) -> tuple[bytes, str]:
    begin, end = _span(rng, data, seed)
    return data[:begin] + data[end:], f"delete {begin}:{end}"


def _repeat(rng: np.random.Generator, data: bytes, seed: Seed, _: Sequence[Seed]) -> tuple[bytes, str]:
    begin, end = _span(rng, data, seed)
    times = int(rng.choice([2, 2, 3, 50]))
    return data[:begin] + data[begin:end] * times + data[end:], f"{times} times {begin}:{end}"


def _truncate(rng: np.random.Generator, data: bytes, seed: Seed, _: Sequence[Seed]) -> tuple[bytes, str]:
    at = (
        int(rng.choice(seed.edges)) + int(rng.integers(-1, 2))
        if seed.edges and rng.integers(2)
        else _place(rng, data, seed)
    )
    return data[: max(at, 0)], f"truncate to {at}"


def _drop_head(rng: np.random.Generator, data: bytes, seed: Seed, _: Sequence[Seed]) -> tuple[bytes, str]:
    at = _place(rng, data, seed)
    return data[at:], f"drop the first {at}"


def _extreme(rng: np.random.Generator, data: bytes, seed: Seed, _: Sequence[Seed]) -> tuple[bytes, str]:
    at = _place(rng, data, seed)
    value = EXTREMES[int(rng.integers(len(EXTREMES)))]
    return data[:at] + value + data[at + len(value) :], f"{value.hex()} at {at}"


def _insert(rng: np.random.Generator, data: bytes, seed: Seed, _: Sequence[Seed]) -> tuple[bytes, str]:
    at = _place(rng, data, seed)
    value = rng.bytes(int(rng.integers(1, 9)))
    return data[:at] + value + data[at:], f"insert {value.hex()} at {at}"


def _append(rng: np.random.Generator, data: bytes, seed: Seed, others: Sequence[Seed]) -> tuple[bytes, str]:
    kind = int(rng.integers(4))
    junk = (
        rng.bytes(int(rng.integers(1, 40))),
        b"\0" * int(rng.integers(1, 40)),
        data[-int(rng.integers(1, 40)) :],
    )
    if kind < 3:
        return data + junk[kind], f"append {len(junk[kind])} bytes of kind {kind}"
    other = others[int(rng.integers(len(others)))]
    return data + other.data, f"append {other.name}"


def _splice(rng: np.random.Generator, data: bytes, seed: Seed, others: Sequence[Seed]) -> tuple[bytes, str]:
    other = others[int(rng.integers(len(others)))]
    at, begin = _place(rng, data, seed), _place(rng, other.data, other)
    if rng.integers(2):
        return data[:at] + other.data[begin:], f"{at} bytes and {other.name} from {begin}"
    end = min(begin + int(rng.integers(1, 200)), len(other.data))
    return data[:at] + other.data[begin:end] + data[at + end - begin :], f"{other.name} {begin}:{end} at {at}"


def _swap(rng: np.random.Generator, data: bytes, seed: Seed, _: Sequence[Seed]) -> tuple[bytes, str]:
    begin, end = _span(rng, data, seed)
    size, at = end - begin, _place(rng, data, seed)
    if at < end:
        begin, end, at = at, min(at + size, begin), begin
    moved = data[begin:end]
    return data[:begin] + data[at : at + len(moved)] + data[end:at] + moved + data[
        at + len(moved) :
    ], f"swap {begin}:{end} and {at}"


_CHANGES = (
    *(_flip, _flip, _flip, _scribble, _fill, _delete, _repeat, _truncate, _truncate, _drop_head),
    *(_extreme, _extreme, _extreme, _insert, _append, _splice, _swap),
)
