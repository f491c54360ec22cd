"""Reads JSON Lines."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from recshuf.formats.jsonl import NAN_AS_NULL
from recshuf.formats.lines.cutting import Cutter
from recshuf.formats.lines.source import LineSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from recshuf.formats.lines.sink import Encode
    from recshuf.interfaces import Decoder, FieldAdder, InputFile, ReadOptions, ValueReader, WriteOptions


class JsonlCutter(Cutter):
    """Cuts lines; blank ones at the end of an input are no records."""

    drops_blank_end = True


class JsonlSource(LineSource):
    """Inputs in JSON Lines."""

    cutter_type: type[Cutter] = JsonlCutter
    unit = "line"
    """What a record is in the inputs, for messages."""

    def __init__(self, files: Sequence[InputFile], options: ReadOptions) -> None:
        super().__init__(files, options, self.cutter_type(options))

    def decoder(self) -> Decoder:
        return make_decoder([summary.name for summary in self.inputs], self.options, self.unit)

    def value_reader(self, paths: Sequence[str]) -> ValueReader:
        from recshuf.formats.jsonl.values import JsonValueReader

        return JsonValueReader([summary.name for summary in self.inputs], paths, self.options, self.unit)

    def field_adder(self, names: Sequence[str]) -> FieldAdder:
        from recshuf.formats.jsonl.encoding import JsonFieldAdder

        return JsonFieldAdder([summary.name for summary in self.inputs], names)


def make_decoder(names: Sequence[str], options: ReadOptions, unit: str = "line") -> Decoder:
    """Return a decoder of lines, which messages call by the name of a unit of the inputs."""
    from recshuf.formats.jsonl.decoder import JsonDecoder

    return JsonDecoder(
        names,
        options.schema,
        field=options.field,
        columns=options.columns,
        sets_bad_aside=options.sets_bad_aside,
        unit=unit,
    )


def find_encoding(schema: pa.Schema, options: WriteOptions) -> Encode:
    """Return what makes lines of batches of a schema of tables."""
    from recshuf.formats.jsonl.encoding import check_schema, encode_lines

    check_schema(schema)
    return partial(encode_lines, nan_as_null=NAN_AS_NULL.of(options))
