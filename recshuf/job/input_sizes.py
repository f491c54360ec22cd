"""Counts and sizes of inputs, before they are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

_UNKNOWN = -1


class InputSize(NamedTuple):
    """Counts and sizes of one input; None if unknown."""

    record_count: int | None
    byte_count: int | None
    """Size of its records as slices, with keys."""
    file_bytes: int | None
    is_exact: bool = True
    """Whether `record_count` is exact, not estimated."""


class InputSizes(Sequence[InputSize]):
    """Those of all inputs, as columns, because there may be millions.

    Parameters
    ----------
    numbers
        Records, bytes of records and bytes of the file of each input, shape ``(3, n)``; -1 if unknown.
    is_exact
        Whether the number of records is exact, shape ``(n,)``.
    """

    def __init__(self, numbers: NDArray[np.int64], is_exact: NDArray[np.bool_]) -> None:
        self._numbers = numbers
        self._is_exact = is_exact

    @classmethod
    def of(cls, inputs: Iterable[InputSize]) -> InputSizes:
        """Return the sizes of inputs as columns."""
        if isinstance(inputs, InputSizes):
            return inputs
        sizes = list(inputs)
        rows = [[_UNKNOWN if number is None else number for number in size[:3]] for size in sizes]
        numbers = np.array(rows, np.int64).reshape(-1, 3).T
        return cls(np.ascontiguousarray(numbers), np.array([size.is_exact for size in sizes], np.bool_))

    def __len__(self) -> int:
        return len(self._is_exact)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return InputSizes(self._numbers[:, index], self._is_exact[index])
        return _make_size(self._numbers[:, index].tolist(), bool(self._is_exact[index]))

    def __iter__(self) -> Iterator[InputSize]:
        for index in range(len(self)):
            yield self[index]

    @property
    def record_count(self) -> int | None:
        """Number of all records; None if that of an input is unknown."""
        return _sum(self._numbers[0])

    @property
    def byte_count(self) -> int | None:
        """Bytes of all records; None if those of an input are unknown."""
        return _sum(self._numbers[1])

    @property
    def file_bytes(self) -> int | None:
        """Bytes of all files; None if those of an input are unknown."""
        return _sum(self._numbers[2])

    @property
    def known_bytes(self) -> int | None:
        """Bytes of all files, where they are unknown of their records; None if both are unknown of an input."""
        files = self._numbers[2]
        return _sum(np.where(files == _UNKNOWN, self._numbers[1], files))

    @property
    def byte_counts(self) -> NDArray[np.int64]:
        """Bytes of the records of each input, 0 if unknown, shape ``(n,)``."""
        known: NDArray[np.int64] = np.maximum(self._numbers[1], 0)
        return known

    @property
    def are_exact(self) -> bool:
        """Whether the numbers of records are exact."""
        return bool(self._is_exact.all())


def _make_size(numbers: list[int], is_exact: bool) -> InputSize:
    records, record_bytes, file_bytes = (None if number == _UNKNOWN else number for number in numbers)
    return InputSize(records, record_bytes, file_bytes, is_exact)


def _sum(numbers: NDArray[np.int64]) -> int | None:
    return None if (numbers == _UNKNOWN).any() else int(numbers.sum())
