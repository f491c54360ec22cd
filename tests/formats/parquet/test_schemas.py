"""Files whose schemas differ become one table without loss, or the clash is named; folders named `key=value` become columns."""

from itertools import combinations_with_replacement, permutations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import InputError, UsageError
from tests.support.effort import some
from tests.support.formats.parquet_tools import label, load, open_source, read_all, shuffled, store, write_all

BIG = 2**53
# Of each type of numbers the least and the greatest that it tells from their neighbours.
EXTREMES = {
    **{
        pa.type_for_alias(f"int{bits}"): (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)
    },
    **{pa.type_for_alias(f"uint{bits}"): (0, 2**bits - 1) for bits in (8, 16, 32, 64)},
    **{
        pa.type_for_alias(name): (-(2**bits), 2**bits)
        for name, bits in (("float16", 11), ("float32", 24), ("float64", 53))
    },
}


def union_of(folder: Path, *kinds: pa.DataType, **options: Any) -> pa.DataType | None:
    """Return the type of a column that files have in these types; None if they clash."""
    paths = [store(folder / f"{n}.parquet", {"a": pa.nulls(0, kind)}) for n, kind in enumerate(kinds)]
    try:
        return open_source(*paths, **options).schema.field("a").type
    except InputError as error:
        assert f"{paths[-1].name}: field 'a" in str(error)
        return None


def holds(kind: pa.DataType, other: pa.DataType) -> bool:
    (least, greatest), (low, high) = EXTREMES[kind], EXTREMES[other]
    is_fraction = [pa.types.is_floating(one) for one in (kind, other)]
    if all(is_fraction):
        return kind.bit_width >= other.bit_width
    return not is_fraction[1] and least <= low and greatest >= high


def test_numbers_get_the_narrowest_type_that_holds_every_value_of_both(tmp_path: Path) -> None:
    for left, right in combinations_with_replacement(EXTREMES, 2):
        both = [kind for kind in EXTREMES if holds(kind, left) and holds(kind, right)]
        narrowest = min(both, key=lambda kind: (kind.bit_width, kind not in (left, right)), default=None)
        for pair in ((left, right), (right, left)):
            assert union_of(tmp_path, *pair) == narrowest, pair


def zoned(unit: str, zone: str | None = "UTC") -> pa.DataType:
    return pa.timestamp(unit, zone)


def sorted_map(is_sorted: bool) -> pa.DataType:
    return pa.map_(pa.string(), pa.int8(), keys_sorted=is_sorted)


UNIONS: list[tuple[pa.DataType, ...]] = [
    (pa.string(), pa.large_string(), pa.large_string()),
    (pa.binary(), pa.large_binary(), pa.large_binary()),
    (pa.null(), pa.list_(pa.int8()), pa.list_(pa.int8())),
    (zoned("ms", None), zoned("us", None), zoned("us", None)),
    (zoned("ms", "Europe/Berlin"), zoned("ns", "Europe/Berlin"), zoned("ns", "Europe/Berlin")),
    (pa.time32("ms"), pa.time64("ns"), pa.time64("ns")),
    (pa.time32("ms"), pa.time64("us"), pa.time64("us")),
    (pa.duration("ms"), pa.duration("us"), pa.duration("us")),
    (pa.decimal128(5, 2), pa.decimal128(9, 2), pa.decimal128(9, 2)),
    (pa.decimal128(5, 2), pa.decimal256(50, 2), pa.decimal256(50, 2)),
    (pa.list_(pa.int8()), pa.large_list(pa.int16()), pa.large_list(pa.int16())),
    (pa.list_(pa.int8(), 2), pa.list_(pa.int16(), 2), pa.list_(pa.int16(), 2)),
    (pa.map_(pa.string(), pa.int8()), pa.map_(pa.string(), pa.int16()), pa.map_(pa.string(), pa.int16())),
    (label(pa.int8()), pa.string_view(), pa.large_string()),
    (sorted_map(True), sorted_map(True), sorted_map(True)),
    (sorted_map(True), sorted_map(False), sorted_map(False)),
]


