"""Keys of values: those of a slow, obvious oracle, equal for equal values alone, and in every order equally often."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from numpy.random import SeedSequence

from recshuf.records.keys import stream_of
from recshuf.records.provenance import pack_provenance
from recshuf.records.value_keys import ValueKeys, cut_pieces, encrypt, hash_texts, without_value

SEED = 11
WORD = 2**64 - 1


def array(*values: bytes | None) -> pa.LargeBinaryArray:
    return pa.array(values, pa.large_binary())


def pair(keys: tuple[np.ndarray, np.ndarray]) -> list[tuple[int, int]]:
    return list(zip(*(half.tolist() for half in keys), strict=True))


def encrypt_slowly(number: int, key: int) -> tuple[int, int]:
    """Return the two words of a number under Philox-4x32-10."""
    a, b, c, d = (number >> shift & 0xFFFFFFFF for shift in (0, 32, 64, 96))
    low, high = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        first, second = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = (
            (second >> 32) ^ b ^ low, second & 0xFFFFFFFF, (first >> 32) ^ d ^ high, first & 0xFFFFFFFF
        )  # fmt: skip
        low, high = (low + 0x9E3779B9) & 0xFFFFFFFF, (high + 0xBB67AE85) & 0xFFFFFFFF
    return a | b << 32, c | d << 32


def find_slowly(records: list[tuple[bytes | None, ...]], first: int) -> list[tuple[int, int]]:
    """Return the keys of the records of input 3 from this row on, by the formulas of docs/store.md."""
    a, b = SeedSequence(SEED, spawn_key=stream_of("value")).generate_state(2, np.uint64).tolist()

    def hash_one(text: bytes) -> int:
        return xxhash.xxh3_128_intdigest(text, a)

    found = []
    for row, record in enumerate(records):
        hashes = [0 if text is None else hash_one(text) for text in record]
        number = hashes[0]
        if len(record) > 1:
            number = hash_one(b"".join(one.to_bytes(16, "big") for one in hashes))
        if record.count(None) == len(record):
            number = int(pack_provenance(np.int64(3), np.array([first + row]))[0]) + (WORD << 64)
        found.append(encrypt_slowly(number, b))
    return found


def test_hashes_are_those_of_the_library() -> None:
    rng = np.random.default_rng(1)
    texts = [rng.bytes(size) for size in [*range(41), 300] * 6]
    columns = [array(*texts)[5:], array(*texts[1:4]), array(texts[2], None, texts[9]), array(b""), array()]
    for seed in (0, 1, WORD, *rng.integers(0, 2**64, 5, np.uint64).tolist()):
        for column in columns:
            found = pair(hash_texts(column, seed))
            for text, (low, high) in zip(column.to_pylist(), found, strict=True):
                assert text is None or low | high << 64 == xxhash.xxh3_128_intdigest(text, seed)


def test_a_key_is_philox_of_the_hash() -> None:
    known = [(0, 0, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8])]  # of the authors of Philox
    known.append((2**128 - 1, WORD, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]))
    for number, key, words in known:
        halves = (np.array([half], np.uint64) for half in (number & WORD, number >> 64))
        assert pair(encrypt(*halves, key)) == [(words[0] | words[1] << 32, words[2] | words[3] << 32)]
    rng = np.random.default_rng(2)
    low, high = rng.integers(0, 2**64, (2, 20_000), np.uint64)
    found = pair(encrypt(low, high, 12345))
    assert (
        found[::999]
        == [encrypt_slowly(a | b << 64, 12345) for a, b in zip(low.tolist(), high.tolist(), strict=True)][
            ::999
        ]
    )


@pytest.mark.parametrize("fields", [1, 2, 3])
def test_keys_are_those_of_the_formulas(fields: int) -> None:
    """Whatever pieces records are cut into, and with nulls in some fields or all."""
    rng = np.random.default_rng(3)
    values = [None, b"", b"\0", b"a", b"ab", b"user-17", b"x" * 40, b"x" * 700_000]
    chances = [0.3, *[0.7 / 6 - 0.0001] * 6, 0.0006]
    records = [tuple(values[i] for i in row) for row in rng.choice(8, (20_000, fields), p=chances)]
    texts = [array(*column) for column in zip(*records, strict=True)]
    assert len(list(cut_pieces(*texts))) > 2
    keys = ValueKeys(SEED)
    found = pair(keys.keys(texts, 3, 100))
    rows = [*range(0, 20_000, 37), *range(19_990, 20_000)]
    assert [found[row] for row in rows] == [find_slowly([records[row]], 100 + row)[0] for row in rows]
    assert pair(keys.keys([column[7000:] for column in texts], 3, 7100)) == found[7000:]
    missing = without_value(texts)
    assert missing is not None
    assert missing.tolist() == [set(record) == {None} for record in records]
    assert without_value([*texts, array(*[b""] * 20_000)]) is None


def test_records_without_a_value_may_share_one() -> None:
    column = array(None, b"", None, b"a")
    own = pair(ValueKeys(SEED).keys([column], 0, 0))
    shared = pair(ValueKeys(SEED, shares_missing=True).keys([column], 0, 0))
    assert len(set(own)) == 4
    assert shared[0] == shared[2]
    assert len(set(shared)) == 3
    assert (shared[1], shared[3]) == (own[1], own[3])
    assert pair(ValueKeys(SEED, "other").keys([column], 0, 0))[1] != own[1]
