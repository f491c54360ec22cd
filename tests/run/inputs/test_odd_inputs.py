"""Inputs that are empty, cannot be read, or change while a run reads them: a valid output, or an error that names the input.

And what begins and ends inputs of lines.
"""

import gzip
import io
import os
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyarrow.feather import write_feather

import recshuf
from recshuf.errors import InputError, RecshufError, RecshufWarning
from recshuf.formats.jsonl import FORMAT
from recshuf.formats.lines.cutting import BLANK_END_BYTES
from recshuf.interfaces import ReadOptions
from tests.support.effort import examples, some
from tests.support.formats.conversion_data import read_columns
from tests.support.formats.format_tools import read_input
from tests.support.formats.line_tools import give, records_in, same_folder, split_records
from tests.support.numbered_files import (
    FORMATS,
    SUFFIXES,
    WRITERS,
    make_inputs,
    read_ids,
    write_lines,
    write_parquet,
)
from tests.support.small_runs import Listener, list_shards, list_tree

# Empty


@pytest.mark.parametrize("name", FORMATS)
def test_inputs_without_records_give_an_empty_valid_output(tmp_path: Path, name: str):
    inputs = [tmp_path / f"{index}{SUFFIXES[name]}" for index in range(3)]
    for path in inputs:
        if name == "parquet":
            pq.write_table(pa.schema({"id": pa.int64(), "tag": pa.string()}).empty_table(), path)
        else:
            WRITERS[name](path, 0, 0)
    for to in {name, "parquet" if name != "jsonl" else name}:  # of which nobody knows the fields
        output = tmp_path / f"out{SUFFIXES[to]}"
        assert recshuf.shuffle(inputs, output, seed=0, overwrite=True).records == 0
        assert not any(read_columns(output).values())
    recshuf.shuffle(inputs, tmp_path / "shards", seed=0, shards=2)
    assert [read_ids(shard) for shard in list_shards(tmp_path / "shards")] == [[], []]


@pytest.mark.parametrize("name", ["parquet", "jsonl"])
def test_an_empty_parquet_shard_has_the_schema_and_no_row_group(tmp_path: Path, name: str):
    """`datasets` fails on a row group without rows."""
    path = tmp_path / f"in{SUFFIXES[name]}"
    if name == "parquet":
        pq.write_table(pa.table({"id": [1, 2], "tag": ["a", "b"]}), path)
    else:
        path.write_bytes(b'{"id": 1, "tag": "a"}\n{"id": 2, "tag": "b"}\n')
    recshuf.shuffle(path, tmp_path / "out", seed=0, shards=4, to="parquet", verify=True)
    shards = [pq.read_metadata(shard) for shard in list_shards(tmp_path / "out")]
    assert [(shard.num_rows, shard.num_row_groups) for shard in shards] == [(1, 1), (1, 1), (0, 0), (0, 0)]
    assert all(shard.schema.equals(shards[0].schema) for shard in shards)
    assert all(shard.metadata == shards[0].metadata for shard in shards)


# That cannot be read


def truncate(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3])


BAD_INPUTS: dict[str, Callable[[Path], object]] = {
    "missing.txt": lambda path: None,
    "missing.h5": lambda path: None,
    "wrong.parquet": lambda path: write_lines(path, 0, 100),
    "empty.h5": lambda path: path.write_bytes(b""),
    "truncated.parquet": lambda path: (write_parquet(path, 0, 5000), truncate(path)),
    "truncated.txt.zst": lambda path: path.write_bytes(zstandard.compress(os.urandom(10**6))[:-9]),
    "wrong.jsonl.zst": lambda path: write_lines(path, 0, 100),
    "gzip.txt": lambda path: path.write_bytes(gzip.compress(b"a\nb\n")[:-3]),
}


