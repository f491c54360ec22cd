"""What Parquet files say beside their records: features of Hugging Face, extension types, JSON in keys, and copies of schemas."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import InputError, RecshufWarning
from tests.support.effort import mostly_slow

if TYPE_CHECKING:
    from pathlib import Path

Value = {"dtype": "int64", "_type": "Value"}


def label(*names: str) -> dict[str, Any]:
    return {"names": list(names), "_type": "ClassLabel"}


def features(**given: Any) -> dict[str, str]:
    return {"huggingface": json.dumps({"info": {"features": given}})}


ROWS = 4
COLUMNS = {
    "x": pa.array(range(ROWS)),
    "label": pa.array([0, 1] * 2),
    "s": pa.array([{"tags": [0, 1], "n": 1}] * ROWS),
}


class Run:
    """Writes inputs, and shuffles them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0

    def write(self, metadata: dict[str, str] | None = None, *names: str, **fields: dict[str, str]) -> Path:
        """Write a file with the metadata of its schema, only columns of some names, and the metadata of fields."""
        columns = {name: COLUMNS[name] for name in names or COLUMNS}
        schema = [pa.field(name, one.type, metadata=fields.get(name)) for name, one in columns.items()]
        self.count += 1
        path = self.folder / f"{self.count}.parquet"
        pq.write_table(pa.table([*columns.values()], schema=pa.schema(schema, metadata=metadata)), path)
        return path

    def shuffle(self, *paths: Path, **options: Any) -> pa.Schema:
        out = self.folder / "out.parquet"
        recshuf.shuffle(paths, out, seed=1, verify=True, overwrite=True, **options)
        return pq.read_schema(out)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


NESTED = {
    "column": lambda one: features(x=Value, label=one),
    "sequence": lambda one: features(s={"tags": {"feature": one, "_type": "Sequence"}, "n": Value}),
    "list": lambda one: features(s={"tags": [one], "n": Value}),
    "struct of its name": lambda one: features(s={"labels": {"names": one}}),
}


@pytest.mark.parametrize("kind", mostly_slow(NESTED, *[*NESTED][::2]))
def test_class_names_must_agree_wherever_they_stand(run: Run, kind: str) -> None:
    make = NESTED[kind]
    short, long, other = (run.write(make(label(*names))) for names in ("ab", "abc", "ba"))
    for order in ([short, long], [long, short], [short, long, short]):
        found = run.shuffle(*order).metadata[b"huggingface"]
        assert json.loads(found) == json.loads(make(label("a", "b", "c"))["huggingface"])
    for order in ([short, other], [long, other]):
        with pytest.raises(InputError, match=r"key 'huggingface/names': is \[\"b\", \"a\"\] here"):
            run.shuffle(*order)
    with pytest.warns(RecshufWarning, match="huggingface/names"):
        run.shuffle(short, other, first_metadata=True)


def test_features_of_columns_that_are_not_in_a_file_are_those_of_others(run: Run) -> None:
    """Also if no feature is known of the first file, and columns that are left out do not matter."""
    with_label = features(x=Value, label=label("a", "b"))
    bare, without, given = run.write(None, "x"), run.write(features(x=Value), "x"), run.write(with_label)
    for first in (bare, without):
        for order in ([first, given], [given, first]):
            found = json.loads(run.shuffle(*order).metadata[b"huggingface"])
            assert found["info"]["features"]["label"] == label("a", "b")
    other = run.write(features(x=Value, label=label("b", "a")))
    run.shuffle(given, other, columns="x")
    with pytest.raises(InputError, match="'label', key 'huggingface/names': is absent here"):
        run.shuffle(given, run.write())


def test_sampling_rates_of_features_must_agree_and_types_follow_the_columns(run: Run) -> None:
    def audio(rate: int, dtype: str) -> Path:
        return run.write(
            features(x={"sampling_rate": rate, "_type": "Audio"}, label={"dtype": dtype, "_type": "Value"})
        )

    run.shuffle(audio(8, "int64"), audio(8, "int32"))
    with pytest.raises(InputError, match="field 'x', key 'huggingface/sampling_rate': is 9 here and 8 in"):
        run.shuffle(audio(8, "int64"), audio(9, "int64"))


NAME, CONTENT = "ARROW:extension:name", "ARROW:extension:metadata"


def test_extension_types_must_agree(run: Run) -> None:
    first = run.write(x={NAME: "my.kind", CONTENT: '{"a": 1, "b": [2]}'})
    run.shuffle(first, run.write(x={NAME: "my.kind", CONTENT: '{"b":[2.0],"a":1}'}))
    for other in ({NAME: "my.other", CONTENT: '{"a": 1, "b": [2]}'}, {NAME: "my.kind", CONTENT: "{}"}, {}):
        second = run.write(x=other)
        for order in ([first, second], [second, first]):
            with pytest.raises(InputError, match="field 'x', key 'ARROW:extension"):
                run.shuffle(*order)
        with pytest.warns(RecshufWarning, match="ARROW:extension"):
            assert (
                run.shuffle(first, second, first_metadata=True).field("x").metadata[NAME.encode()]
                == b"my.kind"
            )


