"""Tables that a caller holds as inputs of Parquet, alone or among its files: as if they had been read from files of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from recshuf.formats import TABLES, load_format
from recshuf.formats.arrow.source import unite
from recshuf.formats.parquet.source import HeldTables, make_layout
from recshuf.formats.parquet.types import dense_schema
from recshuf.interfaces import Fragment, Source, TableDecoder
from recshuf.records.conforming import conform

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from recshuf.interfaces import Decoder, Format, InputFile, ReadOptions


_HEAD_ROWS, _HEAD_BYTES = 1 << 16, 16 << 20
"""First rows that tell how the columns of tables are best stored, and how many bytes of them suffice; those of a reader are held."""


class TableSource(Source):
    """Tables, and files of a format whose sources have `schemas`, those that each file declares.

    Each kind is read by a source of its own, whose batches are then brought to the schema of all.
    """

    def __init__(self, known: Format, inputs: Sequence[InputFile], options: ReadOptions) -> None:
        kinds = [
            [index for index, file in enumerate(inputs) if bool(file.table) is held] for held in (True, False)
        ]
        # Columns that only some inputs have are chosen from those of all.
        own = replace(options, columns=None) if kinds[1] else options
        formats = (load_format(TABLES), known)
        parts: list[Any] = [
            one.open_source([inputs[index] for index in kind], own)
            for one, kind in zip(formats, kinds, strict=True)
            if kind
        ]
        self._places = {
            index: (part, place)
            for part, kind in zip(parts, kinds, strict=False)
            for place, index in enumerate(kind)
        }
        order = [self._places[index] for index in range(len(inputs))]
        self._parts = parts
        self.inputs = tuple(part.inputs[place] for part, place in order)
        self.notes = tuple(chain.from_iterable(part.notes for part in parts))
        schemas = [part.schemas[place] for part, place in order]
        declared, self.metadata = parts[0].layout.schema, parts[0].metadata
        if kinds[1]:
            _, _, declared, self.metadata = unite(self.inputs, schemas, options)
            if self.metadata.differences and self.metadata.differences not in self.notes:
                self.notes += (self.metadata.differences,)
        held = self._hold(parts[0], declared)
        self.layout = make_layout(held, parts[1].layout if kinds[1] else None)
        self.schema = dense_schema(self.layout.schema)

    def _hold(self, source: Any, declared: pa.Schema) -> HeldTables:
        heads = (source.find_head(index, _HEAD_ROWS, _HEAD_BYTES) for index in range(len(source.inputs)))
        head = next(filter(len, heads), pa.Table.from_batches([], source.schema))
        names = source.layout.schema.names
        dictionaries = {
            declared.names.index(names[index]): values
            for index, values in source.layout.dictionaries.items()
            if names[index] in declared.names
        }
        rows = sum(one.record_count or 0 for one in source.inputs)
        return HeldTables(declared, dictionaries, head, rows)

    def fragments(self, input_index: int, block_bytes: int, max_record_bytes: int) -> Iterator[Fragment]:
        part, place = self._places[input_index]
        fragments = part.fragments(place, block_bytes, max_record_bytes)
        if part.schema.equals(self.schema, check_metadata=True):
            yield from fragments
            return
        for fragment in fragments:
            yield _Conformed(fragment, self.schema)

    def reading_bytes(self, block_bytes: int) -> int:
        return max(int(part.reading_bytes(block_bytes)) for part in self._parts)

    def decoder(self) -> Decoder:
        return TableDecoder(self.schema)


class _Conformed(Fragment):
    def __init__(self, fragment: Fragment, schema: pa.Schema) -> None:
        self._fragment, self._schema = fragment, schema
        self.record_count = fragment.record_count

    def batches(self) -> Iterator[pa.RecordBatch]:
        for batch in self._fragment.batches():
            names, rows = batch.schema.names, batch.num_rows
            is_same = names == self._schema.names
            places = {name: place for place, name in enumerate(names)}  # else no name comes twice
            columns = [
                conform(batch.column(index if is_same else places[field.name]), field.type)
                if is_same or field.name in places
                else pa.nulls(rows, field.type)
                for index, field in enumerate(self._schema)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)
