"""Fields of HDF5 as texts: the decoded values of one dataset, or the bytes of its rows if they have several elements."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

import pyarrow as pa

from recshuf.errors import UsageError
from recshuf.formats.hdf5.decoder import RowDecoder
from recshuf.formats.texts import TableValueReader
from recshuf.interfaces import ValueReader
from recshuf.records.arrays import check_path, dotted, is_any_list, unknown_column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recshuf.formats.hdf5.types import Column


class Hdf5ValueReader(ValueReader):
    """Reads datasets by their paths, and members of compounds behind them."""

    def __init__(self, columns: Sequence[Column], names: Sequence[str], paths: Sequence[str]) -> None:
        self._readers = [_find_reader(columns, names, path) for path in paths]

    def read(
        self, batch: pa.RecordBatch, input_index: int, first_row: int
    ) -> tuple[pa.LargeBinaryArray, ...]:
        return tuple(
            batch.column(reader).cast(pa.large_binary())
            if isinstance(reader, int)
            else reader.read(batch, input_index, first_row)[0]
            for reader in self._readers
        )


def _find_reader(columns: Sequence[Column], names: Sequence[str], path: str) -> int | TableValueReader:
    """Return the reader of a field, or the place of the column whose bytes are its texts."""
    wanted = f"{dotted(path)}."
    known = [f"{dotted(column.name)}." for column in columns]
    place = next((place for place, name in enumerate(known) if wanted.startswith(name)), None)
    if place is None:
        if any(name.startswith(wanted) for name in known):
            raise UsageError(f"column {path!r}: is a group; name a dataset inside it")
        raise unknown_column(path, [column.name for column in columns])
    column = columns[place]
    if prod(column.row_shape) == 1:
        column = replace(column, row_shape=())
    decoder = RowDecoder([column], names)
    if wanted == known[place] and is_any_list(check_path(dotted(path), decoder.finish())):
        return place
    return TableValueReader(decoder, names, [dotted(path)], [place])
