"""The decoder of rows: their native form is a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recshuf.interfaces import Decoder

if TYPE_CHECKING:
    import pyarrow as pa


class IdentityDecoder(Decoder):
    """Decoder of batches in table form, which returns them unchanged."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    @property
    def schema(self) -> pa.Schema:
        """Schema of native form and table form alike."""
        return self._schema

    def observe(self, batch: pa.RecordBatch, input_index: int, first_row: int) -> None:
        """Do nothing: the schema is known."""

    def finish(self) -> pa.Schema:
        """Return the schema."""
        return self._schema

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch itself."""
        return batch