@pytest.mark.parametrize(("name", "is_first"), [(name, k % 2 == 0) for k, name in enumerate(BAD_INPUTS)])
def test_an_input_that_cannot_be_read_names_itself_and_leaves_nothing(
    tmp_path: Path, name: str, is_first: bool
):
    bad = tmp_path / name
    BAD_INPUTS[name](bad)
    kind = {"parquet": "parquet", "h5": "hdf5", "jsonl": "jsonl", "txt": "text"}[name.split(".")[1]]
    (good,) = make_inputs(tmp_path / "in", kind, [2000])
    before = list_tree(tmp_path)
    for output in ("out/", f"out{good.suffix}", "new/folder/out/"):
        with pytest.raises(RecshufError, match=bad.name) as caught:
            recshuf.shuffle([bad, good] if is_first else [good, bad], f"{tmp_path}/{output}", seed=0)
        assert "\n" not in str(caught.value)
        assert list_tree(tmp_path) == before


def test_inputs_of_two_formats_are_refused(tmp_path: Path):
    (text,) = make_inputs(tmp_path, "jsonl", [10])
    (table,) = make_inputs(tmp_path, "parquet", [10])
    with pytest.raises(InputError, match=r"input0\.parquet: is parquet, but .*input0\.jsonl is jsonl"):
        recshuf.shuffle([text, table], f"{tmp_path}/out/")


# That change


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b'{"id": 1}\n')


def shrink(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def replace(path: Path) -> None:
    """Put a file of the same size and time in its place."""
    found = path.stat()
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(found.st_atime_ns, found.st_mtime_ns))
    other.rename(path)


def rewrite(path: Path) -> None:
    content, found = path.read_bytes(), path.stat()
    with path.open("r+b") as file:
        file.write(content)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns + 1))


@pytest.mark.parametrize(
    ("change", "name", "index"),
    [
        (append, "text", 0),
        (append, "csv", 2),
        (shrink, "parquet", 2),
        (shrink, "jsonl", 0),
        (shrink, "hdf5", 2),
        (replace, "parquet", 0),
        (replace, "csv", 2),
        (rewrite, "hdf5", 0),
        (rewrite, "jsonl", 2),
        (Path.unlink, "text", 2),
        (Path.unlink, "parquet", 0),
    ],
)
def test_a_change_is_an_error_that_names_the_input(
    tmp_path: Path, name: str, index: int, change: Callable[[Path], None]
):
    """The first input changes after it was read, or the last one before it is."""
    inputs = make_inputs(tmp_path / "in", name, [300, 300, 300])
    calls = iter(range(100))
    heard = Listener(lambda: next(calls) == 0 and change(inputs[index]))
    with pytest.raises(
        InputError, match=rf"input{index}\S*: .*(changed|gone|vanished|No such file)"
    ) as caught:
        recshuf.shuffle(inputs, f"{tmp_path}/out/", seed=1, workers=1, progress=heard)
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == ["in"]


@pytest.mark.parametrize("command", ["shuffle", "verify"])
@pytest.mark.parametrize("count", [299, 301])
def test_an_input_with_other_records_than_before_is_no_fault(tmp_path: Path, count: int, command: str):
    inputs = [tmp_path / f"{number}.arrow" for number in range(2)]
    for path in inputs:
        write_feather(pa.table({"id": range(300)}), path)
    calls = iter(range(100))
    table = pa.table({"id": range(count)})
    heard = Listener(lambda: next(calls) == 0 and write_feather(table, inputs[1]))
    output = inputs[0] if command == "verify" else f"{tmp_path}/out/"
    with pytest.raises(InputError, match=r"1\.arrow: has changed while it was read"):
        getattr(recshuf, command)(inputs, output, workers=1, progress=heard)


