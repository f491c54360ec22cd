"""Values of several kinds, of which Arrow would make one, are refused by the name of their column."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, date, datetime, time, timedelta, timezone
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import recshuf
from recshuf.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

ZONE = timezone(timedelta(hours=5))
HOUR, HOUR_IN_ZONE = time(1), time(1, tzinfo=ZONE)
DAY, TIME, TIME_IN_ZONE = date(2026, 1, 1), datetime(2026, 1, 2, 3), datetime(2026, 1, 1, tzinfo=UTC)


def refuse(store: Path, data: Any) -> str:
    """Write data that are refused, and return the error."""
    with recshuf.PileWriter(store, "w", piles=1) as writer:
        with pytest.raises(UsageError) as caught:
            writer.write(data)
        assert writer.num_records == 0
    assert "\n" not in str(caught.value)
    return str(caught.value)


def take(store: Path, data: Any) -> list[Any]:
    """Write data that are taken, and return column ``a``, in any order."""
    with recshuf.PileWriter(store, "w", piles=1) as writer:
        writer.write(data)
    (batch,) = recshuf.PileLoader(store, writer.num_records, columns=["a"], output="arrow")
    return batch.to_pydict()["a"]


def make(form: str, values: Any) -> Any:
    return {
        "dicts": lambda: [{"a": value} for value in values],
        "dict": lambda: {"a": values},
        "objects": lambda: {"a": pd.Series(values, dtype=object)},
        "frame": lambda: pd.DataFrame({"a": pd.Series(values, dtype=object)}),
    }[form]()


FLAT = {
    "text first": (["a", b"b"], "mixes text and bytes"),
    "bytes first": ([b"a", None, "b"], "mixes text and bytes"),
    "text of NumPy": ([b"a", np.str_("b")], "mixes text and bytes"),
    "array of bytes": (["a", bytearray(b"b")], "mixes text and bytes"),
    "zone": ([HOUR_IN_ZONE], "has times of day with a zone"),
    "a zone": ([None, HOUR, HOUR_IN_ZONE], "has times of day with a zone"),
    "days": ([DAY, None, TIME], "mixes dates and times"),
    "times": ([TIME_IN_ZONE, TIME], "mixes dates and times, or times with and without"),
}


@pytest.mark.parametrize("case", FLAT)
@pytest.mark.parametrize("form", ["dicts", "dict", "objects", "frame"])
def test_mixes_are_refused(tmp_path: Path, case: str, form: str) -> None:
    values, problem = FLAT[case]
    assert refuse(tmp_path / "s", make(form, values)).startswith(f"column 'a' {problem}")


NESTED = {
    "list": ([["a"], [b"b"]], "a"),
    "one list": ([[b"a", "b"]], "a"),
    "struct": ([{"b": "a"}, None, {"b": b"b"}], "a.b"),
    "deep": ([{"b": [{"c": b"a"}]}, {"b": [None, {"c": "b"}]}], "a.b.c"),
    "hours": ([[HOUR], [HOUR_IN_ZONE]], "a"),
    "hours of structs": ([{"b": HOUR_IN_ZONE}], "a.b"),
}


@pytest.mark.parametrize("case", NESTED)
@pytest.mark.parametrize("form", ["dicts", "dict"])
def test_mixes_inside_are_refused(tmp_path: Path, case: str, form: str) -> None:
    values, path = NESTED[case]
    assert refuse(tmp_path / "s", make(form, values)).startswith(f"column '{path}' ")


@pytest.mark.parametrize("form", ["dicts", "dict", "objects", "frame"])
@pytest.mark.parametrize(
    "values", [["a", None], [b"a", bytearray(b"b"), None], [HOUR, time(2), None], [TIME_IN_ZONE, None]]
)
def test_values_of_one_kind_are_taken(tmp_path: Path, values: list[Any], form: str) -> None:
    assert sorted(map(str, take(tmp_path / "s", make(form, values)))) == sorted(
        str(bytes(value) if isinstance(value, bytearray) else value) for value in values
    )


def test_missing_values_of_pandas_are_of_no_kind(tmp_path: Path) -> None:
    values = [TIME_IN_ZONE, pd.NaT, None, float("nan")]
    found = take(tmp_path / "s", make("frame", values))
    assert sorted(map(str, found)) == sorted(map(str, [TIME_IN_ZONE, None, None, None]))


@pytest.mark.parametrize("name", [None, 1, b"a", 1.5])
@pytest.mark.parametrize("form", ["dicts", "dict"])
def test_names_of_columns_are_text(tmp_path: Path, name: Any, form: str) -> None:
    data: Any = [{"a": 1, name: 2}] if form == "dicts" else {"a": [1], name: [2]}
    assert refuse(tmp_path / "s", data).startswith(f"column {name!r}: the name is of type ")


@pytest.mark.parametrize("form", ["frame", "series"])
def test_objects_of_polars_are_refused(tmp_path: Path, form: str) -> None:
    series = pl.Series("o", [object(), None], dtype=pl.Object)
    data: Any = pl.DataFrame({"a": [1, 2], "o": series}) if form == "frame" else {"a": [1, 2], "o": series}
    assert refuse(tmp_path / "s", data).startswith("column 'o' has the type Object of polars")


def test_objects_of_polars_can_be_given_as_a_list(tmp_path: Path) -> None:
    series = pl.Series("o", [{"b": 1}, None], dtype=pl.Object)
    assert take(tmp_path / "s", {"a": series.to_list()}) in ([{"b": 1}, None], [None, {"b": 1}])


def test_polars_is_not_imported(tmp_path: Path) -> None:
    code = (
        "import sys, pyarrow, recshuf\n"
        "with recshuf.PileWriter(sys.argv[1], 'w') as writer:\n"
        "    for data in (pyarrow.table({'a': [1]}).to_reader(), [{'a': 1}], {'a': pyarrow.chunked_array([[1]])}):\n"
        "        writer.write(data)\n"
        "assert 'polars' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "s")], check=True)
