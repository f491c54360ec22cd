"""Hive partition folders (``year=2024/lang=en``) as columns."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa

from recshuf.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recshuf.interfaces import InputFile

_NULL = "__HIVE_DEFAULT_PARTITION__"
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")


class PartitionColumns:
    """Columns from the partition folders of the inputs, each constant within one input.

    A column is int64 if every value of every input is an integer, else string.

    Parameters
    ----------
    own
        Names of the columns of the files, which take precedence over folders of the same name.

    Raises
    ------
    InputError
        When the inputs do not all have the same keys, naming two of them.
    """

    def __init__(self, inputs: Sequence[InputFile], own: set[str]) -> None:
        self._values = [_values_of(file, own) for file in inputs]
        for file, values in zip(inputs, self._values, strict=True):
            if values.keys() != self._values[0].keys():
                raise InputError(
                    file.name,
                    f"its folders give the columns {_listed(values)}, those of {inputs[0].name} {_listed(self._values[0])}",
                    remedy="shuffle them apart, or move files so that all have the same partition folders",
                )
        self._types = {key: _type_of([values[key] for values in self._values]) for key in self._values[0]}
        self.fields = tuple(pa.field(key, kind) for key, kind in self._types.items())

    def scalar(self, input_index: int, key: str) -> pa.Scalar:
        """Return the value of the column `key` in every record of one input."""
        value = self._values[input_index][key]
        kind = self._types[key]
        return pa.scalar(int(value) if value is not None and kind == pa.int64() else value, kind)

    def are_equal(self, first_input: int, second_input: int) -> bool:
        """Tell whether two inputs have the same values in all columns."""
        return self._values[first_input] == self._values[second_input]


def _type_of(values: list[str | None]) -> pa.DataType:
    known = [value for value in values if value is not None]
    return pa.int64() if known and all(map(_INTEGER.fullmatch, known)) else pa.string()


def _values_of(file: InputFile, own: set[str]) -> dict[str, str | None]:
    pairs = ((unquote(key), _decode(value)) for key, value in file.partitions)
    return {key: value for key, value in pairs if key not in own}


def _decode(value: str) -> str | None:
    return None if value == _NULL else unquote(value)


def _listed(keys: object) -> str:
    names = sorted(keys)  # type: ignore[call-overload]
    return ", ".join(map(repr, names)) if names else "nothing"
