"""Blocks: the records of some groups, which batches are cut from: record batches, or columns by name.

A column is, by its type:

    numbers, booleans               array of shape (n,)
    dates, times, durations         array of datetime64 or timedelta64, shape (n,); a time is the duration since midnight
    lists of a fixed size of these  array of shape (n, size), lists in lists (n, size, size) ...
    `_id`                           array of int64 of shape (n, 2): source and row
    binary of a fixed size          array of uint8 of shape (n, size)
    text                            list of str
    binary                          list of bytes
    all others                      Arrow array

A column of numbers is an Arrow array, too, if it has nulls: in all batches, if a store knows that it has some. In lists of text, a null is None. By `_id` anybody
can check an epoch. In batches for PyTorch and JAX, tensors and arrays of JAX stand for arrays, where dates and times are int64 counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, get_args

import numpy as np
import pyarrow as pa

from recshuf.errors import UsageError
from recshuf.formats.stored import ID_TYPE
from recshuf.records.arrays import unpack_bits, view_bytes, wrap_values
from recshuf.records.batch import concat_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from numpy.typing import NDArray

    Transform = Callable[[Any, NDArray[np.uint64]], Any]
    """Gets a batch and the seeds of its records, of shape ``(n,)``, and returns what the trainer gets."""

Output = Literal["numpy", "arrow", "torch", "jax"]
"""Forms of batches."""
OUTPUTS = get_args(Output)


class Part(NamedTuple):
    """Consecutive records of a block."""

    block: Any
    """A `Block`, of the same class in all parts of a batch."""
    start: int
    stop: int


class Block(Protocol):
    """Records in the order of the epoch. Nobody else writes to the memory of a batch."""

    @staticmethod
    def cut(parts: Sequence[Part]) -> Any:
        """Return one or more parts as a batch; those of one part are views if possible."""
        ...


class ArrowBlock:
    """Record batches."""

    def __init__(self, records: pa.RecordBatch) -> None:
        self.records = records

    @staticmethod
    def cut(parts: Sequence[Part]) -> pa.RecordBatch:
        return concat_batches([block.records.slice(start, stop - start) for block, start, stop in parts])


class NumpyBlock:
    """Dictionaries from the names of columns to what the table above tells.

    Parameters
    ----------
    nulls
        Names of columns that have nulls in some batch: they are Arrow arrays in all. Default: in those that have nulls.
    convert
        Makes what stands for arrays, given the name of a column and its array in a batch. Default: these themselves.
    """

    def __init__(
        self,
        records: pa.RecordBatch,
        nulls: Collection[str] = (),
        convert: Callable[[str, NDArray[Any]], Any] | None = None,
    ) -> None:
        self.records, self.nulls, self.convert = records, nulls, convert
        self.columns = [
            (name, column, None if name in nulls else view_values(column))
            for name, column in zip(records.schema.names, records.columns, strict=True)
        ]
        """Each in Arrow's form, and as an array where one can hold all its values, else None."""

    @staticmethod
    def cut(parts: Sequence[Part]) -> dict[str, Any]:
        block, start, stop = parts[0]
        if len(parts) > 1:
            records = ArrowBlock.cut(parts)
            block, start, stop = NumpyBlock(records, block.nulls, block.convert), 0, records.num_rows
        return {
            name: block.show(
                name, column.slice(start, stop - start) if values is None else values[start:stop]
            )
            for name, column, values in block.columns
        }

    def show(self, name: str, column: Any) -> Any:
        """Return a column of a batch, given in Arrow's form if it is no array as a whole."""
        if isinstance(column, pa.Array):
            if column.type.id in _TEXTS:
                return column.to_pylist()
            values = None if name in self.nulls else view_values(column)
            if values is None:
                return column
            column = values
        return column if self.convert is None else self.convert(name, column)


def _to_torch(_: str, column: NDArray[Any]) -> Any:
    from torch import from_numpy

    return from_numpy(_count_times(column))


def _to_jax(name: str, column: NDArray[Any]) -> Any:
    import jax

    column = _count_times(column)
    narrow = jax.dtypes.canonicalize_dtype(column.dtype)
    if narrow != column.dtype:
        raise UsageError(
            f'output="jax": column {name!r} holds {column.dtype}, which JAX would make {narrow}; call '
            'jax.config.update("jax_enable_x64", True), or name other columns'
        )
    return jax.numpy.asarray(column)


def _count_times(column: NDArray[Any]) -> NDArray[Any]:
    return column.view(np.int64) if column.dtype.kind in "mM" else column


_PACKAGES = {
    "torch": ("PyTorch", "recshuf[torch]", _to_torch),
    "jax": ("JAX", "jax", _to_jax),
}
"""What forms need beside NumPy and Arrow, what installs it, and what makes its arrays."""


def choose_block(
    output: str, nulls: Collection[str] | None = None, transform: Transform | None = None
) -> Callable[[pa.RecordBatch], Block]:
    """Return what makes the blocks of batches of a form. For `nulls` see `NumpyBlock`, with `transform` see `TransformedBlock`."""
    if output not in OUTPUTS:
        raise UsageError(f"output={output!r}: give one of {', '.join(map(repr, OUTPUTS))}")
    convert = None
    if output in _PACKAGES:
        name, remedy, convert = _PACKAGES[output]
        try:
            import_module(output)
        except ImportError as error:
            raise UsageError(
                f'output="{output}" needs {name}, which is not installed; install {remedy}'
            ) from error
    make: Callable[[pa.RecordBatch], Block] = ArrowBlock
    if output != "arrow":
        make = partial(NumpyBlock, nulls=nulls or (), convert=convert)
    return make if transform is None else partial(TransformedBlock, make_block=make, transform=transform)


