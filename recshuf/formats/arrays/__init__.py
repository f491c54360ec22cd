"""Records of a fixed number of bytes: NumPy arrays in files or archives of them, and binary records behind a header."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recshuf.errors import InputError
from recshuf.formats.files import DATASETS, KEEP_OTHERS, LazyFormat
from recshuf.interfaces import FormatOption, Traits, whole_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from recshuf.formats.arrays.layout import FixedLayout
    from recshuf.interfaces import Decoder, InputSummary, StoredInputs, Target, WriteOptions


MAGIC = b"\x93NUMPY"
_ZIP = b"PK\3\4"


def _parse_shape(text: str) -> str:
    if not all(axis.isdecimal() for axis in text.split(",")):
        raise ValueError("give whole numbers, such as 3,224")
    return text


RECORD_BYTES = FormatOption(
    "record_bytes", "Binary: bytes of a record. Default: those of --dtype.",
    "N", whole_number(1, 1 << 40), group="Input",
)  # fmt: skip
HEADER_BYTES = FormatOption(
    "header_bytes",
    "Binary: bytes before the first record of each input, written once at the top of each shard. Default: 0.",
    "N", whole_number(0, 1 << 24), 0, group="Input",
    elsewhere=(("*", "Binary: bytes before the first record of each file. Default: 0."),),
)  # fmt: skip
DTYPE = FormatOption(
    "dtype",
    "Binary: type of the numbers in a record and its axes, such as uint16[2048]; other formats get lists of them. "
    "Default: a record is only bytes.", "TYPE", group="Input",
)  # fmt: skip
RECORD_SHAPE = FormatOption(
    "record_shape",
    "Binary: axes of a record, with --dtype: --dtype uint16 --record-shape 2048 is --dtype uint16[2048]. "
    "Default: those of --dtype, or one number.", "N,M", _parse_shape, group="Input",
)  # fmt: skip


class _ArrayFormat(LazyFormat):
    """What all three share: a record is so many bytes."""

    layouts = ("recshuf.formats.arrays.layout:FixedLayout", "recshuf.formats.arrays.layout:ArchiveLayout")

    def open_target(self, schema: pa.Schema, layout: Any, options: WriteOptions) -> Target:
        from recshuf.formats.arrays.layout import find_layout, open_target

        return open_target(layout or find_layout(schema, self.traits.name), options)

    def check_appended(self, kept: Any, source: Any) -> None:
        # Of another number of columns, the schema tells.
        other, file = source.layout, source.inputs[0].name
        for name, ours, theirs in zip(other.names, kept.layout.arrays, other.arrays, strict=False):
            place = f"array {name!r}" if len(other.names) > 1 else None
            ours.check_same(theirs, file, "that of the store", place)
            # Headers that count records differ, and are told, as in a run.
            if ours.header != theirs.header and not (source.notes or _counts(ours, kept.inputs)):
                problem = "its header differs from that of the store, and shards have one"
                raise InputError(file, problem, remedy="make the headers equal, or begin a new store")

    def restore_decoder(self, stored: StoredInputs) -> Decoder:
        from recshuf.formats.arrays.layout import ArrayDecoder

        return ArrayDecoder(stored.layout)


def _counts(layout: FixedLayout, inputs: Sequence[InputSummary]) -> bool:
    """Tell whether the header in a layout counts the records of the first input, from which it is."""
    from recshuf.formats.arrays.layout import Array
    from recshuf.formats.arrays.source import find_count

    start, size = len(layout.header), inputs[0].file_bytes if inputs else None
    return (
        size is not None and find_count(Array(layout, (size - start) // layout.row_bytes, start)) is not None
    )


class NpyFormat(_ArrayFormat):
    """NumPy's format of one array; records lie along its first axis."""

    source = "recshuf.formats.arrays.source:NpySource"
    traits = Traits(
        "npy", (".npy",), libraries=("numpy",), has_columns=False, adds_columns=False, content_rank=3
    )

    def recognises(self, head: bytes) -> bool:
        return head.startswith(MAGIC)


class BinaryFormat(_ArrayFormat):
    """Records of `--record-bytes` behind a header of `--header-bytes`."""

    source = "recshuf.formats.arrays.source:BinarySource"
    traits = Traits(
        "binary",
        (".bin",),
        options=(RECORD_BYTES, HEADER_BYTES, DTYPE, RECORD_SHAPE),
        named_by=frozenset({"record_bytes", "dtype", "record_shape"}),
        has_columns=False,
        adds_columns=False,
    )

    def reading_schema(self, table: pa.Schema) -> pa.Schema:
        return table


class NpzFormat(_ArrayFormat):
    """Archives of arrays; records lie along the first axis of all of them."""

    source = "recshuf.formats.arrays.source:ArchiveSource"
    traits = Traits(
        "npz",
        (".npz",),
        ("none", "gzip"),
        options=(DATASETS, KEEP_OTHERS),
        libraries=("numpy",),
        adds_columns=False,
        content_rank=4,
    )

    def recognises(self, head: bytes) -> bool:
        length = int.from_bytes(head[26:28], "little")
        return head.startswith(_ZIP) and head[30 : 30 + length].endswith(b".npy")


NPY, NPZ, BINARY = NpyFormat(), NpzFormat(), BinaryFormat()
