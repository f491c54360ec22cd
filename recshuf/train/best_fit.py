"""Best fit: documents in sequences of one length, whole where they fit, with the gaps filled.

Pieces are taken by length, the longest first, equal ones in order. Each goes to the sequence with the least room that has
enough of it, of several to the first; if none has, to a new one.

    pieces      6 3 5 2 4          sequences of 8    | 6 2 | 3 5 | 4 . . . . |

So many pieces of one length are placed at once as fit the sequences of one room. How many sequences there are depends on
how many pieces of each length there are, and not on their order.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from recshuf.records.arrays import take_rows, view_bytes, wrap_values

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray


def cut_lengths(lengths: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Return the lengths of the pieces of documents, of at most `size` tokens: the last of each is shorter.

    >>> cut_lengths(np.array([3, 0, 8, 9]), 4).tolist()
    [3, 4, 4, 4, 4, 1]
    """
    counts = -(-lengths // size)
    pieces = np.full(int(counts.sum()), size)
    lasts = np.cumsum(counts)[counts > 0] - 1
    pieces[lasts] = (lengths[counts > 0] - 1) % size + 1
    return pieces


def fit(pieces: NDArray[np.int64], size: int) -> tuple[NDArray[np.int64], int]:
    """Return the sequence of each piece, and the number of sequences.

    >>> fit(np.array([6, 3, 5, 2, 4]), 8)
    (array([0, 1, 1, 0, 2]), 3)
    """
    order = np.argsort(-pieces, kind="stable")
    lengths, counts = np.unique(-pieces, return_counts=True)
    held: dict[int, list[int]] = {}  # sequences by their room, each list ascending
    rooms: list[int] = []  # of `held`, ascending
    made, chosen, repeats = 0, list[int](), list[int]()
    least = -int(lengths[-1]) if len(lengths) else 0
    for length, count in zip((-lengths).tolist(), counts.tolist(), strict=True):
        left = count
        while left:
            at = bisect_left(rooms, length)
            room = rooms[at] if at < len(rooms) else size
            each = room // length
            wanted = -(-left // each)
            if at == len(rooms):
                taken = list(range(made, made + wanted))
                made += wanted
            elif len(held[room]) > wanted:
                taken, held[room] = held[room][:wanted], held[room][wanted:]
            else:
                taken = held.pop(room)
                del rooms[at]
            placed = min(left, each * len(taken))
            last = placed - each * (len(taken) - 1)
            left -= placed
            chosen += taken
            repeats += [*[each] * (len(taken) - 1), last]
            for part, rest in ((taken[:-1], room - each * length), (taken[-1:], room - last * length)):
                if part and rest >= least:
                    if rest not in held:
                        insort(rooms, rest)
                    held[rest] = sorted(held.get(rest, []) + part)
    sequences = np.empty(len(pieces), np.int64)
    sequences[order] = np.repeat(np.array(chosen, np.int64), np.array(repeats, np.int64))
    return sequences, made


def pack(
    tokens: NDArray[Any], pieces: NDArray[np.int64], places: NDArray[np.int64], size: int, gap: Any
) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64]]:
    """Return the tokens of whole sequences, where their pieces and gaps begin, and where their gaps do.

    Pieces of a sequence come in order, the gap is at the end.

    Parameters
    ----------
    tokens
        Of all pieces, back to back.
    pieces, places
        Length of each, and place of its sequence, from 0.
    gap
        The token in gaps.
    """
    rests = size - np.bincount(places, pieces).astype(np.int64)
    gaps = np.flatnonzero(rests)
    lengths = np.concatenate([pieces, rests[gaps]])
    index = np.argsort(np.concatenate([places, gaps]), kind="stable")
    packed = take_runs(np.concatenate([tokens, np.full(rests.sum(), gap, tokens.dtype)]), lengths, index)
    begins = np.cumsum(lengths[index]) - lengths[index]
    return packed, begins, begins[index >= len(pieces)]


def append(tokens: NDArray[Any], lengths: NDArray[np.int64], last: Any) -> NDArray[Any]:
    """Return the tokens of documents with one more at the end of each.

    >>> append(np.array([3, 4, 5]), np.array([2, 0, 1]), 9).tolist()
    [3, 4, 9, 9, 5, 9]
    """
    count = len(lengths)
    ends = np.full(count, last, tokens.dtype)
    index = np.arange(2 * count).reshape(2, count).T.ravel()
    return take_runs(
        np.concatenate([tokens, ends]), np.concatenate([lengths, np.ones(count, np.int64)]), index
    )


def take_runs(tokens: NDArray[Any], lengths: NDArray[np.int64], index: NDArray[np.intp]) -> NDArray[Any]:
    """Return runs of tokens, which lie back to back, in another order."""
    values = wrap_values(tokens, pa.from_numpy_dtype(tokens.dtype))
    offsets = wrap_values(np.concatenate([[0], np.cumsum(lengths)]), pa.int64())
    lists = pa.LargeListArray.from_arrays(offsets, values)
    taken = take_rows(pa.RecordBatch.from_arrays([lists], names=[""]), index).column(0)
    return view_bytes(taken.values).view(tokens.dtype)