def test_dictionaries_are_united_in_shards(tmp_path: Path) -> None:
    for left, right, expected in (
        (label(pa.int8()), label(pa.int16()), label(pa.int16())),
        (label(pa.uint8()), label(pa.int8()), label(pa.int16())),
        (label(pa.uint64()), label(pa.int8()), label(pa.int64())),
        (label(pa.int8()), label(pa.int8(), pa.large_string()), label(pa.int8(), pa.large_string())),
        (label(pa.int8(), ordered=True), label(pa.int8(), ordered=True), label(pa.int8(), ordered=True)),
        (label(pa.int8(), ordered=True), label(pa.int8()), label(pa.int8())),
        (label(pa.int8()), pa.string(), pa.string()),
    ):
        as_stored = load(store(tmp_path / "expected.parquet", {"a": encode(["x"], expected)}))
        for pair in ((left, right), (right, left)):
            paths = [
                store(tmp_path / f"{n}.parquet", {"a": encode(["x", "y"], kind)})
                for n, kind in enumerate(pair)
            ]
            written = load(shuffled(*paths))
            assert written.schema == as_stored.schema, pair
            assert sorted(written["a"].to_pylist()) == ["x", "x", "y", "y"]


def encode(values: list[str], kind: pa.DataType) -> pa.Array:
    if not pa.types.is_dictionary(kind):
        return pa.array(values, kind)
    names = pa.array(values, kind.value_type)
    return pa.DictionaryArray.from_arrays(
        pa.array(range(len(names)), kind.index_type), names, ordered=kind.ordered
    )


CLASHES = [
    (pa.string(), pa.binary()),
    (pa.int64(), pa.string()),
    (zoned("us", None), zoned("us")),
    (zoned("us", "Europe/Berlin"), zoned("us")),
    (zoned("ms", "Europe/Berlin"), zoned("us", "Asia/Tokyo")),
    (zoned("us", None), pa.duration("us")),
    (pa.date32(), zoned("us", None)),
    (pa.decimal128(5, 2), pa.float64()),
    (pa.decimal256(76, 0), pa.decimal128(10, 5)),
    (pa.list_(pa.int8()), pa.int8()),
    (pa.bool_(), pa.int8()),
    (pa.list_(pa.int8(), 2), pa.list_(pa.int8(), 3)),
    (pa.list_(pa.int8(), 2), pa.list_(pa.int8())),
    (pa.binary(3), pa.binary(4)),
    (pa.struct([("x", pa.int8())]), pa.map_(pa.string(), pa.int8())),
]
WIDER = [
    (pa.int64(), pa.float64(), pa.float64()),
    (pa.int64(), pa.float32(), pa.float64()),
    (pa.uint64(), pa.int64(), pa.decimal128(20, 0)),
    (pa.int64(), pa.decimal128(5, 2), pa.decimal128(21, 2)),
    (pa.int64(), pa.decimal128(20, 0), pa.decimal128(20, 0)),
    (pa.decimal128(5, 2), pa.decimal128(5, 3), pa.decimal128(6, 3)),
    (pa.decimal128(38, 0), pa.decimal128(38, 10), pa.decimal256(48, 10)),
    (pa.int8(), pa.decimal256(5, 2), pa.decimal256(5, 2)),
    (pa.list_(pa.int64()), pa.list_(pa.float64()), pa.list_(pa.float64())),
    (pa.struct({"a": pa.int64()}), pa.struct({"a": pa.float64()}), pa.struct({"a": pa.float64()})),
    (pa.map_(pa.int8(), pa.int64()), pa.map_(pa.int8(), pa.float64()), pa.map_(pa.int8(), pa.float64())),
]


def test_types_are_united_without_loss_or_clash_unless_numbers_may_be_widened(tmp_path: Path) -> None:
    cases = [(left, right, kind, kind) for left, right, kind in UNIONS]
    cases += [(*pair, None, None) for pair in CLASHES] + [(*pair, None, wide) for *pair, wide in WIDER]
    for left, right, expected, widened in cases:
        triples = [(left, right, left), (right, expected, left)] if expected else []
        for kinds in [(left, right), (right, left), *triples]:
            assert union_of(tmp_path, *kinds) == expected, kinds
            assert union_of(tmp_path, *kinds, widens=True) == widened, kinds


