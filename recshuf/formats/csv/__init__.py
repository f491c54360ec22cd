"""CSV: records end at newlines outside of quotes. From CSV to CSV no field is parsed, and no byte changes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from recshuf.errors import UsageError
from recshuf.formats.compression import COMPRESSIONS
from recshuf.formats.csv.cutter import CsvCutter
from recshuf.formats.csv.quotes import Dialect
from recshuf.formats.csv.ranges import CsvBlockReader, RangeCuts, RecordRange
from recshuf.formats.lines.sink import LineTarget
from recshuf.formats.lines.source import LineLayout, LineSource, count_batch_records
from recshuf.interfaces import Format, Traits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from recshuf.formats.compression.readers import ByteReader
    from recshuf.formats.lines.census import LineInput
    from recshuf.formats.lines.cutting import RecordLimit
    from recshuf.interfaces import Decoder, Fragment, InputFile, ReadOptions, StoredInputs, WriteOptions


_TAB_SUFFIX = ".tsv"


@dataclass(frozen=True, slots=True)
class CsvLayout(LineLayout):
    """Properties of CSV inputs that CSV shards keep."""

    delimiter: bytes


class CsvSource(LineSource):
    """Inputs in CSV."""

    def __init__(self, files: Sequence[InputFile], options: ReadOptions) -> None:
        self.cutter = CsvCutter(options)
        super().__init__(files, options, self.cutter)
        if self.cutter.dialect is not None:
            self.options = replace(
                options,
                delimiter=self.cutter.dialect.delimiter,
                header_lines=self.cutter.header_records,
                finds_header=False,
            )
        layout, delimiter = self.layout, self.cutter.scanner.dialect.delimiter
        self.layout = CsvLayout(layout.separator, layout.header, layout.compression, delimiter)

    def _ranges(self, lines: LineInput, block_bytes: int, limit: RecordLimit) -> Iterator[Fragment]:
        cuts = RangeCuts(lines, self.cutter, limit)
        for begin, end in cuts.find(block_bytes):
            yield RecordRange(cuts, begin, end, count_batch_records(block_bytes))

    def _open_blocks(
        self, reader: ByteReader, lines: LineInput, limit: RecordLimit, block_bytes: int
    ) -> CsvBlockReader:
        return CsvBlockReader(reader, lines, self.cutter, limit, block_bytes)

    def decoder(self) -> Decoder:
        from recshuf.formats.csv.decoder import CsvDecoder

        return CsvDecoder(
            [summary.name for summary in self.inputs],
            self.cutter.scanner.dialect,
            self.cutter.names,
            self.options.schema,
            sets_bad_aside=self.options.sets_bad_aside,
        )


class CsvFormat(Format):
    """CSV, and TSV."""

    layout_types = (CsvLayout,)
    traits = Traits(
        "csv",
        (".csv", _TAB_SUFFIX),
        COMPRESSIONS,
        read_options=frozenset({"header_lines", "delimiter", "quote", "schema"}),
        write_options=frozenset({"delimiter"}),
        libraries=("zstandard",),
        is_lines=True,
        spans_lines=True,
        written_header_lines=1,
        adds_columns=False,
    )  # only a suffix tells CSV from text

    def reading_schema(self, table: pa.Schema) -> pa.Schema:
        from recshuf.formats.csv.encoding import reading_schema

        return reading_schema(table)

    def layout_header(self, layout: object) -> bytes:
        return layout.header if isinstance(layout, LineLayout) else b""

    def open_source(self, inputs: Sequence[InputFile], options: ReadOptions) -> CsvSource:
        if options.separator != b"\n":
            raise UsageError("--separator and --zero-terminated are for text; CSV records end with a newline")
        if options.delimiter is None and inputs[0].suffix.kind == _TAB_SUFFIX:
            options = replace(options, delimiter=b"\t")
        return CsvSource(inputs, options)

    def open_target(self, schema: pa.Schema, layout: object | None, options: WriteOptions) -> LineTarget:
        if isinstance(layout, CsvLayout):
            if options.delimiter not in (None, layout.delimiter):
                raise UsageError(
                    f"the inputs have {layout.delimiter.decode()!r} between fields, "
                    f"the output has {options.delimiter.decode()!r}; name it otherwise, or write Parquet first"
                )
            return LineTarget(self._suffix(layout.delimiter), layout, options, None)
        from recshuf.formats.csv.encoding import check_schema, encode_header, encode_records

        check_schema(schema)
        delimiter = options.delimiter or b","
        layout = LineLayout(options.separator, encode_header(schema, delimiter), "none")
        encode = partial(encode_records, delimiter=delimiter)
        return LineTarget(self._suffix(delimiter), layout, options, encode)

    def _suffix(self, delimiter: bytes) -> str:
        return _TAB_SUFFIX if delimiter == b"\t" else self.traits.suffixes[0]

    def restore_decoder(self, stored: StoredInputs) -> Decoder:
        from recshuf.formats.csv.decoder import CsvDecoder

        options, schema = stored.options, stored.options.schema
        dialect = Dialect(options.delimiter or b",", options.quote)
        names = [] if schema is None else schema.names
        return CsvDecoder(stored.names, dialect, names, schema, sets_bad_aside=False)


FORMAT = CsvFormat()
