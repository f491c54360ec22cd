"""Records of a fixed number of bytes: NumPy arrays in `.npy` files, and binary records behind a header."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recshuf.interfaces import Format, Traits

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from recshuf.interfaces import Decoder, InputFile, ReadOptions, Source, StoredInputs, Target, WriteOptions


MAGIC = b"\x93NUMPY"


class _FixedFormat(Format):
    """What both formats share: a record is so many bytes."""

    def open_source(self, inputs: Sequence[InputFile], options: ReadOptions) -> Source:
        from recshuf.formats.arrays.source import FixedSource

        return FixedSource(inputs, options, is_npy=self.traits.name == "npy")

    def open_target(self, schema: pa.Schema, layout: object | None, options: WriteOptions) -> Target:  # noqa: ARG002 - none applies
        from recshuf.formats.arrays.sink import FixedLayout, FixedTarget, find_layout

        if layout is not None and not isinstance(layout, FixedLayout):
            raise TypeError(f"not a layout of fixed records: {type(layout).__name__}")
        return FixedTarget(schema, layout or find_layout(schema, is_npy=self.traits.name == "npy"))

    @property
    def layout_types(self) -> tuple[type, ...]:  # type: ignore[override] # imports the library
        from recshuf.formats.arrays.sink import FixedLayout

        return (FixedLayout,)

    def restore_decoder(self, stored: StoredInputs) -> Decoder:
        from recshuf.formats.arrays.decoder import FixedDecoder
        from recshuf.formats.arrays.sink import FixedLayout

        layout = stored.layout
        assert isinstance(layout, FixedLayout)  # noqa: S101 - it was packed by this format
        return FixedDecoder(layout)


class NpyFormat(_FixedFormat):
    """NumPy's format of one array; records lie along its first axis."""

    traits = Traits(
        "npy", (".npy",), libraries=("numpy",), has_columns=False, adds_columns=False, content_rank=3
    )

    def recognises(self, head: bytes) -> bool:
        return head.startswith(MAGIC)


class BinaryFormat(_FixedFormat):
    """Records of `--record-bytes` behind a header of `--header-bytes`."""

    traits = Traits(
        "binary",
        (".bin",),
        read_options=frozenset({"record_bytes", "header_bytes", "dtype"}),
        has_columns=False,
        adds_columns=False,
    )


NPY, BINARY = NpyFormat(), BinaryFormat()