def test_widened_values_are_equal_or_refused(tmp_path: Path) -> None:
    whole = store(
        tmp_path / "a.parquet",
        {"n": pa.array([1, None, BIG, -BIG]), "u": pa.array([2**64 - 1] * 4, pa.uint64())},
    )
    broken = store(tmp_path / "b.parquet", {"n": pa.array([0.5, float("nan")]), "u": pa.array([-(2**63), 7])})
    with pytest.raises(
        InputError, match=r"b\.parquet: field 'n': type double .* give widen=True to make both double"
    ):
        shuffled(whole, broken)
    found = load(shuffled(whole, broken, widen=True))
    assert found.schema.types == [pa.float64(), pa.decimal128(20, 0)]
    expected = ["1.0", "None", f"{BIG}.0", f"-{BIG}.0", "0.5", "nan"]
    assert sorted(map(str, found["n"].to_pylist())) == sorted(expected)
    assert sorted(found["u"].to_pylist()) == [-(2**63), 7, *[2**64 - 1] * 4]
    assert recshuf.verify([whole, broken], tmp_path / "out.parquet", widen=True).is_equal
    store(tmp_path / "a.parquet", {"n": pa.array([BIG + 1]), "u": pa.array([0], pa.uint64())})
    with pytest.raises(InputError, match=rf"a\.parquet: row group 0, row 0: a value .*{BIG + 1}.*apart$"):
        recshuf.shuffle([whole, broken], tmp_path / "late.parquet", widen=True)
    assert not (tmp_path / "late.parquet").exists()


def needed(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False, metadata={"note": f"no nulls in {name}"})


def test_what_some_file_lacks_or_has_nulls_in_is_nullable(tmp_path: Path) -> None:
    """A null in a column that must have none would end the run, or become a value."""
    pair = pa.struct([needed("x", pa.int8()), needed("y", pa.int8())])
    strict = pa.schema(
        [
            needed("a", pa.int64()),
            needed("b", pa.int64()),
            needed("s", pair),
            needed("l", pa.list_(needed("element", pa.int8()))),
        ],
        {"by": "strict", "only": ""},
    )
    loose = pa.schema(
        [
            ("a", pa.int64()),
            ("s", pa.struct([("x", pa.int8()), needed("z", pa.int8())])),
            ("l", pa.list_(pa.field("element", pa.int8()))),
        ],
        {"by": "loose"},
    )
    rows = {"a": 1, "b": 2, "s": {"x": 3, "y": 4}, "l": [5]}
    odd = [{"a": None, "s": None, "l": [None]}, {"a": 6, "s": {"x": None, "z": 7}, "l": None}]
    paths = [
        store(tmp_path / "strict.parquet", pa.Table.from_pylist([rows], strict)),
        store(tmp_path / "loose.parquet", pa.Table.from_pylist(odd, loose)),
    ]
    expected = [
        {"a": None, "b": None, "s": None, "l": [None]},
        {"a": 1, "b": 2, "s": {"x": 3, "y": 4, "z": None}, "l": [5]},
        {"a": 6, "b": None, "s": {"x": None, "y": None, "z": 7}, "l": None},
    ]
    for order, names, first in ((paths, "absl", strict), (paths[::-1], "aslb", loose)):
        table = load(shuffled(*order))
        assert table.schema.names == list(names)
        assert table.schema.metadata == first.metadata
        found = sorted(table.to_pylist(), key=lambda row: (row["a"] is not None, row["a"]))
        assert found == [{name: row[name] for name in names} for row in expected]
        fields = {field.name: field for field in table.schema}
        noted = [fields["b"]]
        if first is strict:
            noted += [fields["a"], fields["s"].type.field("x"), fields["l"].type.value_field]
        for field in noted:
            assert field.nullable
            assert field.metadata[b"note"] == f"no nulls in {field.name}".encode()
    alone = load(shuffled(paths[0], paths[0]))
    assert not any(field.nullable for field in alone.schema)


