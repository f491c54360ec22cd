"""Options: each is declared once, takes values of any type that fit it, and refuses others by name; shares of a split are exact."""

import io
import json
import os
import re
from dataclasses import fields
from fractions import Fraction
from itertools import chain, product
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, BinaryIO, get_args, get_origin, get_type_hints

import click
import numpy as np
import pyarrow as pa
import pytest

import recshuf
from recshuf.cli.commands import commands
from recshuf.errors import InputError, UsageError
from recshuf.formats import OWN_FORMATS, list_options, load_format
from recshuf.formats.jsonl.decoder import JsonDecoder
from recshuf.interfaces import ReadOptions
from recshuf.job.arguments import make_job
from recshuf.job.features import check_shares
from recshuf.job.options import (
    OPTIONS,
    ArrowSchema,
    CheckOptions,
    GatherOptions,
    Options,
    OrderOptions,
    ScatterOptions,
    VerifyOptions,
    describe_options,
    flag_of,
    to_keywords,
)
from recshuf.job.schema_file import read_schema
from recshuf.system.memory import available_bytes
from tests.support.small_runs import put_in_place

COMMAND_ONLY = {"inputs", "output", "plan", "report", "html", "quiet", "verbose"}


def parse(*words: str) -> dict[str, object]:
    """Return what the command line of a shuffle gives the function."""
    values = commands.default.make_context("recshuf", list(words)).params
    return {name: value for name, value in values.items() if name not in COMMAND_ONLY}


def test_the_command_and_the_function_have_the_same_options_and_defaults():
    assert parse().keys() == OPTIONS.keys()
    assert OPTIONS.keys() | list_options().keys() == Options.__annotations__.keys() - {"stdin", "stdout"}
    by_command = make_job("in", "out", parse("--memory", "1GB", "--max-record-bytes", "1GiB"))
    by_function = make_job("in", "out", {"memory": 10**9, "max_record_bytes": 1 << 30})
    assert by_command == by_function
    assert by_function.read == make_job("in", "out", {"memory": 10**9}).read
    assert [name for name in OPTIONS if by_function.is_given(name)] == ["max_record_bytes", "memory"]


@pytest.mark.parametrize(
    ("options", "workers", "memory"),
    [
        ({}, 8, 40),
        ({"workers": 3}, 3, 40),
        ({"engine": "local"}, 8, 40),
        ({"engine": "ray"}, 1, 5),
        ({"engine": "tasks", "workers": 4}, 4, 20),
        ({"engine": "ray", "workers": 16}, 16, 40),
    ],
)
def test_by_default_a_run_takes_its_cores_and_half_of_the_memory_that_is_left_or_a_tasks_share_of_it(
    monkeypatch: pytest.MonkeyPatch, options: Any, workers: int, memory: int
):
    put_in_place(monkeypatch, available_bytes, lambda: 80 * 10**9)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(8)})
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    job = make_job("in", "out", options)
    assert (job.workers, job.memory_bytes) == (workers, memory * 10**9)


def test_options_of_other_functions_are_those_of_the_shuffle():
    for kind in (CheckOptions, GatherOptions, ScatterOptions, VerifyOptions):
        for name, annotation in kind.__annotations__.items():
            declared = Options.__annotations__[name]
            assert annotation == declared or annotation == get_args(declared)[0]


def test_every_option_is_found_by_its_flag_and_says_what_it_is():
    for name, option in OPTIONS.items():
        (shown,) = (param for param in commands.default.params if flag_of(name) in param.opts)
        assert isinstance(shown, click.Option)
        assert shown.name == name
        is_flag = get_args(Options.__annotations__[name])[0] is bool
        assert (option.metavar is None) == shown.is_flag == is_flag


def test_the_journal_of_a_default_job_says_nothing_of_options_that_came_later():
    job = make_job("in", "out", {})
    values = {name: option.identity(job) for name, option in OPTIONS.items() if option.identity}
    assert json.loads(json.dumps(values)) == dict.fromkeys(values)