_SEEDS = "seeds"


def append_seeds(records: pa.RecordBatch, seeds: NDArray[np.uint64]) -> pa.RecordBatch:
    return records.append_column(_SEEDS, wrap_values(seeds, pa.uint64()))


class TransformedBlock:
    """A block whose batches are transformed.

    Parameters
    ----------
    records
        Records whose last column is their seeds.
    make_block
        Makes the block of the other columns.
    """

    def __init__(
        self,
        records: pa.RecordBatch,
        make_block: Callable[[pa.RecordBatch], Block],
        transform: Transform,
    ) -> None:
        self.seeds: NDArray[np.uint64] = view_bytes(records.columns[-1]).view(np.uint64)
        self.inner = make_block(records.select(range(records.num_columns - 1)))
        self.transform = transform

    @staticmethod
    def cut(parts: Sequence[Part]) -> Any:
        first = parts[0].block
        seeds = np.concatenate([block.seeds[start:stop] for block, start, stop in parts])
        batch = first.inner.cut([Part(block.inner, start, stop) for block, start, stop in parts])
        return first.transform(batch, seeds)


_UNITS = ("s", "ms", "us", "ns")
_DTYPES: dict[pa.DataType, tuple[str, str]] = {
    pa.bool_(): ("u1", "?"),
    **{
        getattr(pa, f"{kind}{8 * size}")(): (f"{kind[0]}{size}",) * 2
        for kind in ("int", "uint", "float")
        for size in (1, 2, 4, 8)
        if (kind, size) != ("float", 1)
    },
    pa.date32(): ("i4", "M8[D]"),
    pa.date64(): ("i8", "M8[ms]"),
    **{pa.duration(unit): ("i8", f"m8[{unit}]") for unit in _UNITS},
    **{pa.time32(unit): ("i4", f"m8[{unit}]") for unit in _UNITS[:2]},
    **{pa.time64(unit): ("i8", f"m8[{unit}]") for unit in _UNITS[2:]},
    **{pa.timestamp(unit): ("i8", f"M8[{unit}]") for unit in _UNITS},
}
"""Types that arrays hold: the type of their values in Arrow's memory, and that of the array."""
_TEXTS = {kind.id for kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())}


class _Layout(NamedTuple):
    """How an array holds the values of a type."""

    depth: int
    """Number of lists of a fixed size around the values."""
    shape: tuple[int, ...]
    """Shape of a value."""
    stored: np.dtype[Any]
    """Type of its numbers in Arrow's memory."""
    wanted: np.dtype[Any]
    """Type of the numbers of the array."""


def view_values(column: pa.Array) -> NDArray[Any] | None:
    """Return the values of a column as an array that can be written to; None where the table above names none.

    It is a view if the memory of the column can be written to, and its type allows.
    """
    if column.type == ID_TYPE:
        kinds = (np.int32, np.int64)
        parts = [view_bytes(part).view(kind) for part, kind in zip(column.flatten(), kinds, strict=True)]
        return np.stack(parts, axis=1, dtype=np.int64)
    # Extension types may have no hash.
    layout = None if isinstance(column.type, pa.BaseExtensionType) else _find_layout(column.type)
    if layout is None or column.null_count:
        return None
    count = len(column)
    for _ in range(layout.depth):
        size = column.type.list_size
        column = column.values.slice(column.offset * size, len(column) * size)
        if column.null_count:
            return None
    if layout.wanted == np.bool_:
        values = unpack_bits(column.buffers()[1], column).view(np.bool_)
    else:
        values = view_bytes(column).view(layout.stored)
        is_wider = layout.wanted.itemsize > layout.stored.itemsize
        values = values.astype(layout.wanted) if is_wider else values.view(layout.wanted)
    return (values if values.flags.writeable else values.copy()).reshape(count, *layout.shape)


def iterate_rows(batch: Any) -> Iterator[dict[str, Any]]:
    if isinstance(batch, pa.RecordBatch):
        yield from batch.to_pylist()
        return
    if not isinstance(batch, Mapping):
        raise UsageError(
            f"records: the transform returned {type(batch).__name__}, no dictionary of columns; iterate over the loader"
        )
    columns = [one.to_pylist() if isinstance(one, pa.Array) else one for one in batch.values()]
    for values in zip(*columns, strict=True):
        yield dict(zip(batch, values, strict=True))


@lru_cache(maxsize=256)
def _find_layout(kind: pa.DataType) -> _Layout | None:
    """Return how an array holds the values of a type; None if it does not."""
    shape: list[int] = []
    while pa.types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind = kind.value_type
    depth = len(shape)
    if pa.types.is_fixed_size_binary(kind):
        shape.append(kind.byte_width)
        dtypes: tuple[str, str] | None = ("u1", "u1")
    else:
        dtypes = _DTYPES.get(pa.timestamp(kind.unit) if pa.types.is_timestamp(kind) else kind)
    return None if dtypes is None else _Layout(depth, tuple(shape), *map(np.dtype, dtypes))