def test_a_clash_names_both_files_the_field_and_both_types(tmp_path: Path) -> None:
    for column, other, told in (
        ([{"x": 1}], [{"x": "one"}], r"field 's\.x': type string .* int64"),
        ([[1]], [["one"]], r"field 's\.element': type string .* int64"),
    ):
        paths = [store(tmp_path / "a.parquet", {"s": column}), store(tmp_path / "b.parquet", {"s": other})]
        with pytest.raises(InputError, match=rf"b\.parquet: {told} in a\.parquet"):
            open_source(*paths)


def test_a_time_that_does_not_fit_the_finer_unit_is_an_error(tmp_path: Path) -> None:
    first = store(tmp_path / "a.parquet", {"t": pa.array([1], pa.timestamp("ns"))})
    second = store(tmp_path / "b.parquet", {"t": pa.array([2**62], pa.timestamp("ms"))})
    with pytest.raises(InputError, match=r"b\.parquet.*row 0"):
        read_all(open_source(first, second))


def test_columns_are_kept_in_the_order_given_and_those_of_one_name_apart(tmp_path: Path) -> None:
    path = store(tmp_path / "in.parquet", {"a": [1], "a.b": [2], "c": [3]})
    assert read_all(open_source(path, columns=("c", "a"))).to_pylist() == [{"c": 3, "a": 1}]
    with pytest.raises(UsageError, match=r"'a\.c'.*'a\.b'"):
        open_source(path, columns=("a.c",))
    store(path, pa.table([[1, 2], [3, 4], [5, 6]], ["a", "b", "a"]))
    source = open_source(path, path, columns=("a",))
    assert source.schema.names == ["a", "a"]
    assert [column.to_pylist() for column in read_all(source).columns] == [[1, 2, 1, 2], [5, 6, 5, 6]]
    other = store(tmp_path / "other.parquet", {"a": [1], "b": [2]})
    with pytest.raises(InputError, match=r"other\.parquet: .*more than one is called 'a'"):
        open_source(path, other)


def test_a_list_that_is_not_chosen_may_be_missing_in_the_first_file(tmp_path: Path) -> None:
    lists, times = pa.list_(pa.int8()), [pa.timestamp("us", zone) for zone in ("UTC", "Europe/Berlin")]
    first = {"t": pa.nulls(2, times[0]), "b": pa.nulls(2, lists)}
    second = {"t": pa.array([1], times[1]), "b": pa.array([[1]], lists)}
    paths = [store(tmp_path / f"{i}.parquet", columns) for i, columns in enumerate((first, second))]
    source = open_source(*paths, columns=("t",))
    assert read_all(source).column("t").cast(pa.int64()).to_pylist() == [None, None, 1]


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_types_of_columns_that_are_not_chosen_need_not_agree(tmp_path: Path, suffix: str) -> None:
    for name, values in (("1", ["x", "y"]), ("2", [0.5, 1.5])):
        recshuf.shuffle(pa.table({"b": values, "a": [int(name)] * 2}), tmp_path / f"{name}.{suffix}", seed=1)
    given = sorted(tmp_path.iterdir())
    with pytest.raises(InputError, match="field 'b': type double does not fit type string"):
        recshuf.shuffle(given, tmp_path / "out.parquet", columns=["b"])
    recshuf.shuffle(given, tmp_path / "out.parquet", columns=["a"], verify=True)
    assert sorted(pq.read_table(tmp_path / "out.parquet").to_pydict()["a"]) == [1, 1, 2, 2]


# Partitions