def test_formats_heed_the_fields_that_options_set():
    heeded = {*chain.from_iterable(load_format(name).traits.read_options for name in OWN_FORMATS)}
    assert heeded == {option.field for option in OPTIONS.values()} - {None}
    assert heeded <= {field.name for field in fields(ReadOptions)}


def test_words_behind_the_flag_of_a_format_are_formats():
    """In messages of Python they become values, as in format='text'."""
    package, flag = Path(recshuf.__file__).parent, re.compile(r"--(?:format|to) (\w+)\b")
    lines = [line for path in package.rglob("*.py") for line in path.read_text().splitlines()]
    texts = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    words = {word for word in flag.findall(texts) if word.islower()}
    values = {word for word in words if f"={word!r}" in to_keywords(f"--format {word}")}
    assert values <= {*OWN_FORMATS}
    assert len(values) > 3


# Options of any type: those of NumPy become plain ones, and others are refused by name

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


# Shares of a split, as text and as a mapping


def test_shares_are_exact() -> None:
    assert check_shares("a=0.1,b=0.2,c=7/10") == {
        "a": Fraction(1, 10),
        "b": Fraction(1, 5),
        "c": Fraction(7, 10),
    }
    assert sum(check_shares({"a": 0.1, "b": 0.2, "c": 0.7}).values()) == pytest.approx(1)
    assert check_shares(dict.fromkeys(("a", "b", "c" * 100), 1 / 3))


def test_text_of_another_form_is_refused_as_the_command_has_it() -> None:
    for text in ("", "a", "a=0.5,a=0.5", "a=0.5,,b=0.5"):
        with pytest.raises(UsageError, match="is no share of a new name; give NAME=SHARE"):
            check_shares(text)
    for text in ("a=1", ",".join(f"part{number}=1/256" for number in range(256))):
        with pytest.raises(
            UsageError, match=r"^--split: .*; give 2 to 255 .*, such as train=0\.99,val=0\.01$"
        ):
            check_shares(text)


NO_SPLITS: list[tuple[Any, str]] = [
    ("a=1", "give 2 to 255 shares by name"),
    ({"a": 1.0}, "give 2 to 255 shares by name"),
    ({"a": 0.5, "b/c": 0.5}, "name 'b/c': give letters"),
    ({"a": 0.5, "..": 0.5}, r"name '\.\.': give letters, .* the first a letter, digit or '_'"),
    ({"a": 0.5, 3: 0.5}, "name 3: give letters"),
    ({"a": 1.5, "b": -0.5}, "share 1.5 of 'a': give a number between 0 and 1"),
    ({"a": True, "b": 0.5}, "share True of 'a'"),
    ({"a": float("nan"), "b": 0.5}, "share nan of 'a'"),
    ({"a": "x", "b": 0.5}, "share 'x' of 'a'"),
    ({"a": "1/0", "b": 0.5}, "share '1/0' of 'a'"),
    ({"a": "", "b": 0.5}, "share '' of 'a'"),
    ({"a": 0.5, "b": 0.4}, "add up to 0.9; let them add up to 1"),
    ({"a": 0.5, "b": 0.500000002}, "add up to 1.000000002; let"),
    ({"a": 0.5, "b" * 101: 0.5}, "name 'b+': give letters, .* at most 100"),
]


def test_shares_that_make_no_split_are_refused() -> None:
    for shares, problem in NO_SPLITS:
        with pytest.raises(UsageError, match=problem):
            check_shares(shares)


# The grammar of ``--schema`` files


def write(folder: Path, text: str) -> Path:
    path = folder / "schema.json"
    path.write_text(text, "utf-8")
    return path


