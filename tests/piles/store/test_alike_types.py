"""Types that differ in the width of offsets, or are views, are taken in place of each other; others are named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl
import pyarrow as pa
import pytest

import recshuf
from recshuf.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Form(NamedTuple):
    """Types of text, bytes and lists that a library has."""

    text: pa.DataType
    data: pa.DataType
    list: Callable[..., pa.DataType]


NARROW = Form(pa.string(), pa.binary(), pa.list_)
WIDE = Form(pa.large_string(), pa.large_binary(), pa.large_list)
FORMS = (
    NARROW,
    WIDE,
    Form(pa.string_view(), pa.binary_view(), pa.list_view),
    Form(pa.large_string(), pa.binary(), pa.large_list_view),
    Form(pa.string(), pa.large_binary(), pa.large_list),
)
MAKERS: dict[str, Callable[[Form], pa.DataType]] = {
    "text": lambda form: form.text,
    "bytes": lambda form: form.data,
    "list": lambda form: form.list(pa.int64()),
    "list of text": lambda form: form.list(form.text),
    "list of lists": lambda form: form.list(form.list(form.data)),
    "fixed list": lambda form: pa.list_(form.list(form.text), 2),
    "struct": lambda form: pa.struct([("a", form.text), ("b", form.list(pa.int8()))]),
    "list of structs": lambda form: form.list(pa.struct([("a", form.text)])),
    "map": lambda form: pa.map_(form.text, form.list(pa.float32())),
}
VALUES: dict[str, list[Any]] = {
    "text": ["", "ü", None, "x" * 50],
    "bytes": [b"", b"\xff", None, b"x" * 50],
    "list": [[], [1, None], None, [3]],
    "list of text": [[], ["ü", None, "x" * 50], None, [""]],
    "list of lists": [[], [[b"a"], None, []], None, [[b"b" * 50]]],
    "fixed list": [[["a"], []], [None, ["b", None]], None, [[], []]],
    "struct": [{"a": "x", "b": [1]}, {"a": None, "b": None}, None, {"a": "", "b": []}],
    "list of structs": [[{"a": "x"}, None], [], None, [{"a": None}]],
    "map": [[("a", [0.5])], [], None, [("", None), ("b", [])]],
}


def write(store: Path, name: str, data: Any) -> None:
    with recshuf.PileWriter(store, name, piles=2) as writer:
        writer.write(data)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("stored", [NARROW, WIDE], ids=["narrow", "wide"])
def test_values_of_alike_types_come_back(tmp_path: Path, name: str, stored: Form) -> None:
    kind = MAKERS[name](stored)
    with recshuf.PileWriter(tmp_path / "store", "a", pa.schema([("v", kind)]), piles=2) as writer:
        for form in FORMS:
            given = pa.table({"v": pa.array(VALUES[name], MAKERS[name](form))})
            writer.write(given)
            writer.write(given.slice(1, 2))
    loader = recshuf.PileLoader(tmp_path / "store", 30, columns=["_id", "v"], output="arrow")
    (batch,) = loader
    rows = sorted(
        zip(batch["_id"].to_pylist(), batch["v"].to_pylist(), strict=True), key=lambda row: row[0]["row"]
    )
    assert [value for _, value in rows] == (VALUES[name] + VALUES[name][1:3]) * len(FORMS)
    assert batch["v"].type == kind


def test_frames_of_polars_join_tables_of_arrow(tmp_path: Path) -> None:
    columns = {"src": ["a", "b"], "ids": [[1], [2, 3]]}
    for order in (("arrow", "polars"), ("polars", "arrow")):
        for name in order:
            write(tmp_path / order[0], name, pa.table(columns) if name == "arrow" else pl.DataFrame(columns))
        (batch,) = recshuf.PileLoader(tmp_path / order[0], 4, output="arrow")
        assert sorted(batch["src"].to_pylist()) == ["a", "a", "b", "b"]


OTHERS = {
    "item": (pa.list_(pa.int64()), pa.large_list(pa.int32())),
    "size": (pa.list_(pa.int64(), 2), pa.list_(pa.int64(), 3)),
    "list of a size": (pa.list_(pa.int64()), pa.list_(pa.int64(), 3)),
    "field": (pa.struct([("a", pa.int8())]), pa.struct([("b", pa.int8())])),
    "null": (
        pa.list_(pa.field("item", pa.string(), nullable=False)),
        pa.list_(pa.field("item", pa.large_string())),
    ),
    "bytes": (pa.string(), pa.large_binary()),
    "key": (pa.map_(pa.string(), pa.int8()), pa.map_(pa.binary(), pa.int8())),
}


@pytest.mark.parametrize("name", OTHERS)
def test_the_column_that_differs_is_named(tmp_path: Path, name: str) -> None:
    stored, given = OTHERS[name]
    fields: list[tuple[str, pa.DataType]] = [("a", pa.string()), ("b", stored), ("c", pa.int64())]
    with recshuf.PileWriter(tmp_path / "store", "x", pa.schema(fields), piles=2) as writer:
        fields[:2] = [("a", pa.large_string()), ("b", given)]
        with pytest.raises(UsageError, match=r"^column 'b' is .*, and .* in the store; cast it$"):
            writer.write(pa.schema(fields).empty_table())
        writer.write({"a": ["t"], "b": [None], "c": [1]})