def test_folders_become_columns_if_all_inputs_have_the_same(tmp_path: Path) -> None:
    first = store(tmp_path / "a.parquet", {"n": [1, 2], "own": [5, 6]})
    second = store(tmp_path / "b.parquet", {"n": [3], "own": [7]})
    long = "9" * 19  # more than 64 bits hold
    partitions = [
        (("year", "+2024"), ("la%6Eg", "en%2Fus"), ("own", "1"), ("long", long)),
        (("year", "__HIVE_DEFAULT_PARTITION__"), ("lang", "7"), ("own", "2"), ("long", "1")),
    ]
    source = open_source(first, second, partitions=partitions)
    assert source.schema.field("year").type == pa.int64()
    assert source.schema.field("lang").type == pa.string()
    expected = [
        {"n": 1, "own": 5, "year": 2024, "lang": "en/us", "long": long},
        {"n": 2, "own": 6, "year": 2024, "lang": "en/us", "long": long},
        {"n": 3, "own": 7, "year": None, "lang": "7", "long": "1"},
    ]
    assert read_all(source).to_pylist() == expected
    assert load(write_all(source, tmp_path / "out.parquet")).to_pylist() == expected
    only = open_source(first, second, partitions=partitions, columns=("year", "n"))
    assert only.schema.names == ["year", "n"]
    assert read_all(only)["year"].to_pylist() == [2024, 2024, None]
    said = r"b\.parquet: its folders give the columns nothing, those of a\.parquet 'k'; shuffle them apart"
    with pytest.raises(InputError, match=said):
        open_source(first, second, partitions=[(("k", "1"),), ()])


# A column without values in one file takes the type that it has in the others, in any order of inputs and at any depth

VALUES: dict[str, pa.Array] = {
    "text": pa.array(["x", "y"], pa.large_string()),
    "label": pa.array(["x", "y"]).dictionary_encode().cast(label(pa.int8())),
    "time": pa.array([1, 2], pa.timestamp("us", "UTC")),
    "struct": pa.array([{"a": 1, "b": "x"}, {"a": 2, "b": None}]),
    "list": pa.array([["x"], []]),
    "deep": pa.array([[{"a": [True]}], None]),
    "map": pa.array([[("k", "x")], []], pa.map_(pa.string(), pa.string())),
}
VOID: dict[str, list[pa.DataType]] = {
    "text": [pa.float64(), pa.list_(pa.int8()), pa.struct({"a": pa.bool_()}), label(pa.int8())],
    "label": [pa.float64(), pa.int8()],
    "time": [pa.float64(), pa.timestamp("us")],
    "struct": [pa.float64(), pa.struct({"a": pa.binary(), "b": pa.float64()})],
    "list": [pa.list_(pa.float64()), pa.float64(), pa.map_(pa.string(), pa.int8())],
    "deep": [pa.list_(pa.struct({"a": pa.list_(pa.string())})), pa.int64()],
    "map": [pa.map_(pa.string(), pa.float64()), pa.int64()],
}
"""Types that a file without values may give to a column, of which each clashes."""


@pytest.mark.parametrize("options", [{}, {"write_statistics": False}], ids=["", "no statistics"])
def test_columns_without_values_take_the_types_of_the_others(tmp_path: Path, options: dict[str, Any]) -> None:
    full = store(tmp_path / "full.parquet", {"n": [1, 2], **VALUES}, **options)
    expected = load(shuffled(full)).schema.types
    for number in range(max(map(len, VOID.values()))):
        kinds = {form: voids[number % len(voids)] for form, voids in VOID.items()}
        nulls = {form: pa.nulls(3, kind) for form, kind in kinds.items()}
        void = store(tmp_path / "void.parquet", {"n": [3, 4, 5], **nulls}, **options)
        none = {form: column[:0] for form, column in nulls.items()}
        empty = store(tmp_path / "empty.parquet", {"n": pa.array([], pa.string()), **none})
        for paths in some(permutations((full, void, empty)), 1 if number == 0 and not options else 3):
            written = load(shuffled(*paths, verify=number == 0)).sort_by("n")
            assert written.schema.types == expected, kinds
            for form, column in VALUES.items():
                assert written[form].to_pylist() == [*column.to_pylist(), None, None, None], form


def test_parts_of_a_column_without_values_take_the_type_of_the_others(tmp_path: Path) -> None:
    rows = [{"a": [1], "b": {"x": "t"}, "d": True}]
    lacking: list[dict[str, Any]] = [{"a": [2], "b": None, "d": None}, {"a": [], "b": None, "d": None}]
    kind = pa.struct({"a": pa.list_(pa.int64()), "d": pa.float64(), "b": pa.struct({"x": pa.int8()})})
    full = store(tmp_path / "full.parquet", {"c": rows})
    part = store(tmp_path / "part.parquet", {"c": pa.array(lacking, kind)})
    for paths in ((full, part), (part, full)):
        written = load(shuffled(*paths))["c"]
        assert written.type.field("d").type == pa.bool_()
        assert sorted(written.to_pylist(), key=str) == sorted([*rows, *lacking], key=str)


