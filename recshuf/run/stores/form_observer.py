"""What the records of a store are as a table: found out while they are scattered."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from recshuf.errors import ConversionError, InputError
from recshuf.formats.stored import TableForm

if TYPE_CHECKING:
    import pyarrow as pa

    from recshuf.interfaces import BadRecords, Decoder, Source


class FormObserver:
    """An `Observer`: a decoder sees all records, until one shows that they have no table form."""

    def __init__(self, inner: Decoder | None, failed: TableForm | None = None) -> None:
        self._inner = inner
        self._failed: dict[tuple[int, int], TableForm] = {(-1, 0): failed} if failed else {}
        self._lock = threading.Lock()

    @property
    def schema(self) -> pa.Schema | None:
        """See `Observer`."""
        return self._inner.schema if self._inner else None

    def observe(self, batch: pa.RecordBatch, input_index: int, first_row: int) -> BadRecords | None:
        """Observe records; those that cannot be decoded are no error."""
        if self._inner is None or self._failed:
            return None
        try:
            return self._inner.observe(batch, input_index, first_row)
        except (InputError, ConversionError) as error:
            with self._lock:
                self._failed[input_index, first_row] = TableForm.of_error(error)
            return None

    def finish_form(self) -> TableForm:
        """Return the table form of all records."""
        if self._inner is None or self._failed:
            return self._failed[min(self._failed)]
        try:
            return TableForm(self._inner.finish())
        except (InputError, ConversionError) as error:
            return TableForm.of_error(error)


def choose_observer(source: Source) -> FormObserver:
    """Return the observer of a source's records."""
    try:
        return FormObserver(source.decoder())
    except ConversionError as error:
        return FormObserver(None, TableForm.of_error(error))
