"""The documents of a store in the order of the epochs, lane by lane and group by group."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from recshuf.errors import ConversionError, UsageError
from recshuf.formats.selection import Selection
from recshuf.records.arrays import is_contiguous_list, view_bytes
from recshuf.train.prefetch import compute_ahead
from recshuf.train.selection import restore_decoder

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from numpy.typing import NDArray

    from recshuf.piles.groups import Groups
    from recshuf.train.selection import GroupSource

    TokenCounter = Callable[[], NDArray[np.int64]]
    """Returns the number of tokens in each region, shape ``(K, M)``."""


class LanePosition(NamedTuple):
    """The next token of a lane."""

    epoch: int
    group: int
    """Number of the group in the epoch."""
    token: int
    """Number of the token in the group."""


class GroupTokens(NamedTuple):
    """The tokens of a group, back to back."""

    epoch: int
    tokens: NDArray[Any]


def find_lane(groups: Groups, epoch: int, lane: int, lanes: int) -> NDArray[np.int64]:
    """Return the numbers of the groups of a lane of an epoch that have records, in order."""
    sizes = groups.sizes
    numbers = np.arange(lane, len(sizes), lanes)
    filled = numbers[sizes[numbers] > 0]
    if not sizes.any():
        raise UsageError("the store holds no records; append some, or give another store")
    if not filled.size:
        raise UsageError(f"lane {lane} has no records in epoch {epoch}; give fewer lanes")
    return filled


@dataclass(frozen=True, slots=True)
class DocumentSource:
    """Where documents come from, and in which order."""

    groups: GroupSource
    """Threads load so many groups of each lane ahead."""
    owner: object
    """Keeps the files of the piles open."""
    column: str
    """Column of lists of numbers."""

    def find_type(self) -> pa.DataType:
        """Return the type of the tokens."""
        schema, column = restore_decoder(self.groups.piles).finish(), self.column
        if schema.names.count(column) != 1:
            raise UsageError(
                f"column={column!r}: no such column in the store, or several; it has {schema.names}"
            )
        kind = schema.field(column).type
        if not (is_contiguous_list(kind) and _is_number(kind.value_type)):
            raise UsageError(
                f"column={column!r}: holds {kind}, no lists of numbers; name the column of tokens"
            )
        return kind.value_type

    def find_counter(self) -> TokenCounter | None:
        """Return what counts the tokens; None if only decoding tells."""
        piles = self.groups.piles
        kind = restore_decoder(piles).finish().field(self.column).type
        if pa.types.is_fixed_size_list(kind):
            return lambda: piles.counts * kind.list_size
        index = piles.schema.get_field_index(self.column)
        # A decoder may give the name of a stored column to another one.
        is_stored = index >= 0 and piles.schema.field(index).type == kind
        return partial(piles.lengths, index) if is_stored else None

    def read(self, lane: int, lanes: int, start: LanePosition) -> Generator[GroupTokens]:
        """Yield the tokens of a lane without end, from the group of a position on."""
        selection = Selection(restore_decoder(self.groups.piles), [self.column])

        def load(task: tuple[int, Groups, int]) -> GroupTokens:
            epoch, groups, group = task
            documents = selection.make_table(groups.load([group]).batch).column(0)
            return GroupTokens(epoch, _view_tokens(documents, self.column))

        return compute_ahead(load, self._plan(lane, lanes, start), self.groups.prefetch)

    def _plan(self, lane: int, lanes: int, start: LanePosition) -> Iterator[tuple[int, Groups, int]]:
        epoch, first = start.epoch, start.group
        while True:
            groups = self.groups.open(epoch)
            numbers = find_lane(groups, epoch, lane, lanes)
            for number in numbers[numbers >= first].tolist():
                yield epoch, groups, number
            epoch, first = epoch + 1, 0


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _view_tokens(documents: pa.Array, column: str) -> NDArray[Any]:
    """Return the tokens of all documents."""
    values = documents.flatten()
    if documents.null_count or values.null_count:
        raise ConversionError(
            column, "holds nulls, which are no tokens", remedy="write the store without them"
        )
    return view_bytes(values).view(values.type.to_pandas_dtype())
