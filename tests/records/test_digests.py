"""Digests, against sums of Python's integers, one record at a time."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from recshuf.records.batch import Records
from recshuf.records.digests import Digest, Digests, digest_records, sum_digests
from tests.support.effort import examples

VALUES = {
    "text": (pa.string(), st.text(max_size=5), lambda text: len(text.encode())),
    "bytes": (pa.large_binary(), st.binary(max_size=9), len),
    "list": (pa.list_(pa.int8()), st.lists(st.integers(0, 9), max_size=4), len),
    "map": (
        pa.map_(pa.int8(), pa.int8()),
        st.dictionaries(st.integers(0, 9), st.integers(0, 9)).map(list),
        len,
    ),
    "number": (pa.int64(), st.integers(0, 9), lambda _: 0),
    "fixed": (pa.binary(2), st.binary(min_size=2, max_size=2), lambda _: 0),
    "json": (pa.json_(pa.string()), st.sampled_from(["{}", "[1]"]), len),
}
KEYS = st.integers(0, 2**64 - 1)


@st.composite
def record_lists(draw: st.DrawFn) -> tuple[Records, list[tuple[int, int]]]:
    """Return records, as a slice of more, and the key and the length of each."""
    count, first = draw(st.integers(0, 12)), draw(st.integers(0, 2))
    keys = draw(st.lists(KEYS, min_size=count, max_size=count))
    lengths, columns = [0] * count, {}
    for name in draw(st.lists(st.sampled_from(sorted(VALUES)), unique=True, max_size=3)):
        kind, values, measure = VALUES[name]
        chosen = draw(st.lists(values | st.none(), min_size=first + count, max_size=first + count))
        if name == "map":
            chosen = [None if one is None else [(key, key) for key in one] for one in chosen]
        columns[name] = pa.array(chosen, kind)
        # A null counts as one, so that it differs from what is empty.
        lengths = [
            length + (1 if one is None else measure(one))
            for length, one in zip(lengths, chosen[first:], strict=True)
        ]
    batch = pa.record_batch({"id": pa.array(range(first + count), pa.int32()), **columns}).slice(first)
    return Records(np.array(keys, np.uint64), batch), list(zip(keys, lengths, strict=True))


def digest_slowly(records: list[tuple[int, int]]) -> Digest:
    fingerprints = [key ^ length * 0x9E3779B97F4A7C15 % 2**64 for key, length in records]
    return Digest(len(records), sum(length for _, length in records), sum(fingerprints) % 2**64)


@settings(max_examples=examples(200))
@given(made=record_lists(), data=st.data())
def test_digests_are_those_of_the_records_one_by_one(
    made: tuple[Records, list[tuple[int, int]]], data: st.DataObject
) -> None:
    records, plain = made
    assert digest_records(records) == digest_slowly(plain)
    inner = sorted(data.draw(st.lists(st.integers(0, len(plain)), min_size=2, max_size=6)))
    digests = Digests.find(records, np.array(inner))
    expected = [digest_slowly(plain[start:end]) for start, end in pairwise(inner)]
    assert list(digests) == expected
    assert digests.sum() == sum_digests(expected) == digest_slowly(plain[inner[0] : inner[-1]])