def test_a_column_without_values_has_no_say_in_what_values_mean(tmp_path: Path) -> None:
    """Of the columns of polars, whose metadata hold the values of an enumeration."""
    kind = pa.dictionary(pa.uint8(), pa.string(), ordered=True)
    key, told = b"_PL_ENUM_VALUES2", b"1;x1;y"

    def write(name: str, column: pa.Array, metadata: dict[bytes, bytes] | None) -> Path:
        field = pa.field("c", column.type, metadata=metadata)
        return store(tmp_path / name, pa.Table.from_arrays([column], schema=pa.schema([field])))

    full = write("full.parquet", pa.array(["x", "y"]).dictionary_encode().cast(kind), {key: told})
    for other in (
        write("nulls.parquet", pa.nulls(2, pa.string()), None),
        write("other.parquet", pa.nulls(2, kind), {key: b"1;z"}),
        write("empty.parquet", pa.nulls(0, pa.float64()), None),
    ):
        for paths in ((full, other), (other, full)):
            assert load(shuffled(*paths)).schema.field("c").metadata[key] == told, other
    clash = write("clash.parquet", pa.array(["z"]).dictionary_encode().cast(kind), {key: b"1;z"})
    with pytest.raises(InputError, match="_PL_ENUM_VALUES2"):
        shuffled(full, clash)


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_a_struct_that_a_file_lacks_is_null_also_with_a_field_that_takes_no_nulls(
    tmp_path: Path, suffix: str
) -> None:
    inner = pa.struct([pa.field("k", pa.string(), nullable=False), pa.field("v", pa.int8())])
    kind = pa.struct([pa.field("s", inner, nullable=False), pa.field("t", inner)])
    rows = [{"s": {"k": "a", "v": None}, "t": None}, {"s": {"k": "b", "v": 1}, "t": {"k": "c", "v": 2}}]
    lacks, has = tmp_path / f"lacks.{suffix}", tmp_path / f"has.{suffix}"
    recshuf.shuffle(pa.table({"n": [0, 1]}), lacks)
    recshuf.shuffle(pa.table({"n": [2, 3], "c": pa.array(rows, kind)}), has)
    for inputs in ([lacks, has], [has, lacks]):
        output = tmp_path / "out.parquet"
        recshuf.shuffle(inputs, output, verify=True, overwrite=True)
        written = load(output).sort_by("n")
        assert written["c"].to_pylist() == [None, None, *rows]
        assert written.schema.field("c").type == kind
    recshuf.scatter([lacks, has], tmp_path / "store")
    recshuf.gather(tmp_path / "store", tmp_path / "gathered.parquet", verify=True)
    nulls = pa.table({"c": pa.concat_arrays([pa.nulls(1, kind), pa.array(rows, kind)])})
    assert recshuf.shuffle(nulls, tmp_path / "nulls.parquet", verify=True).records == 3


def test_values_still_clash(tmp_path: Path) -> None:
    """A value anywhere, or a list or struct around none, is no lack of values. Neither are types that no file has values of."""
    full = store(tmp_path / "full.parquet", {"c": ["x"]})
    for number, column in enumerate(
        (pa.array([None, 1.5]), pa.array([[], None]), pa.array([{"a": None}], pa.struct({"a": pa.int8()})))
    ):
        other = store(tmp_path / f"{number}.parquet", {"c": column}, row_group_size=1)
        for paths in ((full, other), (other, full)):
            with pytest.raises(InputError, match=r"field 'c': type .* does not fit type"):
                shuffled(*paths)
    empty = [
        store(tmp_path / f"e{n}.parquet", {"c": pa.nulls(2, kind)})
        for n, kind in enumerate((pa.int8(), pa.string()))
    ]
    with pytest.raises(InputError, match=r"field 'c': type string does not fit type int8"):
        shuffled(*empty)
