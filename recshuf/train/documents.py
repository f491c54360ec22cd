"""The documents of a store in the order of the epochs, lane by lane and group by group, as the tokens of sequences.

Documents that are cut lie back to back. Those that are kept whole fill whole sequences, so that a cut after every so many
tokens leaves them whole: a group is packed by itself, see `best_fit`.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import pyarrow as pa

from recshuf.errors import ConversionError, UsageError
from recshuf.formats.stored import Selection
from recshuf.records.arrays import (
    check_path,
    dtype_of,
    has_offsets,
    is_contiguous_list,
    view_bytes,
    view_offsets,
)
from recshuf.system.units import check_number
from recshuf.train.best_fit import append, cut_lengths, fit, pack
from recshuf.train.loading import compute_ahead, restore_decoder

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from numpy.typing import NDArray

    from recshuf.piles.groups import Groups
    from recshuf.piles.kept.stored import StoredPiles
    from recshuf.train.loading import Bundle, GroupSource

Documents = Literal["cut", "whole"]
DOC_IDS, POSITIONS = "doc_ids", "positions"
"""Names of the columns that tell where documents are."""
_MOST_TOKENS = 1 << 31


@dataclass(frozen=True, slots=True)
class Packing:
    """How documents become sequences. See `PileLoader.packed`."""

    tokens: int
    column: str
    boundaries: bool = False
    eos: int | None = None
    documents: str = "cut"
    pad: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", check_number("tokens", self.tokens, _MOST_TOKENS, least=1))
        if not isinstance(self.column, str):
            raise UsageError(f"column={self.column!r}: give the name of a column")
        if not isinstance(self.boundaries, bool | np.bool_):
            raise UsageError(f"boundaries={self.boundaries!r}: give True or False")
        if self.documents not in get_args(Documents):
            raise UsageError(f"documents={self.documents!r}: give 'cut' or 'whole'")
        if self.boundaries and self.column in (DOC_IDS, POSITIONS):
            raise UsageError(
                f"column={self.column!r}: boundaries=True adds a column of this name; rename it in the inputs"
            )
        if not self.is_whole and self.pad is not None:
            raise UsageError(
                f"pad={self.pad!r}: documents that are cut leave no gaps; leave it out, or give documents='whole'"
            )
        if self.is_whole and not self.boundaries and self.pad is None:
            raise UsageError(
                "documents='whole': nothing would tell gaps from tokens; give boundaries=True, or pad=, a number that is "
                "no token"
            )

    @property
    def is_whole(self) -> bool:
        return self.documents == "whole"

    @property
    def is_plain(self) -> bool:
        """Whether sequences are nothing but the tokens of documents."""
        return not (self.boundaries or self.is_whole or self.eos is not None)

    def conform(self, kind: pa.DataType) -> Packing:
        """Return the same with values that a type of tokens holds."""
        return replace(self, eos=_conform("eos", self.eos, kind), pad=_conform("pad", self.pad, kind))

    def describe(self) -> dict[str, Any]:
        """Return the fields of a state that tell what is in sequences."""
        others = {"eos": self.eos, "documents": self.documents if self.is_whole else None, "pad": self.pad}
        named = {name: value for name, value in others.items() if value is not None}
        return {"tokens": self.tokens, "column": self.column, **named}

    def count(self, lengths: NDArray[np.int64]) -> int:
        """Return the number of tokens of a group of documents of these lengths."""
        lengths = lengths + (self.eos is not None)
        if self.is_whole:
            return fit(cut_lengths(lengths, self.tokens), self.tokens)[1] * self.tokens
        return int(lengths.sum())


class GroupTokens(NamedTuple):
    """The tokens of a group, back to back, or some of them."""

    epoch: int
    tokens: NDArray[Any]
    begins: NDArray[np.int64]
    """Where documents, their pieces and gaps begin, ascending; none if nobody needs them."""
    gaps: NDArray[np.int64]
    """Where gaps begin."""

    @property
    def num_rows(self) -> int:
        return len(self.tokens)

    def slice(self, start: int, count: int) -> GroupTokens:
        """Return so many tokens, or those that there are, from one on."""
        stop = start + count
        begins, gaps = (
            one[np.searchsorted(one, start) : np.searchsorted(one, stop)] - start if one.size else one
            for one in (self.begins, self.gaps)
        )
        return GroupTokens(self.epoch, self.tokens[start:stop], begins, gaps)


def lack_tokens() -> UsageError:
    return UsageError(
        "no document of a lane holds tokens; give fewer lanes if there are several, else name another column"
    )


def sum_lengths(piles: StoredPiles, column: str, kind: pa.DataType) -> NDArray[np.int64] | None:
    """Return the sum of the lengths of a column in each region, shape ``(K, M)``; None if only decoding tells."""
    if pa.types.is_fixed_size_list(kind):
        return piles.counts * int(kind.list_size)
    index = piles.schema.get_field_index(column)
    # A decoder may give the name of a stored column to another one.
    return piles.lengths(index) if index >= 0 and piles.schema.field(index).type == kind else None


class StoredCounter:
    """Counts the tokens, or records, of groups by what the store knows of its regions.

    Parameters
    ----------
    counts
        Number of tokens in each region, shape ``(K, M)``.
    """

    def __init__(self, counts: NDArray[np.int64]) -> None:
        self._counts = counts
        self.total = int(counts.sum())
        """Number of those of an epoch."""

    def count(self, groups: Groups, numbers: NDArray[np.int64], _: int) -> NDArray[np.int64]:
        """Return the number of tokens of each of some groups."""
        return groups.sum(self._counts)[numbers]


class LengthCounter:
    """Counts by the lengths of documents. It reads each region once, and keeps 4 bytes of each document."""

    total = 0  # not known

    def __init__(self, source: DocumentSource) -> None:
        self._source = source
        self._lengths: dict[tuple[int, int], NDArray[np.uint32]] = {}
        self._counts: dict[tuple[tuple[int, int], ...], int] = {}
        """Tokens of the first groups: other epochs may have the same ones."""

    def count(self, groups: Groups, numbers: NDArray[np.int64], most: int) -> NDArray[np.int64]:
        """Return the number of tokens of each of some groups, up to the first that makes more than `most`."""
        counts: list[int] = []
        for number in numbers.tolist():
            counts.append(self._count(tuple(groups.find_cells(number))))
            most -= counts[-1]
            if most < 0:
                break
        return np.array(counts)

    def _count(self, cells: tuple[tuple[int, int], ...]) -> int:
        if cells in self._counts:
            return self._counts[cells]
        self._read([cell for cell in cells if cell not in self._lengths])
        lengths = np.concatenate([self._lengths[cell] for cell in cells])
        count = self._source.packing.count(lengths.astype(np.int64))
        if len(self._counts) < self._source.groups.piles.counts.shape[1]:
            self._counts[cells] = count
        return count

    def _read(self, cells: Sequence[tuple[int, int]]) -> None:
        piles = self._source.groups.piles
        packed = piles.pack(cells) if cells else None
        if packed is None:
            return
        _, lengths = self._source.view_documents(packed.join().batch)
        ends = np.cumsum([piles.counts[cell] for cell in cells])
        parts = np.split(lengths.astype(np.uint32), ends[:-1])
        self._lengths |= zip(cells, parts, strict=True)


TokenCounter: TypeAlias = StoredCounter | LengthCounter


@dataclass(frozen=True, slots=True)
class DocumentSource:
    """Where documents come from, in which order, and how they are packed."""

    groups: GroupSource
    """Threads load so many groups of each lane ahead."""
    owner: object
    """Keeps the files of the piles open."""
    packing: Packing

    def find_type(self) -> pa.DataType:
        schema, column = restore_decoder(self.groups.piles).finish(), self.packing.column
        try:
            Selection(restore_decoder(self.groups.piles), [column])
            kind = check_path(column, schema)
        except (UsageError, ValueError) as error:
            raise UsageError(
                f"column={column!r}: no such column in the store, or several; it has {schema.names}"
            ) from error
        if not is_contiguous_list(kind) or not (
            pa.types.is_integer(kind.value_type) or pa.types.is_floating(kind.value_type)
        ):
            raise UsageError(
                f"column={column!r}: holds {kind}, no lists of numbers; name another column, or tokenize it, and write the "
                "numbers to the store as lists, such as list<uint16>"
            )
        return kind.value_type

    def make_counter(self) -> TokenCounter:
        piles, packing = self.groups.piles, self.packing
        kind = check_path(packing.column, restore_decoder(piles).finish())
        lengths = None if packing.is_whole else sum_lengths(piles, packing.column, kind)
        if lengths is None:
            return LengthCounter(self)
        return StoredCounter(lengths + piles.counts * (packing.eos is not None))

    def read(self, lane: int, lanes: int, epoch: int, group: int, prefetch: int) -> Generator[GroupTokens]:
        """Yield the tokens of a lane without end, from a group on."""
        bundles = self.groups.walk_lane(lane, lanes, epoch, group, most_bytes=0)
        last = epoch
        try:
            with closing(compute_ahead(self._load, bundles, prefetch)) as loaded:
                for tokens in loaded:
                    if tokens.num_rows:
                        last = tokens.epoch
                    elif tokens.epoch > last + 1:
                        raise lack_tokens()
                    yield tokens
        finally:
            self.groups.piles.forget()

    def _load(self, bundle: Bundle) -> GroupTokens:
        (group,) = bundle.numbers
        records = bundle.groups.load([group], bundle.following)
        return self._lay_out(bundle.epoch, group, *self.view_documents(records.batch))

    def view_documents(self, records: pa.RecordBatch) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the tokens of native records, back to back, and the length of each document."""
        column = self.packing.column
        documents = Selection(restore_decoder(self.groups.piles), [column]).make_table(records).column(0)
        values = documents.flatten()
        if documents.null_count or values.null_count:
            raise ConversionError(
                column, "holds nulls, which are no tokens", remedy="write the store without them"
            )
        lengths = (
            np.diff(view_offsets(documents)).astype(np.int64)
            if has_offsets(documents.type)
            else np.full(len(documents), documents.type.list_size)
        )
        return view_bytes(values).view(dtype_of(values.type)), lengths

    def _lay_out(
        self, epoch: int, group: int, tokens: NDArray[Any], lengths: NDArray[np.int64]
    ) -> GroupTokens:
        """Return the tokens of the documents of a group as sequences hold them."""
        packing, nowhere = self.packing, np.zeros(0, np.int64)
        if packing.is_plain:
            return GroupTokens(epoch, tokens, nowhere, nowhere)
        if packing.eos is not None:
            tokens, lengths = append(tokens, lengths, packing.eos), lengths + 1
        if not packing.is_whole:
            return GroupTokens(epoch, tokens, np.cumsum(lengths) - lengths, nowhere)
        pieces = cut_lengths(lengths, packing.tokens)
        sequences, count = fit(pieces, packing.tokens)
        places = np.empty(count, np.int64)
        places[replace(self.groups.order, epoch=epoch).order_sequences(group, count)] = np.arange(count)
        return GroupTokens(epoch, *pack(tokens, pieces, places[sequences], packing.tokens, packing.pad or 0))


def _conform(name: str, token: Any, kind: pa.DataType) -> int | None:
    """Return a token that a column holds as a number of Python."""
    if token is None:
        return None
    if pa.types.is_floating(kind):
        raise UsageError(
            f"{name}={token!r}: the column holds {kind}, and only integers are tokens; leave it out"
        )
    limits = np.iinfo(dtype_of(kind))
    return check_number(name, token, int(limits.max), least=int(limits.min))
