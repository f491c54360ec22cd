"""Best fit, many pieces at once, is what it is piece by piece."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from recshuf.train.best_fit import fit
from tests.support.effort import examples
from tests.support.stores.token_documents import fit_best


@settings(max_examples=examples(400))
@given(st.integers(6, 15), st.lists(st.integers(1, 15), min_size=20, max_size=60))
def test_pieces_go_where_they_go_one_by_one(size: int, lengths: list[int]) -> None:
    lengths = [min(length, size) for length in lengths]
    places, count = fit(np.array(lengths, np.int64), size)
    found: list[list[int]] = [[] for _ in range(count)]
    for number, place in enumerate(places.tolist()):
        found[place].append(number)
    pieces = fit_best([[number] * length for number, length in enumerate(lengths)], size)
    assert found == [[piece[0] for piece in sequence] for sequence in pieces]
