"""Blocks: the records of some groups, which batches are cut from: record batches, or arrays or tensors by name."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, get_args

import numpy as np
import pyarrow as pa

from recshuf.errors import UsageError
from recshuf.records.arrays import view_bytes, wrap_values
from recshuf.records.batch import concat_batches
from recshuf.train.columns import show_column, view_values

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

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
    """Dictionaries from the names of columns to what `columns` tells.

    Parameters
    ----------
    nulls
        Names of columns that have nulls in some batch: they are Arrow arrays in all. Default: in those that have nulls.
    """

    def __init__(self, records: pa.RecordBatch, nulls: Collection[str] = ()) -> None:
        self.names: list[str] = records.schema.names
        self._nulls = nulls
        self.columns = [
            (column, None if name in nulls else self._wrap(view_values(column)))
            for name, column in zip(self.names, records.columns, strict=True)
        ]
        """Each in Arrow's form, and as an array where one can hold all its values, else None."""

    @staticmethod
    def cut(parts: Sequence[Part]) -> dict[str, Any]:
        first, start, stop = parts[0]
        if len(parts) == 1:
            return {
                name: first.show(name, column.slice(start, stop - start))
                if values is None
                else values[start:stop]
                for name, (column, values) in zip(first.names, first.columns, strict=True)
            }
        columns = zip(*[block.columns for block, _, _ in parts], strict=True)
        return {
            name: first.join_column(name, parts, column)
            for name, column in zip(first.names, columns, strict=True)
        }

    def show(self, name: str, column: pa.Array) -> Any:
        """Return some records of a column that is no array as a whole."""
        return self._wrap(show_column(column, may_be_array=name not in self._nulls))

    def join_column(self, name: str, parts: Sequence[Part], columns: Sequence[tuple[pa.Array, Any]]) -> Any:
        """Return the parts of a column of several blocks."""
        arrays = [
            values[start:stop]
            for (_, values), (_, start, stop) in zip(columns, parts, strict=True)
            if values is not None
        ]
        if len(arrays) == len(parts):
            return self._join(arrays)
        slices = [
            column.slice(start, stop - start)
            for (column, _), (_, start, stop) in zip(columns, parts, strict=True)
        ]
        return self.show(name, pa.concat_arrays(slices))

    def _wrap(self, column: Any) -> Any:
        """Return a column, in another form if it is an array."""
        return column

    def _join(self, arrays: Sequence[Any]) -> Any:
        return np.concatenate(arrays)


class TorchBlock(NumpyBlock):
    """Dictionaries from the names of columns to tensors where `NumpyBlock` has arrays. Dates and times are int64 counts."""

    def _wrap(self, column: Any) -> Any:
        from torch import from_numpy

        if not isinstance(column, np.ndarray):
            return column
        return from_numpy(column.view(np.int64) if column.dtype.kind in "mM" else column)

    def _join(self, arrays: Sequence[Any]) -> Any:
        # torch.cat would share small work among threads, which takes longer.
        return self._wrap(np.concatenate([tensor.numpy() for tensor in arrays]))


class JaxBlock(NumpyBlock):
    """Dictionaries from the names of columns to arrays of JAX where `TorchBlock` has tensors, made of a batch at a time."""

    @staticmethod
    def cut(parts: Sequence[Part]) -> dict[str, Any]:
        return {
            name: _to_jax(name, column) if isinstance(column, np.ndarray) else column
            for name, column in NumpyBlock.cut(parts).items()
        }


def _to_jax(name: str, column: NDArray[Any]) -> Any:
    import jax

    column = column.view(np.int64) if column.dtype.kind in "mM" else column
    narrow = jax.dtypes.canonicalize_dtype(column.dtype)
    if narrow != column.dtype:
        raise UsageError(
            f'output="jax": column {name!r} holds {column.dtype}, which JAX would make {narrow}; call '
            'jax.config.update("jax_enable_x64", True), or name other columns'
        )
    return jax.numpy.asarray(column)


_PACKAGES = {"torch": ("PyTorch", "recshuf[torch]"), "jax": ("JAX", "jax")}
"""What forms need beside NumPy and Arrow, and what installs it."""
_BLOCKS: dict[str, Callable[..., Block]] = {
    "numpy": NumpyBlock,
    "arrow": ArrowBlock,
    "torch": TorchBlock,
    "jax": JaxBlock,
}


def choose_block(
    output: str, nulls: Collection[str] | None = None, transform: Transform | None = None
) -> Callable[[pa.RecordBatch], Block]:
    """Return what makes the blocks of batches of a form. For `nulls` see `NumpyBlock`, with `transform` see `TransformedBlock`."""
    if output not in OUTPUTS:
        raise UsageError(f"output={output!r}: give one of {', '.join(map(repr, OUTPUTS))}")
    if output in _PACKAGES:
        name, remedy = _PACKAGES[output]
        try:
            import_module(output)
        except ImportError as error:
            raise UsageError(
                f'output="{output}" needs {name}, which is not installed; install {remedy}'
            ) from error
    make = partial(_BLOCKS[output], nulls=nulls) if nulls and output != "arrow" else _BLOCKS[output]
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
