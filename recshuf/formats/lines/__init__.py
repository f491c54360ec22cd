"""Files of lines, the base of text, JSONL and CSV: the options that say what their records are, and foreign content.

Foreign are bytes that are no lines, or lines that are no records, told by their beginning or the suffix of a file.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from recshuf.errors import InputError
from recshuf.formats.compression import DECOMPRESS, UNPACK, recognise_compression
from recshuf.formats.files import refuse_pointer
from recshuf.interfaces import FormatOption, whole_number
from recshuf.system.units import parse_bytes

if TYPE_CHECKING:
    from recshuf.interfaces import ReadOptions, WriteOptions


MARK = b"\xef\xbb\xbf"
"""The byte order mark of UTF-8. It stays at the top of a file, with the header."""
NEWLINE = b"\n"
CRLF = b"\r\n"
FIRST = "first"
"""The header that only the first input has, of one line."""


def _parse_start(text: str) -> bytes:
    start = parse_bytes(text)
    if not start or b"\n" in start:
        raise ValueError("give text within a line, such as '>'")
    return start


def _parse_separator(text: str) -> bytes:
    if not text:
        raise ValueError("it is empty; give at least one byte")
    return parse_bytes(text)


def parse_header(text: str) -> int | str | None:
    """Return the number of header lines; None for ``auto``, and ``first`` as it is.

    >>> parse_header("2"), parse_header("none"), parse_header("auto")
    (2, 0, None)
    """
    if text in ("auto", "none", FIRST):
        return {"auto": None, "none": 0}.get(text, text)
    try:
        return whole_number(0)(text)
    except ValueError:
        raise ValueError("give a number of lines, auto, none or first") from None


_AUTO = "auto, none, or first: one, in the first {} only. Default: auto, which is 0 for text; for CSV, 0 or 1 as its first records tell."
HEADER = FormatOption(
    "header", "Text, CSV: number of header lines of each input, written once at the top of each shard; " + _AUTO.format("input"),
    "N", parse_header, group="Input",
    elsewhere=(("*", "Text, CSV: number of header lines of each file, which are no records; " + _AUTO.format("file")),),
)  # fmt: skip
SEPARATOR = FormatOption(
    "separator", r"Text: string that ends a record, with the escapes \n, \t, \r, \0, \xHH and \\. Default: \n.",
    "STR", _parse_separator, NEWLINE, "records", "Input",
)  # fmt: skip
ZERO_TERMINATED = FormatOption(
    "zero_terminated", "Text: records end in a NUL byte.",
    side="records", group="Input", flags=("-z", "--zero-terminated"),
)  # fmt: skip
RECORD_LINES = FormatOption(
    "record_lines", "Text: a record is N lines, such as the 4 of FASTQ. Default: one line.",
    "N", whole_number(1), side="records", group="Input",
)  # fmt: skip
RECORD_START = FormatOption(
    "record_start",
    "Text: a record is a line that begins with TEXT and all lines up to the next one, such as > for FASTA; the escapes are "
    "those of --separator. Default: every line is one.",
    "TEXT", _parse_start, b"", "records", "Input",
)  # fmt: skip


def find_separator(options: ReadOptions | WriteOptions) -> bytes:
    separator: bytes = b"\0" if ZERO_TERMINATED.of(options) else SEPARATOR.of(options)
    return separator


def count_header_lines(options: ReadOptions) -> int:
    """Return the number of header lines that are given, of the first input if only that has some."""
    header = HEADER.of(options)
    return 1 if header == FIRST else header or 0


def has_several_lines(options: ReadOptions | WriteOptions) -> bool:
    """Tell whether a record may have several lines, though newlines end these."""
    return RECORD_LINES.of(options) is not None or RECORD_START.of(options) != b""


def name_lines(options: ReadOptions) -> str:
    """Return the option with which a record has several lines, and its value; empty text if it has one line."""
    if (RECORD_LINES.of(options) or 1) > 1:
        return f"--record-lines {RECORD_LINES.of(options)}"
    start = RECORD_START.of(options)
    return f"--record-start {start.decode(errors='backslashreplace')!r}" if start else ""


FOREIGN_HEAD_BYTES = 4096
"""Bytes that `check_head` needs, if there are so many."""
_TABLE = "write its records as Parquet or JSONL"
_ARRAY = "write it as HDF5 or Parquet"
_ENCODE = "convert it to UTF-8"
_LINES = "convert it to lines of UTF-8, or give -z if NULs end its records"
_PARAGRAPHS = r"give --separator '\n\n' where blank lines end its records"
_ONE_LINE = "write each of its records in one line"
_HEADER = "give --header N for the N lines of its header"
_EXPLICIT = "; --format text takes any bytes as lines"
_AS_ARROW = "give it as a file, with --format arrow"


class Foreign(NamedTuple):
    """A kind of content that is no lines."""

    what: str
    remedy: str
    magic: bytes | None = None
    """Pattern of its first bytes; None where nothing distinguishes them."""
    suffixes: tuple[str, ...] = ()


_KINDS = (
    Foreign("Parquet", "give it as a file, with --format parquet", rb"PAR1|PARE.{3}\x00"),
    Foreign("HDF5", "give it as a file, with --format hdf5", rb"\x89HDF\r\n\x1a\n"),
    Foreign("a NumPy array", "give it as a file, with --format npy", rb"\x93NUMPY"),
    Foreign("a PyTorch file", _ARRAY, None, (".pt", ".pth")),
    Foreign("a safetensors file", _ARRAY, rb".{3}\x00{5}\{\"", (".safetensors",)),
    Foreign("a MATLAB file", _ARRAY, rb"MATLAB 5\.0 MAT-file", (".mat",)),
    Foreign("netCDF", _ARRAY, rb"CDF[\x01\x02\x05]"),
    Foreign("a GGUF file", _ARRAY, rb"GGUF[\x01-\x09]\x00", (".gguf",)),
    Foreign("a Python pickle", _TABLE, rb"\x80[\x02-\x05]", (".pkl", ".pickle", ".joblib")),
    Foreign("an Arrow file", _AS_ARROW, rb"ARROW1\x00\x00"),
    Foreign("an Arrow stream", _AS_ARROW, rb"\xff{4}[\x00-\xff]{2}[\x00-\x0f]\x00"),
    Foreign("a Feather file of version 1", _TABLE, rb"FEA1\x00\x00"),
    Foreign("Avro", _TABLE, rb"Obj\x01", (".avro",)),
    Foreign("ORC", _TABLE, rb"ORC.{0,12}\x00", (".orc",)),
    Foreign("an SQLite database", _TABLE, rb"SQLite format 3\x00", (".sqlite", ".sqlite3", ".db3")),
    Foreign("a Zarr store", _ARRAY, None, (".zarr",)),
    Foreign("a Lance data set", _TABLE, None, (".lance",)),
    Foreign("an ArrayRecord file", _TABLE, None, (".arrayrecord", ".array_record")),
    Foreign("an LMDB database", _TABLE, None, (".lmdb",)),
    Foreign("an MDS shard", _TABLE, None, (".mds",)),
    Foreign("a DuckDB database", _TABLE, rb".{8}DUCK.\x00{7}", (".duckdb",)),
    Foreign("TFRecord", "read it with --format tfrecord", rb"[^\x00].{3}\x00{4}"),
    Foreign("a spreadsheet", _TABLE, None, (".xls", ".xlsx", ".ods")),
    Foreign("an R file", _TABLE, rb"RD[AX][23]\n[XAB]\n", (".rds", ".rdata", ".rda")),
    Foreign("MessagePack", _TABLE, None, (".msgpack",)),
    Foreign(
        "a tar archive",
        "give it as a file, with --format webdataset if its files are records; else unpack it",
        rb".{257}ustar(?:\x00|  \x00)",
        (".tgz", ".tbz2", ".txz"),
    ),
    Foreign("a zip archive", UNPACK, rb"PK(?:\x03\x04|\x05\x06|\x07\x08)", (".zip",)),
    Foreign("a 7z archive", UNPACK, rb"7z\xbc\xaf\x27\x1c", (".7z",)),
    Foreign("a rar archive", UNPACK, rb"Rar!\x1a\x07", (".rar",)),
    Foreign("data of compress", DECOMPRESS, rb"\x1f[\x9d\xa0]"),
    Foreign("lzip data", DECOMPRESS, rb"LZIP[\x00\x01]"),
    Foreign("lzma data", DECOMPRESS, rb"\x5d\x00\x00.{2}(?:\xff{8}|.{5}\x00{3})"),
    Foreign("lzop data", DECOMPRESS, rb"\x89LZO\x00\r\n\x1a\n"),
    Foreign("framed snappy data", DECOMPRESS, rb"\xff\x06\x00\x00sNaPpY"),
    Foreign("a legacy lz4 frame", DECOMPRESS, rb"\x02\x21\x4c\x18"),
    Foreign("text in UTF-16 or UTF-32", _ENCODE, rb"\xff\xfe|\xfe\xff|\x00\x00\xfe\xff"),
    Foreign("a PDF document", "extract its text", rb"%PDF-[12]\.", (".pdf",)),
    Foreign(
        "an image", _TABLE, rb"\x89PNG\r\n\x1a\n|\xff\xd8\xff|GIF8[79]a", (".png", ".jpg", ".jpeg", ".gif")
    ),
)
_KINDS_WITH_NULS = (
    Foreign(
        "text in UTF-16 or UTF-32",
        _ENCODE,
        rb"(?:[^\x00]\x00(?:\x00\x00)?){4}|(?:(?:\x00\x00)?\x00[^\x00]){4}",
    ),
    # Lines of text may hold a stray NUL, but hardly another control character near it.
    Foreign("binary data", _LINES, rb"(?=.*\x00).*[\x01-\x06\x0e-\x19\x1c-\x1f]"),
)
"""Kinds that only the NULs among lines of text show."""
_BASES = rb"[ACGTUNRYSWKMBDHVacgtunryswkmbdhv.*-]"
_KINDS_OF_TEXT = (
    Foreign(
        "FASTQ",
        "give --record-lines 4",
        rb"@[!-~][^\n]*\n(?:%b*\r?\n\+|%b{200})" % (_BASES, _BASES),
        (".fastq", ".fq"),
    ),
    Foreign(
        "FASTA",
        "give --record-start '>'",
        rb"(?:>[!-~][^\n]*\n)+(?:[A-Z*-]+|%b+)\r?(?:\n|\Z)" % _BASES,
        (".fasta", ".fna", ".faa"),
    ),
    Foreign("GenBank", "give --record-start 'LOCUS '", rb"LOCUS {5,}", (".gbk", ".genbank")),
    Foreign(
        "PGN",
        "give --record-start '[Event '",
        rb'\s*(?:%[^\n]*\n\s*)*\[[A-Z]\w* "[^\n]*"\]\s*\[[A-Z]\w* "',
        (".pgn",),
    ),
    Foreign(
        "CoNLL",
        _PARAGRAPHS,
        rb"-DOCSTART-[ \t\r\n]|#begin document |# (?:sent_id|text|newdoc|newpar|global\.columns)\b",
        (".conll", ".conllu", ".conllx"),
    ),
    Foreign("subtitles", _ONE_LINE, rb"WEBVTT[ \r\n]|\d+\r?\n\d+:\d\d:\d\d[,.]\d+ --> ", (".srt", ".vtt")),
    Foreign(
        "a mailbox", "give --record-start 'From '", rb"From \S+ [^\n]*\d{4}\r?\n[A-Z][\w-]*: ", (".mbox",)
    ),
    Foreign("BibTeX", "give --record-start '@'", rb"\s*@[A-Za-z]+\{[^\s,]+,\s*\n", (".bib",)),
    Foreign("XML", _ONE_LINE, rb"\s*<\?xml\s", (".xml",)),
    Foreign("HTML", "extract its text", rb"\s*<(?i:!doctype html|html)[\s>]", (".html", ".htm")),
    Foreign("VCF", _HEADER, rb"##fileformat=VCF"),
    Foreign("GFF", _HEADER, rb"##gff-version"),
    Foreign("SAM", _HEADER, rb"@(?:HD\tVN|SQ\tSN):"),
    Foreign("a Matrix Market file", _HEADER, rb"%%MatrixMarket "),
    Foreign(
        "ARFF",
        _HEADER,
        rb"(?:\s*%[^\n]*\n)*\s*@(?i:relation)\s[^\n]*\n(?:\s*%[^\n]*\n)*\s*@(?i:attribute)\s",
        (".arff",),
    ),
    Foreign("WARC", _TABLE, rb"WARC/\d\.\d+\r?\n", (".warc", ".wet", ".wat")),
    Foreign(
        "an SD file",
        r"give --separator '$$$$\n'",
        rb"(?:[^\n]*\n){3}[ \d]{6}[^\n]* V[23]000\r?\n",
        (".sdf",),
    ),
)
_KINDS_OF_PARAGRAPHS = (
    Foreign(
        "CoNLL",
        _PARAGRAPHS,
        rb"(?:#[^\n]*\n)*1(?:-\d+)?\t[^\n]*\n(?:\d[\d.-]*\t[^\n]*\n)*\r?\n(?:#[^\n]*\n)*1[-\t]"
        rb"|(?:\S+[ \t](?:[^\n]*[ \t])?(?:O|[BIESLUM]-\S+)\r?\n)+\r?\n\S",
    ),
)
"""Those that blank lines among others show."""


def _join(kinds: tuple[Foreign, ...]) -> tuple[bytes, list[Foreign]]:
    """Return a pattern with a group for each kind that is told by its first bytes, and these kinds."""
    pattern = b"|".join(b"(%b)" % kind.magic for kind in kinds if kind.magic)
    return b"(?s)" + pattern, [kind for kind in kinds if kind.magic]


_BINARY, _WITH_NULS = _join(_KINDS), _join(_KINDS_WITH_NULS)
_OF_TEXT, _OF_PARAGRAPHS = _join(_KINDS_OF_TEXT), _join(_KINDS_OF_PARAGRAPHS)
_OUTPUT_SUFFIXES = {suffix: kind for kind in _KINDS for suffix in kind.suffixes}
_SUFFIXES = _OUTPUT_SUFFIXES | {suffix: kind for kind in _KINDS_OF_TEXT for suffix in kind.suffixes}
_compile = cache(re.compile)


def _find_kind(told: tuple[bytes, list[Foreign]], head: bytes) -> Foreign | None:
    match = _compile(told[0]).match(head)
    return None if match is None else told[1][(match.lastindex or 0) - 1]


def check_head(name: str, head: bytes, options: ReadOptions) -> None:
    """Refuse an input whose (decompressed) beginning is that of bytes that are no lines, or of lines that are no records.

    NULs say nothing about records that end with another separator than a newline. Such a separator, or a header, says what
    the records are.
    """
    refuse_pointer(name, head)
    compression = recognise_compression(head)
    if compression != "none":
        remedy = "compress it once, and name it by its compression"
        raise InputError(
            name, f"begins like {compression} data, and not like lines", remedy=remedy + _EXPLICIT
        )
    kind = _find_kind(_BINARY, head)
    if kind is None and find_separator(options) == NEWLINE and b"\0" in head:
        kind = _find_kind(_WITH_NULS, head)
    if kind is not None:
        raise InputError(name, f"begins like {kind.what}, and not like lines", remedy=kind.remedy + _EXPLICIT)
    if _says_records(options):
        return
    text = head.removeprefix(MARK)
    kind = _find_kind(_OF_TEXT, text)
    if kind is None and (b"\n\n" in text or b"\n\r\n" in text):
        kind = _find_kind(_OF_PARAGRAPHS, text)
    if kind is not None:
        remedy = (kind.remedy.replace(r"\n", r"\r\n") if CRLF in text else kind.remedy) + _EXPLICIT
        raise InputError(name, f"begins like {kind.what}, of which a line is not a record", remedy=remedy)


def check_kind(name: str, suffix: str, options: ReadOptions) -> None:
    """Refuse an input whose suffix (without that of a compression) is that of files that hold no lines, as `check_head` does."""
    kind, is_lines = _SUFFIXES.get(suffix), suffix not in _OUTPUT_SUFFIXES
    if kind is None or (is_lines and _says_records(options)):
        return
    problem = "of which a line is not a record" if is_lines else "and holds no lines"
    raise InputError(name, f"is {kind.what} by its name, {problem}", remedy=kind.remedy + _EXPLICIT)


def _says_records(options: ReadOptions) -> bool:
    has_header = count_header_lines(options) > 0
    return has_header or find_separator(options) != NEWLINE or has_several_lines(options)


def explain_suffix(suffix: str) -> tuple[str, str] | None:
    """Return what files with this suffix are, and what to do with them; None if they may hold records."""
    kind = _SUFFIXES.get(suffix)
    return kind and (kind.what, kind.remedy)


def is_kind_of_text(suffix: str) -> bool:
    return suffix in _SUFFIXES and suffix not in _OUTPUT_SUFFIXES


def name_foreign(suffix: str) -> str | None:
    """Return what files with this suffix are, with an article; None if lines may be written to them."""
    kind = _OUTPUT_SUFFIXES.get(suffix)
    return kind.what if kind else None
