"""HDF5 shards of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recshuf.formats.hdf5.writing.plan import plan_shard
from recshuf.formats.hdf5.writing.sink import Hdf5Sink
from recshuf.interfaces import Sink, Target

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from recshuf.formats.hdf5.tables.layout import TableEncoder
    from recshuf.formats.hdf5.writing.template import Layout


class Hdf5Target(Target):
    """Shards that begin with one image.

    Parameters
    ----------
    layout
        The image, and its datasets of the record.
    encoder
        Turns table form into native batches; None if the sinks get native batches.
    """

    suffix = ".h5"

    def __init__(self, layout: Layout, encoder: TableEncoder | None = None) -> None:
        self._layout = layout
        self.notes = tuple(layout.notes.values())
        self._plan = plan_shard(layout)
        self._encoder = encoder

    def sink_bytes(self, threads: int) -> int:
        """Return the memory of rows that wait for a full step, and of chunks being written."""
        return self._plan.memory_bytes(threads) + len(self._layout.image)

    def open(self, path: Path, threads: int) -> Sink:
        """Create the file from the image and return its sink."""
        sink = Hdf5Sink(path, self._layout.image, self._plan, threads)
        return sink if self._encoder is None else _EncodingSink(sink, self._encoder)


class _EncodingSink(Sink):
    """A sink for table form in front of one for native batches."""

    def __init__(self, sink: Hdf5Sink, encoder: TableEncoder) -> None:
        self._sink = sink
        self._encoder = encoder

    @property
    def record_count(self) -> int:
        """See `Sink`."""
        return self._sink.record_count

    def write(self, batch: pa.RecordBatch) -> None:
        """Append the records of a batch of the target's schema."""
        self._sink.write(self._encoder.encode(batch))

    def close(self) -> None:
        """Complete the file."""
        self._sink.close()

    def abort(self) -> None:
        """Close the file as it is."""
        self._sink.abort()