@pytest.mark.parametrize("split", [None, {"a": 0.5, "b": 0.5}], ids=["one", "split"])
@pytest.mark.parametrize(("change", "name"), [(append, "text"), (replace, "parquet")])
def test_no_store_is_made_of_an_input_that_changes(
    tmp_path: Path, change: Callable[[Path], None], name: str, split: dict[str, float] | None
) -> None:
    """It was read as it had been."""
    inputs = make_inputs(tmp_path / "in", name, [300, 300])
    calls = iter(range(100))
    heard = Listener(lambda: heard.passes[-1:] == ["scatter"] and next(calls) == 0 and change(inputs[0]))
    with pytest.raises(InputError, match=r"input0\S*: .*changed"):
        recshuf.scatter(inputs, tmp_path / "store", seed=1, workers=1, progress=heard, split=split)
    assert os.listdir(tmp_path) == ["in"]


# Given twice


def test_an_input_that_is_given_twice_is_told_and_read_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b.txt", "c.txt"):
        Path(name).write_text(f"{name}\n")
    os.link("a.txt", "d.txt")
    Path("e.txt").symlink_to("c.txt")
    recshuf.shuffle(["a.txt", "b.txt", "d.txt"], "of all links.txt")
    for names, told in (
        (["a.txt", "a.txt"], "a.txt is"),
        (["b.txt", "c.txt", f"{tmp_path}/./b.txt"], "b.txt is"),
        (["[ab].txt", "a.txt", "d.txt", "b.txt"], "a.txt and 1 more are"),
        (["c.txt", "e.txt"], "c.txt is"),
    ):
        with pytest.warns(RecshufWarning, match=f"^{told} given more than once, and so are the records$"):
            report = recshuf.shuffle(names, "out.txt", overwrite=True)
        assert report.records == len(names) + (names[0] == "[ab].txt")


# What begins and ends inputs of lines and is no record: byte order marks, and blank lines


MARK = b"\xef\xbb\xbf"
BLANKS = b" \t\r\n"


def find_records(data: bytes) -> list[bytes]:
    """Return the lines of JSONL that are records: the oracle."""
    records, begin = [], len(MARK) if data.startswith(MARK) else 0
    for record in split_records(data[begin:]):
        if data[begin:].strip(BLANKS) or begin < len(data) - BLANK_END_BYTES:
            records.append(record)
        begin += len(record)
    return records


@settings(same_folder, max_examples=examples(80))
@example(parts=[b"\n" * BLANK_END_BYTES, b" "], mark=b"", block_bytes=1 << 20)
@given(
    parts=st.lists(
        st.sampled_from(
            [b"{}\n", b'{"a": 1}\r\n', b"\n", b"  \n", b"\t\r\n", b" ", b"{} ", b"\n" * BLANK_END_BYTES]
        ),
        max_size=12,
    ),
    mark=st.sampled_from([b"", MARK]),
    block_bytes=st.sampled_from([1, 7, 64, 1 << 20]),
)
def test_every_way_to_read_finds_the_same_records(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], mark: bytes, block_bytes: int
) -> None:
    folder, data = tmp_path_factory.mktemp("in"), mark + b"".join(parts)
    plain = give(folder / "a.jsonl", data)
    packed = give(folder / "a.jsonl.gz", gzip.compress(data))
    source = FORMAT.open_source([plain, packed, plain], ReadOptions())
    records = find_records(data)
    for index in range(2):
        assert records_in(read_input(source, index, block_bytes)) == records
    joined = source.read_joined([0, 2], 1 << 20, 1 << 20)
    assert joined is None or (records_in([joined.batch]), joined.rows) == (records * 2, [len(records)] * 2)
    if len(data) < 1 << 16:
        assert [one.record_count for one in source.inputs] == [len(records)] * 3


def read_by_scatter(inputs: list[Path], folder: Path, **options: object) -> None:
    recshuf.scatter(inputs, folder / "store", seed=4, format=options.pop("format", None))
    recshuf.gather(folder / "store", folder / "out/", **options)


def read_at_once(inputs: list[Path], folder: Path, **options: object) -> None:
    recshuf.shuffle(inputs, folder / "out/", seed=4, verify=True, **options)


