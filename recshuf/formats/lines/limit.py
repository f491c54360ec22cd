"""The limit on the length of a record, and the error for a longer one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from recshuf.errors import InputError
from recshuf.formats.lines.cutting import view_records
from recshuf.records.arrays.arrow_views import view_offsets

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class RecordLimit:
    """The longest record accepted from one input."""

    name: str
    """The input as messages show it."""
    max_bytes: int
    """Separator included."""
    option: str
    """The command line option that raises the limit."""
    is_compressed: bool
    """Whether byte positions are those of the decompressed data."""
    hint: str = ""
    """What else the reader of the error may do."""

    def check(self, batch: pa.RecordBatch, origin: int) -> None:
        """Refuse a batch with a record that is too long.

        Parameters
        ----------
        origin
            Byte of the input at which the buffer of the batch begins.
        """
        records = batch.column(0)
        data, offsets = view_records(records)
        if data.size <= self.max_bytes:
            return
        too_long = np.flatnonzero(np.diff(offsets) > self.max_bytes)
        if too_long.size:
            raise self.exceeded(origin + int(view_offsets(records)[too_long[0]]))

    def exceeded(self, position: int) -> InputError:
        """Return the error for a record that starts at byte `position`."""
        return InputError(
            self.name,
            f"the record that starts here is longer than {self.max_bytes} bytes",
            place=f"byte {position} of the decompressed data" if self.is_compressed else f"byte {position}",
            remedy=f"raise {self.option}{self.hint}",
        )
