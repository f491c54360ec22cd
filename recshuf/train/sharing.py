"""Batches, and blocks that batches are cut from, on their way from a worker process to the one that trains."""

from __future__ import annotations

import multiprocessing
import os
import threading
from functools import cache
from itertools import islice
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from recshuf.train.blocks import choose_block, make_batch
from recshuf.train.parcels import Label, Parcel, receive

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Self

    import pyarrow as pa

    from recshuf.train.blocks import Block


PARCEL_BYTES = 4 << 20
"""Of batches, about; those of records that vary much fill more or less."""


class SharedBatch:
    """A batch in the worker that made it; a dictionary in the process that it is sent to.

    It has the methods of a dictionary. One that nobody has used is sent as a label. Any use makes it a dictionary of its
    own, which is sent with all changes.
    """

    # No `Mapping`: PyTorch's default `collate_fn` would look at all values of one, so that none would be sent as a label.
    __slots__ = ("_number", "_output", "_parcel", "_values")

    def __init__(self, parcel: Parcel, number: int, output: str) -> None:
        self._parcel = parcel
        self._number = number
        self._output = output
        self._values: dict[str, Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        if self._values is not None:
            return dict, (self._values,)
        return _receive_batch, (self._output, self._parcel.send(self._number))

    @property
    def values_by_name(self) -> dict[str, Any]:
        """The batch as a dictionary."""
        if self._values is None:
            self._values = make_batch(self._output, self._parcel.read(self._number))
        return self._values

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.values_by_name, name)

    def __getitem__(self, name: str) -> Any:
        return self.values_by_name[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.values_by_name[name] = value

    def __delitem__(self, name: str) -> None:
        del self.values_by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_name)

    def __len__(self) -> int:
        return len(self.values_by_name)

    def __contains__(self, name: object) -> bool:
        return name in self.values_by_name

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SharedBatch):
            other = other.values_by_name
        return self.values_by_name == other

    __hash__ = None  # type: ignore[assignment] # as that of a dictionary

    def __or__(self, other: Any) -> dict[str, Any]:
        return self.values_by_name | dict(other)

    def __ror__(self, other: Any) -> dict[str, Any]:
        return dict(other) | self.values_by_name

    def __ior__(self, other: Any) -> Self:
        self.values_by_name.update(other)
        return self

    def __repr__(self) -> str:
        return repr(self.values_by_name)


class SharedBlock:
    """The records of a block in the worker that read them; a `Block` in the process that it is sent to."""

    def __init__(self, records: pa.RecordBatch, output: str) -> None:
        self._parcel = Parcel([records])
        self._output = output

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive_block, (self._output, self._parcel.send(0))


def _receive_batch(output: str, label: Label) -> Any:
    return make_batch(output, receive(label))


def _receive_block(output: str, label: Label) -> Block:
    return choose_block(output)(receive(label))


def share_batches(batches: Iterable[pa.RecordBatch], output: str, together: int) -> Iterator[SharedBatch]:
    """Yield batches to be sent to another process, `together` in a parcel. The first is alone, so that it arrives soon."""
    waiting = iter(batches)
    count = 1
    while chosen := list(islice(waiting, count)):
        parcel = Parcel(chosen)
        for number in range(parcel.count):
            yield SharedBatch(parcel, number, output)
        count = together


@cache
def end_with_parent() -> None:
    """End this process when the one that made it ends, however that does.

    PyTorch's workers look every 5 s whether their parent lives, which with forkserver is not the one that made them.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(
            target=_end_after, args=(parent.sentinel,), name="recshuf-parent", daemon=True
        ).start()


def _end_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