@pytest.mark.parametrize(
    ("marked", "suffix", "run"),
    [
        *some(
            product(
                [[0], [1], [2], [0, 1, 2]],
                [".jsonl", ".txt", ".csv", ".jsonl.gz"],
                [read_at_once, read_by_scatter],
            ),
            3,
        )
    ],
)
def test_a_byte_order_mark_stays_on_top_of_every_shard(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    marked: list[int],
    suffix: str,
    run: Callable[..., None],
) -> None:
    pack = gzip.compress if suffix.endswith(".gz") else bytes
    header = b"id\n" if suffix == ".csv" else b""
    inputs = [tmp_path / f"{index}{suffix}" for index in range(3)]
    for index, path in enumerate(inputs):
        lines = b"".join(b'{"id": %d}\n' % row for row in range(10 * index, 10 * index + 10))
        path.write_bytes(pack((MARK if index in marked else b"") + header + lines))
    run(inputs, tmp_path, shards=4, compression="none")
    shards = [shard.read_bytes() for shard in list_shards(tmp_path / "out")]
    assert len(shards) == 4
    # A header of CSV is that of the first input.
    top = (MARK if suffix != ".csv" or 0 in marked else b"") + header
    assert all(shard.startswith(top) and shard.count(MARK) == top.count(MARK) for shard in shards)
    rows = [line for shard in shards for line in shard.removeprefix(top).splitlines()]
    assert sorted(rows) == sorted(b'{"id": %d}' % row for row in range(30))


def test_inputs_of_which_some_have_a_mark_are_told(tmp_path: Path) -> None:
    for name, content in (("a.jsonl", b"{}\n"), ("b.jsonl", MARK + b"{}\n"), ("empty.jsonl", MARK)):
        (tmp_path / name).write_bytes(content)
    source = FORMAT.open_source(
        [give(tmp_path / "c.jsonl", b"{}"), give(tmp_path / "d.jsonl", MARK + b"{}")], ReadOptions()
    )
    (note,) = source.notes
    assert "d.jsonl begins with a byte order mark" in note
    for inputs in (["b.jsonl"], ["a.jsonl", "empty.jsonl"]):
        files = [give(tmp_path / name, (tmp_path / name).read_bytes()) for name in inputs]
        assert not FORMAT.open_source(files, ReadOptions()).notes


@pytest.mark.parametrize(
    "content",
    [MARK + b'{"a": 1}\n{"a": 2}\n', b'{"a": 1}\n{"a": 2}\n\n', MARK + b'{"a": 1}\r\n{"a": 2}\r\n \r\n\r\n'],
)
def test_marks_and_blank_ends_are_not_converted(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "in.jsonl").write_bytes(content)
    report = recshuf.shuffle([tmp_path / "in.jsonl"] * 2, tmp_path / "out.parquet", verify=True, workers=1)
    assert report.records == 4
    assert sorted(pq.read_table(tmp_path / "out.parquet")["a"].to_pylist()) == [1, 1, 2, 2]
    output = io.BytesIO()
    recshuf.shuffle("-", "-", stdin=io.BytesIO(content), stdout=output, format="jsonl", seed=1)
    recshuf.shuffle(tmp_path / "in.jsonl", tmp_path / "out.jsonl", seed=1)
    assert output.getvalue() == (tmp_path / "out.jsonl").read_bytes()


def test_a_blank_line_that_comes_last_in_a_shard_is_not_missed(tmp_path: Path) -> None:
    path, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    path.write_bytes(b'{"a":1}\n\n{"a":2}\n \n\n{"a":3}\n\n')
    ends = set()
    for seed in range(12):
        report = recshuf.shuffle(path, output, seed=seed, verify=True, overwrite=True)
        ends.add(output.read_bytes().endswith(b"}\n"))
        assert report.records == recshuf.verify(path, output).records == 6
        recshuf.shuffle(path, tmp_path / "out/", seed=seed, shards=3, verify=True, overwrite=True)
        assert recshuf.verify(path, tmp_path / "out").is_equal
    assert ends == {True, False}
    output.write_bytes(output.read_bytes().replace(b"\n\n", b"\n", 1))
    assert recshuf.verify(path, output).missing == 1