FORMS: list[tuple[object, pa.DataType]] = [
    ("null", pa.null()),
    ("bool", pa.bool_()),
    ("int8", pa.int8()),
    ("uint64", pa.uint64()),
    ("float16", pa.float16()),
    ("float64", pa.float64()),
    (" string ", pa.string()),
    ("large_string", pa.large_string()),
    ("binary", pa.binary()),
    ("date32", pa.date32()),
    ("timestamp[ns]", pa.timestamp("ns")),
    ("timestamp[us, tz=Europe/Berlin]", pa.timestamp("us", "Europe/Berlin")),
    ("time32[s]", pa.time32("s")),
    ("time64[ns]", pa.time64("ns")),
    ("duration[ms]", pa.duration("ms")),
    ("decimal128(38,0)", pa.decimal128(38, 0)),
    ("decimal256(76, 10)", pa.decimal256(76, 10)),
    ("list<float32>", pa.list_(pa.float32())),
    ("large_list<list<int8>>", pa.large_list(pa.list_(pa.int8()))),
    ("fixed_size_list<float32>[768]", pa.list_(pa.float32(), 768)),
    ("fixed_size_list<fixed_size_list<int8>[2]>[3]", pa.list_(pa.list_(pa.int8(), 2), 3)),
    (["timestamp[s]"], pa.list_(pa.timestamp("s"))),
    ({"a": "int8", "b": {}}, pa.struct([("a", pa.int8()), ("b", pa.struct([]))])),
    ([{"a": ["bool"]}], pa.list_(pa.struct([("a", pa.list_(pa.bool_()))]))),
]


def test_every_form_of_type_is_read_and_can_be_decoded(tmp_path: Path) -> None:
    for declared, expected in FORMS:
        schema = read_schema(write(tmp_path, json.dumps({"ü": declared, "x": declared}, ensure_ascii=False)))
        assert schema == pa.schema([("ü", expected), ("x", expected)])
        assert JsonDecoder(["in"], schema).schema == schema


NO_TYPES = [
    ('{"x": "integer"}', "x"),
    ('{"x": "list<int>"}', "x[]"),
    ('{"x": {"y": ["int8", "int8"]}}', "x.y"),
    ('{"x": [{"y": "timestamp[h]"}]}', "x[].y"),
    ('{"x": 5}', "x"),
    ('{"x": null}', "x"),
    ('{"x": []}', "x"),
    ('{"x": "decimal128(39, 0)"}', "x"),
    ('{"x": "list<int8"}', "x"),
    ('{"x": ""}', "x"),
    ('{"x": "' + "list<" * 500 + "int8" + ">" * 500 + '"}', "x" + "[]" * 64),
]


def test_what_is_no_type_is_an_error_that_names_the_field(tmp_path: Path) -> None:
    for text, field in NO_TYPES:
        path = write(tmp_path, text)
        with pytest.raises(InputError) as caught:
            read_schema(path)
        assert caught.value.name == str(path)
        assert caught.value.place == f"field {field!r}"
        assert "\n" not in str(caught.value)


def test_a_file_that_is_no_object_is_an_error_and_an_endless_one_is_not_read_to_its_end(
    tmp_path: Path,
) -> None:
    for content, problem in (
        (b"", "not valid JSON"),
        (b'{"x": "\xff"}', "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b'{"x": "int8", "x": "int8"}', "occurs twice"),
        (b'{"x": {"y": "int8", "y": "int8"}}', "occurs twice"),
        (b'{"x": "real"}', r"known types are .*float32.*fixed_size_list"),
    ):
        path = tmp_path / "schema.json"
        path.write_bytes(content)
        with pytest.raises(InputError, match=f"^{path}: .*{problem}"):
            read_schema(path)
    for name, problem in (
        ("absent", "cannot be read as the file of --schema"),
        ("/dev/zero", "longer than 16777216 bytes"),
    ):
        with pytest.raises(InputError, match=f"^{tmp_path / name}: .*{problem}"):
            read_schema(tmp_path / name)


@pytest.mark.parametrize("form", ["dict", "list", "text"])
def test_types_of_64_levels_are_the_deepest(tmp_path: Path, form: str) -> None:
    def nest(depth: int) -> object:
        if form == "text":
            return "list<" * depth + "int8" + ">" * depth
        kind: object = "int8"
        for _ in range(depth):
            kind = {"b": kind} if form == "dict" else [kind]
        return kind

    read_schema(write(tmp_path, json.dumps({"a": nest(63)})))
    with pytest.raises(InputError, match="nests types more than 64 deep"):
        read_schema(write(tmp_path, json.dumps({"a": nest(64)})))
