"""CSV: records end at newlines outside of quotes. From CSV to CSV no field is parsed, and no byte changes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from recshuf.errors import InputError, UsageError
from recshuf.formats.compression import COMPRESSIONS, split_suffix
from recshuf.formats.lines import HEADER
from recshuf.interfaces import Format, FormatOption, Traits, whole_number
from recshuf.system.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from recshuf.formats.csv.source import CsvLayout, CsvSource
    from recshuf.formats.lines.sink import LineTarget
    from recshuf.interfaces import Decoder, InputFile, ReadOptions, StoredInputs, WriteOptions


_TAB_SUFFIX = ".tsv"


def _parse_byte(text: str) -> bytes:
    byte = parse_bytes(text)
    if len(byte) != 1 or not byte.isascii() or byte in b"\r\n":
        raise ValueError(r"give one ASCII character that ends no line, such as ; or \t for a tab")
    return byte


def _parse_quote(text: str) -> bytes:
    return b"" if text in ("", "none") else _parse_byte(text)


_FOUND = "Default: found: text above a table, blank lines, and the line sep= of Excel."
SKIP_LINES = FormatOption(
    "skip_lines",
    f"CSV: number of lines above the header of each input, which are no records and stay at the top of each shard. {_FOUND}",
    "N", whole_number(0), group="Input",
    elsewhere=(("*", f"CSV: number of lines above the header of each file, which are no records. {_FOUND}"),),
)  # fmt: skip
COMMENT = FormatOption(
    "comment",
    "CSV: character with which lines begin that are no records; above the header they stay at the top of each shard, others "
    "are left out. Default: none.", "C", _parse_byte, b"", group="Input",
    elsewhere=(("*", "CSV: character with which lines begin that are no records. Default: none."),),
)  # fmt: skip
DELIMITER = FormatOption(
    "delimiter",
    "CSV: character between fields. Default: a tab in .tsv, else found in the first input; in a conversion to CSV, a tab into "
    ".tsv, else a comma.", "C", _parse_byte, side="records", group="Input",
    elsewhere=(
        ("gather", "CSV: character between fields. Default: a tab into .tsv, else that of the records, or a comma."),
        ("*", "CSV: character between fields. Default: a tab in .tsv, else found in the first file."),
    ),
)  # fmt: skip
QUOTE = FormatOption(
    "quote", "CSV: character around quoted fields, or none. Default: a double quote, or none as the first records tell.",
    "C", _parse_quote, group="Input",
)  # fmt: skip
PADS_QUOTES = FormatOption("pads_quotes", "")
"""Whether blanks may stand before a quote that opens a field."""


def suffix_delimiter(name: str) -> bytes | None:
    """Return the byte between fields that the suffix of a file promises; None if it promises none."""
    return b"\t" if split_suffix(name).kind == ".tsv" else None


class CsvFormat(Format):
    """CSV, and TSV; the modules that read it are imported when a file is opened, since every run asks for the traits."""

    layouts = ("recshuf.formats.csv.source:CsvLayout",)
    traits = Traits(
        "csv",
        (".csv", _TAB_SUFFIX),
        COMPRESSIONS,
        read_options=frozenset({"columns", "schema"}),
        options=(HEADER, SKIP_LINES, COMMENT, DELIMITER, QUOTE, PADS_QUOTES),
        written_options=(("header", 1), ("skip_lines", 0), ("quote", b'"')),
        libraries=("zstandard",),
        is_lines=True,
        adds_columns=False,
    )  # only a suffix tells CSV from text

    def reading_schema(self, table: pa.Schema) -> pa.Schema:
        from recshuf.formats.csv.encoding import reading_schema

        return reading_schema(table)

    def check_appended(self, kept: Any, source: Any) -> None:
        if source.layout.form != kept.layout.form:
            raise UsageError(
                "the inputs have another delimiter, other quotes or other headers than those of the store; begin a new store "
                "for them"
            )

    def open_source(self, inputs: Sequence[InputFile], options: ReadOptions) -> CsvSource:
        from recshuf.formats.csv.quotes import Dialect
        from recshuf.formats.csv.source import CsvSource

        delimiter = DELIMITER.of(options)
        if delimiter == Dialect.of(options).quote:
            raise UsageError(
                f"--delimiter and --quote are both {delimiter.decode()!r}; give another one of them, or --quote none"
            )
        if delimiter is None and inputs[0].suffix.kind == _TAB_SUFFIX:
            options = options.found({DELIMITER: b"\t"})
        return CsvSource(inputs, options)

    def open_target(self, schema: pa.Schema, layout: Any, options: WriteOptions) -> LineTarget:
        from recshuf.formats.lines.sink import LineTarget
        from recshuf.formats.lines.source import LineLayout

        named = suffix_delimiter(options.file_name)
        if layout is not None:
            if layout.differing:
                name, other = layout.differing
                raise InputError(
                    name,
                    f"its header differs from that of {other}",
                    remedy="give --to jsonl or --to parquet, which unite columns by name, make the headers equal, or shuffle "
                    "them apart",
                )
            return self._open_native(layout, named or DELIMITER.of(options) or layout.delimiter, options)
        from recshuf.formats.csv.encoding import check_schema, encode_header, encode_records

        check_schema(schema)
        delimiter = DELIMITER.of(options) or named or b","
        layout = LineLayout(b"\n", encode_header(schema, delimiter), "none")
        encode = partial(encode_records, delimiter=delimiter)
        return LineTarget(self._suffix(delimiter), layout, options, encode)

    def _open_native(self, layout: CsvLayout, delimiter: bytes, options: WriteOptions) -> LineTarget:
        """Return the target of native records, which keep their bytes unless columns or a delimiter are asked for."""
        from recshuf.formats.csv.encoding import Rewriter
        from recshuf.formats.csv.quotes import Dialect
        from recshuf.formats.lines.sink import LineTarget

        notes, encode = list(layout.notes), None
        if delimiter != layout.delimiter or layout.columns is not None:
            dialect = Dialect(layout.delimiter, layout.quote, layout.is_padded)
            names = layout.headers[0] if layout.headers else ()
            places = None if layout.columns is None else list(map(names.index, layout.columns))
            encode = Rewriter(dialect, delimiter, places, len(names))
            layout = replace(layout, header=encode.rewrite_header(layout.header, layout.above))
        if delimiter != layout.delimiter:
            notes.append(
                f"{delimiter.decode()!r} takes the place of {layout.delimiter.decode()!r} between fields"
            )
        target = LineTarget(self._suffix(delimiter), layout, options, encode)
        target.notes = tuple(notes)
        return target

    def _suffix(self, delimiter: bytes) -> str:
        return _TAB_SUFFIX if delimiter == b"\t" else self.traits.suffixes[0]

    def restore_decoder(self, stored: StoredInputs) -> Decoder:
        from recshuf.formats.csv.decoder import CsvDecoder
        from recshuf.formats.csv.quotes import Dialect

        options, schema = replace(stored.options, sets_bad_aside=False), stored.options.schema
        headers = stored.layout.headers or [[] if schema is None else schema.names]
        return CsvDecoder(stored.names, Dialect.of(options), headers, options)


FORMAT = CsvFormat()
