"""Options of any type: those of NumPy become plain ones, and others are refused by name."""

from __future__ import annotations

import io
import json
from itertools import product
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, BinaryIO, get_args, get_origin, get_type_hints

import numpy as np
import pytest

import recshuf
from recshuf.errors import UsageError
from recshuf.job.arguments import make_job
from recshuf.job.options import ArrowSchema, Options, OrderOptions, describe_options

MEGABYTE = 10**6
NUMBERS = {
    "seed": 7, "piles": 3, "head_count": 5, "workers": 2, "shards": 3, "shard_records": 9, "header": 1,
    "memory": 300 * MEGABYTE, "max_record_bytes": 2 * MEGABYTE, "shard_bytes": MEGABYTE,
}  # fmt: skip
SIZES = ("memory", "max_record_bytes", "shard_bytes")
VALUES = [7, 1.5, "x", b"x", [1], ["x"], {}, object(), None, True, np.array([1, 2]), np.array(["a"]), io.StringIO(), Path("x")]  # fmt: skip
HINTS = get_type_hints(Options)


def kinds_of(name: str) -> tuple[type, ...]:
    """Return the classes of the declared type of an option."""
    members = get_args(HINTS[name]) if isinstance(HINTS[name], UnionType) else (HINTS[name],)
    kinds = {get_origin(one) or one for one in members} - {ArrowSchema}
    return tuple(io.BytesIO if kind is BinaryIO else kind for kind in kinds)


def list_wrong(name: str) -> list[Any]:
    kinds = kinds_of(name)
    wrong = [one for one in VALUES if not isinstance(one, kinds)] + [True] * (bool not in kinds)
    return wrong + [{"x"}, frozenset({"x"})] + [b"x", [1], {}] * (name in ("datasets", "columns"))


def test_values_of_other_types_are_refused_by_name(tmp_path: Path) -> None:
    for name, value in ((one, value) for one in HINTS for value in list_wrong(one)):
        with pytest.raises(UsageError) as caught:
            recshuf.shuffle(tmp_path / "none.txt", tmp_path / "out.txt", **{name: value})
        assert str(caught.value).startswith((f"{name}: ", f"{name} "))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("function", [recshuf.check, recshuf.picture])
def test_values_of_other_types_are_refused_by_what_reads_an_order(function: Any) -> None:
    names = ("column", "id_column", "provenance", "datasets", "columns", "to")
    assert {*names} <= OrderOptions.__annotations__.keys()
    for name, value in product(names, (7, [1], object(), b"x")):
        with pytest.raises(UsageError, match=f"^{name}: give .*; here: {type(value).__name__}$"):
            function("none.txt", **{name: value})


def make_both(name: str, plain: Any, value: Any) -> list[Any]:
    return [make_job("in", "out", {"memory": MEGABYTE * 100, name: one}) for one in (plain, value)]  # type: ignore[misc]


def test_numbers_of_numpy_are_taken_as_plain_ones() -> None:
    kinds = [(name, kind) for name in NUMBERS for kind in (np.int64, np.uint32, np.array)]
    kinds += [(name, kind) for name in SIZES for kind in (float, np.float64, np.float32)]
    for name, value in ((name, kind(NUMBERS[name])) for name, kind in kinds):
        plain, found = make_both(name, NUMBERS[name], value)
        assert (found.memory_bytes, found.workers, found.cut, found.read) == (
            plain.memory_bytes, plain.workers, plain.cut, plain.read,
        )  # fmt: skip
        assert json.dumps(describe_options(found)) == json.dumps(describe_options(plain))
        assert found.options[name] == NUMBERS[name]
        assert type(found.options[name]) in (int, float)
        cut = () if found.cut is None else (found.cut.shards, found.cut.shard_records, found.cut.shard_bytes)
        assert {type(one) for one in (found.memory_bytes, found.workers, *cut)} <= {int, NoneType}


def test_flags_and_text_of_numpy_are_taken_as_plain_ones() -> None:
    plain, found = make_both("overwrite", True, np.True_)
    assert plain.options == found.options
    assert found.options["overwrite"] is True
    plain, found = make_both("compression", "zstd", np.str_("zstd"))
    assert type(found.options["compression"]) is str
    plain, found = make_both("columns", ["a", "b"], np.array(["a", "b"]))
    assert plain.read == found.read
    assert all(type(name) is str for name in found.read.columns)
