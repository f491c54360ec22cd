"""Where the rows of a batch are from."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa


class Span(NamedTuple):
    """Consecutive rows of one input."""

    input_index: int
    first_row: int
    rows: int


def join_spans(spans: Sequence[Span]) -> list[Span]:
    """Return spans that directly follow each other as one for each input.

    >>> join_spans([Span(0, 5, 2), Span(0, 7, 1), Span(1, 0, 4)])
    [Span(input_index=0, first_row=5, rows=3), Span(input_index=1, first_row=0, rows=4)]
    """
    joined: list[Span] = []
    for span in spans:
        if joined and joined[-1].input_index == span.input_index:
            joined[-1] = joined[-1]._replace(rows=joined[-1].rows + span.rows)
        else:
            joined.append(span)
    return joined


def split_spans(batch: pa.RecordBatch, spans: Sequence[Span]) -> Iterator[tuple[pa.RecordBatch, int, int]]:
    """Yield the rows of each span of a batch, their input and its first row, without a copy."""
    start = 0
    for span in spans:
        yield batch.slice(start, span.rows), span.input_index, span.first_row
        start += span.rows
