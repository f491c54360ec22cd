"""Mutations: one valid file in, one damaged file out, from the draws of a generator alone."""

from collections.abc import Callable, Sequence

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
    """Return a damaged copy of a seed file, and what was done to it: spans of bytes were replaced by others."""
    data, steps = seed.data, []
    for _ in range(int(rng.choice([1, 1, 1, 2, 3, 6]))):
        begin, end = _draw_span(rng, data, seed)
        name = _DRAWN[int(rng.integers(len(_DRAWN)))]
        data = data[:begin] + _CHANGES[name](rng, data[begin:end], others) + data[end:]
        steps.append(f"{name} {begin}:{end}")
    return data, ", ".join(steps)


def _draw_span(rng: np.random.Generator, data: bytes, seed: Seed) -> tuple[int, int]:
    """Return a few bytes, or all from there to the end or the beginning, or the end of the file alone."""
    at, kind = _draw_place(rng, data, seed), int(rng.integers(10))
    ends = {0: (at, len(data)), 1: (at, len(data)), 2: (0, at), 3: (len(data), len(data))}
    size = int(rng.integers(1, int(rng.choice([1, 2, 4, 8, 16, 64, 300])) + 1))
    return ends.get(kind, (at, min(at + size, len(data))))


def _draw_place(rng: np.random.Generator, data: bytes, seed: Seed) -> int:
    """Return an offset: anywhere, near a structure's edge, or near the end, where footers are."""
    kind = int(rng.integers(4))
    if kind == 0 and seed.edges:
        at = int(rng.choice(seed.edges)) + int(rng.integers(-3, 12))
    elif kind == 1:
        at = len(data) - 1 - int(rng.integers(max(1, len(data) // 4)))
    else:
        at = int(rng.integers(max(1, len(data))))
    return min(max(at, 0), len(data))


def _flip(rng: np.random.Generator, span: bytes, _: Sequence[Seed]) -> bytes:
    return bytes([span[0] ^ 1 << int(rng.integers(8))]) + span[1:] if span else b""


def _take_extreme(rng: np.random.Generator, span: bytes, _: Sequence[Seed]) -> bytes:
    value = EXTREMES[int(rng.integers(len(EXTREMES)))]
    return value + span[len(value) :]


def _take_other(rng: np.random.Generator, span: bytes, others: Sequence[Seed]) -> bytes:
    other = others[int(rng.integers(len(others)))]
    begin = _draw_place(rng, other.data, other)
    return other.data[begin : begin + (len(span) or len(other.data))]


_CHANGES: dict[str, Callable[[np.random.Generator, bytes, Sequence[Seed]], bytes]] = {
    "flip a bit of": _flip,
    "extreme at": _take_extreme,
    "delete": lambda _rng, _span, _others: b"",
    "random bytes at": lambda rng, span, _: rng.bytes(len(span) or 9),
    "fill": lambda rng, span, _: (b"\0", b"\xff")[int(rng.integers(2))] * (len(span) or 30),
    "repeat": lambda rng, span, _: span * int(rng.choice([2, 3, 50])),
    "insert before": lambda rng, span, _: rng.bytes(int(rng.integers(1, 9))) + span,
    "exchange halves of": lambda _rng, span, _others: span[len(span) // 2 :] + span[: len(span) // 2],
    "another file at": _take_other,
}
"""What takes the place of a span, by what is said of it."""
_DRAWN = (*_CHANGES, *["flip a bit of", "extreme at", "delete"] * 2)
