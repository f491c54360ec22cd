"""Small uncompressed files of lines, read into one buffer one after the other.

Searching one file costs as much as 100 kB of lines, so the buffer of thousands of files is searched as a whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from recshuf.formats.lines.cutting import make_batch
from recshuf.interfaces import Joined

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recshuf.formats.lines.census import LineInput
    from recshuf.formats.lines.cutter import Cutter
    from recshuf.formats.lines.cutting import Bytes


def read_files(
    inputs: Sequence[LineInput],
    cutter: Cutter,
    max_records: int,
    max_record_bytes: int,
    *,
    drop_page_cache: bool,
) -> Joined | None:
    """Return all records of uncompressed files with a separator of one byte.

    None if there are more than `max_records`, or a record is longer than allowed or goes on behind its file.

    Raises
    ------
    InputError
        When a file cannot be read, or has changed.
    """
    edges = [0]
    data = np.empty(sum(_count_bytes(one) + 1 for one in inputs), np.uint8)
    for one in inputs:
        edges.append(_read_file(one, data, edges[-1], cutter.separator, drop_page_cache=drop_page_cache))
    found = [np.zeros(1, np.int64)]
    count = 0
    for ends in cutter.find_ends(data[: edges[-1]], 0):
        found.append(ends)
        count += ends.size
        if count > max_records:
            return None
    offsets = np.concatenate(found)
    if edges[-1] > max_record_bytes and int(np.diff(offsets).max()) > max_record_bytes:
        return None
    places = np.searchsorted(offsets, edges)
    if places[-1] == offsets.size or (offsets[places] != edges).any():
        return None
    rows = np.diff(places)
    return Joined(make_batch(data, offsets), rows.tolist())


def _count_bytes(one: LineInput) -> int:
    assert one.file is not None  # noqa: S101 # streams are not joined
    return max(0, one.file.size - one.data_begin)


def _read_file(one: LineInput, data: Bytes, begin: int, separator: bytes, *, drop_page_cache: bool) -> int:
    """Read the records of a file into `data` from `begin` on, adding a missing last separator; return their end."""
    assert one.file is not None  # noqa: S101 # see above
    end = begin + _count_bytes(one)
    handle = one.file.open()
    try:
        one.file.read_at(handle, data.data[begin:end], one.data_begin)
        if drop_page_cache:
            handle.drop_pages(one.data_begin, end - begin)
    finally:
        handle.close()
    if begin < end and data[end - 1] != separator[0]:
        data[end] = separator[0]
        end += 1
    return end