def as_tensors(*shape: int, **facts: Any) -> pa.Array:
    rows = pa.array([[1, 2, 3, 4]] * 2, pa.list_(pa.int64(), 4))
    return (
        rows
        if not shape
        else pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.int64(), shape, **facts), rows)
    )


TYPES = {
    "shape": (as_tensors(2, 2), as_tensors(4, 1)),
    "axes": (as_tensors(2, 2, dim_names=["a", "b"]), as_tensors(2, 2, dim_names=["b", "a"])),
    "order of axes": (as_tensors(2, 2), as_tensors(2, 2, permutation=[1, 0])),
    "absent": (as_tensors(2, 2), as_tensors()),
    "annotated": (
        pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"x" * 16], pa.binary(16))),
        pa.array([b"x" * 16], pa.binary(16)),
    ),
}


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("is_nested", mostly_slow([False, True], True))
def test_extension_types_that_arrow_knows_must_agree(run: Run, kind: str, is_nested: bool) -> None:
    arrays = [pa.StructArray.from_arrays([one], ["t"]) if is_nested else one for one in TYPES[kind]]
    paths = [run.folder / f"{name}.parquet" for name in "ab"]
    for path, array in zip(paths, arrays, strict=True):
        pq.write_table(pa.table({"c": array}), path)
    for order in (paths, paths[::-1]):
        with pytest.raises(
            InputError, match=rf"field 'c{'.t' * is_nested}', key 'ARROW:extension:name': is .* here"
        ):
            run.shuffle(*order)
        with pytest.warns(RecshufWarning, match="ARROW:extension:name"):
            assert run.shuffle(*order, first_metadata=True) == pq.read_schema(order[0])


def test_nested_fields_say_something_too(run: Run) -> None:
    def nested(**says: str) -> Path:
        inner = [pa.field("element", pa.struct([pa.field("n", pa.int64(), metadata=says)]))]
        path = run.folder / f"{len(says)} {says}.parquet"
        pq.write_table(pa.table([[[{"n": 1}]]], schema=pa.schema([pa.field("l", pa.list_(inner[0]))])), path)
        return path

    first, longer = nested(categories='["a"]'), nested(categories='["a", "b"]')
    for order in ([first, longer], [longer, first]):
        field = run.shuffle(*order).field("l").type.value_type.field("n")
        assert field.metadata == {b"categories": b'["a", "b"]'}
    with pytest.raises(InputError, match=r"field 'l\.element\.n', key 'categories'"):
        run.shuffle(first, nested(categories='["b"]'))


SPARK = "org.apache.spark.sql.parquet.row.metadata"


def spark(*names: str) -> str:
    plain = {"name": "x", "type": "long", "metadata": {}}
    indexed = {"name": "label", "type": "long", "metadata": {"ml_attr": {"vals": names}}}
    return json.dumps({"type": "struct", "fields": [plain, indexed]})


def nested_json(*names: str) -> str:
    return json.dumps({"data": {"classes": names, "created": len(names)}, "by": "us"})


@pytest.mark.parametrize(
    ("key", "make"), [(SPARK, spark), ("meta", nested_json), ("PANDAS_ATTRS", nested_json)]
)
def test_json_in_a_key_is_looked_into(run: Run, key: str, make: Any) -> None:
    short, long, other = (run.write({key: make(*names)}) for names in ("ab", "abc", "ba"))
    for order in ([short, long], [long, short]):
        found = json.loads(run.shuffle(*order).metadata[key.encode()])
        wanted = json.loads(make(*"abc"))
        for one in (found, wanted):
            one.get("data", {}).pop("created", None)
        assert found == wanted
    with pytest.raises(
        InputError, match=rf"footer '{key}.*': is \[\"b\", \"a\"\] here and \[\"a\", \"b\"\] in"
    ):
        run.shuffle(short, other)


def test_notes_of_pandas_follow_the_columns_and_attributes_of_frames_do_not(tmp_path: Path) -> None:
    """Nothing is said of other types, indexes and versions, and units must agree."""
    frames = {
        "a": pd.DataFrame({"n": [1, 2]}),
        "b": pd.DataFrame({"n": [3.0]}, index=[7]),
        "c": pd.DataFrame({"n": pd.array([1], "Int8")}),
    }
    for name, frame in frames.items():
        frame.to_parquet(tmp_path / f"{name}.parquet")
    paths = [tmp_path / f"{name}.parquet" for name in "abc"]
    assert not recshuf.shuffle(paths, tmp_path / "out.parquet", widen=True).warnings
    for name, unit in (("d", "m"), ("e", "km")):
        frames["a"].attrs = {"units": unit}
        frames["a"].to_parquet(tmp_path / f"{name}.parquet")
    with pytest.raises(InputError, match=r"footer '.*', key 'units': is \"km\" here and \"m\" in"):
        recshuf.shuffle([tmp_path / "d.parquet", tmp_path / "e.parquet"], tmp_path / "frames.parquet")
