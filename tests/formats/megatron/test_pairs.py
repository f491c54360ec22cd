"""Which files are a data set of Megatron, what is wrong in one, and its documents as tables."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import ConversionError, InputError, RecshufWarning, UsageError
from recshuf.formats.megatron import pairs
from recshuf.job.report import SilentProgress
from tests.formats.megatron.test_suite import TYPES, make_index, read_pair, write_pair
from tests.support.effort import mostly_slow
from tests.support.formats.file_suite import refused
from tests.support.objects.object_server import Bucket

DOCUMENTS = [[(row, 7 * row)[: 1 + row % 2], *[(row,)] * (row % 3)] for row in range(60)]
PLAIN = [[(row, 7 * row)] for row in range(60)]


def shuffle(inputs: Any, output: Path, **options: Any) -> list[Any]:
    recshuf.shuffle(inputs, output, **{"seed": 1, **options})
    return read_pair(output)


@pytest.mark.parametrize(
    "names",
    [["x.v1.bin"], ["x.v1.idx"], ["x.v1"], ["x.v1", "./x.v1.idx", "../in/x.v1.bin"], ["*"], ["../in/"]],
    ids=" ".join,
)
def test_any_name_of_a_data_set_is_all_of_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str]
) -> None:
    (tmp_path / "in").mkdir()
    write_pair(tmp_path / "in/x.v1.bin", DOCUMENTS)
    monkeypatch.chdir(tmp_path / "in")
    found = shuffle(names, tmp_path / "out.bin", verify=True)
    assert found != DOCUMENTS
    assert sorted(found) == sorted(DOCUMENTS)
    assert (tmp_path / "out.bin").stat().st_size == (tmp_path / "in/x.v1.bin").stat().st_size


def test_objects_are_named_together(tmp_path: Path, s3_bucket: Bucket) -> None:
    write_pair(tmp_path / "x.bin", DOCUMENTS)
    for name in ("x.bin", "x.idx"):
        s3_bucket.put(f"in/{name}", (tmp_path / name).read_bytes())
    expected, url = shuffle(tmp_path / "x.bin", tmp_path / "out.bin"), f"{s3_bucket.url}/in"
    for number, names in enumerate(([f"{url}/x.idx", f"{url}/x.bin"], [f"{url}/"])):
        assert shuffle(names, tmp_path / f"{number}.bin") == expected
    for name, said in (
        ("x.bin", r"x\.bin: is given without its index s3://.*x\.idx; give that, too"),
        ("x.idx", r"x\.idx: belongs to s3://.*x\.bin, which is not beside it"),
    ):
        given = {"format": "megatron"} if name == "x.bin" else {}
        refused(InputError, said, f"{url}/{name}", tmp_path / "none.bin", **given)


def test_sequences_are_where_pointers_say(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(np.arange(100, dtype="u2").tobytes())
    for index, left, documents in (
        (make_index(8, [3, 0, 2, 2], [0, 1, 1, 4], pointers=[180, 9, 0, 2]), 194, [[], [(), (0, 1), (1, 2)], [(90, 91, 92)]]),
        (make_index(8, [], [0]), 200, []),
    ):  # fmt: skip
        path.with_suffix(".idx").write_bytes(index)
        with pytest.warns(
            RecshufWarning, match=rf"x\.bin: {left} bytes behind the last sequence of its index"
        ):
            found = shuffle(path, tmp_path / f"{left}.bin", verify=True)
        assert sorted(found) == documents


def test_an_index_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of 16,384 documents or 65,536 sequences would make a slow test."""
    for name in ("_DOCUMENTS", "_SEQUENCES"):
        monkeypatch.setattr(pairs, name, 7)
    documents = [[(*one, row % 5) for one in document] for row, document in enumerate(DOCUMENTS)]
    write_pair(tmp_path / "x.bin", documents, has_modes=True)
    recshuf.shuffle(tmp_path / "x.bin", tmp_path / "out.bin", seed=1, verify=True)
    assert sorted(read_pair(tmp_path / "out.bin", has_modes=True)) == sorted(documents)


def test_tokens_and_modes_that_differ_are_refused(tmp_path: Path) -> None:
    write_pair(tmp_path / "a.bin", [], has_modes=True)
    write_pair(tmp_path / "b.bin", PLAIN)
    write_pair(tmp_path / "c.bin", [[(7, 1)]], has_modes=True)
    write_pair(tmp_path / "d.bin", PLAIN, code=4)
    write_pair(tmp_path / "e.bin", DOCUMENTS)
    for names, said in (
        ("abc", r"c\.bin: has modes of sequences, unlike .*b\.bin; shuffle them apart"),
        ("bd", r"d\.bin: holds tokens of type int32, and .*b\.bin of type uint16"),
    ):
        refused(InputError, said, [tmp_path / f"{name}.bin" for name in names], tmp_path / "out.bin")
    recshuf.scatter(tmp_path / "b.bin", tmp_path / "store", seed=1)
    with (
        pytest.raises(UsageError, match="documents have several"),
        recshuf.PileStore(tmp_path / "store").update() as update,
    ):
        update.append(tmp_path / "e.bin")


def set_bytes(place: int, kind: str, value: int) -> Callable[[bytes], bytes]:
    raw = struct.pack(f"<{kind}", value)
    return lambda content: content[:place] + raw + content[place + len(raw) :]


S = len([one for document in DOCUMENTS for one in document])
POINTERS, ENDS = 34 + 4 * S, 34 + 12 * S
DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda content: b"MMIDIDX\0\0", "byte 0: its index .*x.idx does not begin as those of Megatron"),
    "version": (set_bytes(9, "Q", 2), "byte 9: .* has version 2, and only version 1 is known"),
    "type of others": (set_bytes(17, "B", 9), "byte 17: .* has the type 9, which Megatron does not have"),
    "float as double": (set_bytes(17, "B", 6), "byte 17: .* has type 6, .* exchange types 6 and 7; set that byte to 7"),
    "double as float": (set_bytes(17, "B", 7), "byte 17: .* has type 7, .* exchange types 6 and 7; set that byte to 6"),
    "count": (set_bytes(18, "Q", 1 << 60), "byte 18: .* bytes, which do not fit"),
    "no ends": (set_bytes(26, "Q", 0), "byte 18: .* bytes, which do not fit"),
    "truncated": (lambda content: content[:-1], "byte 18: .* bytes, which do not fit"),
    "longer": (lambda content: content + b"\0", "byte 18: .* bytes, which do not fit"),
    "first end": (set_bytes(ENDS, "q", 1), "byte 18: .* and documents of 1 to "),
    "last end": (set_bytes(ENDS + 8 * 60, "q", S - 1), f"byte 18: .* {S} sequences, and documents of 0 to {S - 1}"),
    "end back": (set_bytes(ENDS + 8 * 20, "q", -4), r"row 19: .* sequences \d+ to -4 in a document"),
    "end beyond": (set_bytes(ENDS + 8 * 20, "q", 1 << 50), r"row 19: .* sequences \d+ to 1,125,"),
    "negative length": (set_bytes(34 + 8, "i", -1), r"row 1: .* a sequence of -1 tokens at byte"),
    "length beyond": (set_bytes(34, "i", 1 << 30), r"row 0: .* a sequence of 1,073,741,824 tokens at byte 0 of"),
    "pointer beyond": (set_bytes(POINTERS, "q", (1 << 63) - 1), r"row 0: .* at byte 9,223,372,036,854,775,807 of"),
    "negative pointer": (set_bytes(POINTERS, "q", -2), r"row 0: .* at byte -2 of"),
    "last pointer": (set_bytes(ENDS - 8, "q", 1 << 40), r": is cut off: it has [\d,]+ bytes, and its last sequence ends"),
}  # fmt: skip
CODES = {"float as double": 7, "double as float": 6}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_index_is_told_by_place(tmp_path: Path, kind: str) -> None:
    change, said = DAMAGE[kind]
    path = write_pair(tmp_path / "x.bin", DOCUMENTS, CODES.get(kind, 8))
    index = path.with_suffix(".idx")
    index.write_bytes(change(index.read_bytes()))
    refused(InputError, rf"x\.bin.*{said}", path, tmp_path / "out.bin")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.bin", "x.idx"]


def test_files_that_lack_or_are_cut_off_are_named(tmp_path: Path) -> None:
    path, output = write_pair(tmp_path / "x.bin", DOCUMENTS), tmp_path / "out.bin"
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    refused(InputError, r"x\.bin: is cut off: .*; copy or write both files again", path, output)
    path.with_suffix(".idx").rename(tmp_path / "y.idx")
    said = r"x\.bin: its index .*x\.idx cannot be read: .*; put it beside"
    refused(InputError, said, path, output, format="megatron")
    said = r"y\.idx: belongs to .*y\.bin, which is not beside it; give both"
    refused(InputError, said, tmp_path / "y.idx", output)
    recshuf.shuffle(tmp_path / "y.idx", output, format="binary", record_bytes=1)
    assert sorted(output.read_bytes()) == sorted((tmp_path / "y.idx").read_bytes())
    output.unlink()
    refused(InputError, "y: .*No such file", tmp_path / "y", output)


def test_an_index_that_changes_is_named(tmp_path: Path) -> None:
    index = write_pair(tmp_path / "x.bin", DOCUMENTS).with_suffix(".idx")

    class Change(SilentProgress):
        def advance(self, records: int, byte_count: int) -> None:
            shutil.copy(index, tmp_path / "copy")
            (tmp_path / "copy").rename(index)

    said = r"x\.idx: has changed while it was read"
    refused(InputError, said, tmp_path / "x.bin", tmp_path / "out.bin", progress=Change())


def test_a_document_longer_than_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    write_pair(tmp_path / "x.bin", [[(1,)], [()] * 5000])
    said = "row 1: a record of 20,000 bytes is longer than .* raise max_record"
    refused(InputError, said, tmp_path / "x.bin", tmp_path / "out.bin", max_record_bytes=1000)


# Tables


@pytest.mark.parametrize("code", mostly_slow(TYPES, 6, 8))
def test_tokens_are_a_column_of_their_type_and_come_back(tmp_path: Path, code: int) -> None:
    write_pair(tmp_path / "x.bin", [[(row % 100, row)] for row in range(100)], code)
    recshuf.shuffle(tmp_path / "x.bin", tmp_path / "x.parquet", seed=1, verify=True)
    table = pq.read_table(tmp_path / "x.parquet")
    assert table.column_names == ["tokens"]
    assert table["tokens"].type.value_type.to_pandas_dtype() == np.dtype(TYPES[code])
    shuffle(tmp_path / "x.parquet", tmp_path / "y.bin", to="megatron", verify=True)
    assert (tmp_path / "y.idx").read_bytes() == (tmp_path / "x.idx").read_bytes()
    assert sorted(read_pair(tmp_path / "y.bin")) == sorted(read_pair(tmp_path / "x.bin"))


def test_sequences_and_modes_are_columns_and_come_back(tmp_path: Path) -> None:
    """Also where each document of the first input is one sequence."""
    documents, plain = [[(*one, 3) for one in document] for document in DOCUMENTS], [[(7, 3)], [(8, 9, 3)]]
    paths = [tmp_path / "w.bin", tmp_path / "x.bin"]
    for path, own in zip(paths, (plain, documents), strict=True):
        write_pair(path, own, has_modes=True)
    recshuf.shuffle(paths, tmp_path / "x.jsonl", seed=1, verify=True)
    rows = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    assert {"tokens": [5, 35, 5, 5], "lengths": [2, 1, 1], "modes": [3, 3, 3]} in rows
    recshuf.shuffle(tmp_path / "x.jsonl", tmp_path / "y.bin", to="megatron", token_type="uint16", verify=True)
    assert sorted(read_pair(tmp_path / "y.bin", has_modes=True)) == sorted(plain + documents)


TABLES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "other columns": ({"a": [[1]], "b": ["x"]}, {}, "holds one column of tokens, and there are 2; choose one with columns"),
    "more than documents": ({"tokens": [[1]], "b": ["x"]}, {}, "holds one column of tokens, and there are 2"),
    "no lists": ({"a": [1]}, {}, "'a': megatron holds lists of numbers, not int64; choose to='parquet'"),
    "unsigned": ({"a": pa.array([[1]], pa.list_(pa.uint32()))}, {}, "tokens of type uint32; give token_type"),
    "texts": ({"a": [["x"]]}, {}, "does not hold tokens of type string; .*, or choose to='parquet'"),
    "texts as numbers": ({"a": [["x"]]}, {"token_type": "int32"}, "another token_type, or choose to='parquet'"),
    "null": ({"a": [[1], None]}, {}, "megatron holds no nulls"),
    "null inside": ({"a": [[1, None]]}, {}, "megatron holds no nulls"),
    "too large": ({"a": [[1, 70_000]]}, {"token_type": "uint16"}, "is not of type uint16: .*70000 not in range"),
    "lengths": ({"tokens": [[1, 2], [3]], "lengths": [[1], [2]]}, {}, "'lengths': are not those of the tokens"),
    "modes": ({"tokens": [[1, 2]], "modes": [[1, 1]]}, {}, "'modes': are not one for each sequence"),
}  # fmt: skip


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.filterwarnings("ignore:tokens are written as int64")
def test_tables_that_are_no_documents_are_refused(tmp_path: Path, kind: str) -> None:
    columns, options, said = TABLES[kind]
    pq.write_table(pa.table(columns), tmp_path / "in.parquet")
    refused(ConversionError, said, tmp_path / "in.parquet", tmp_path / "out.bin", to="megatron", **options)


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.large_list(pa.int32()), pa.list_(pa.int64(), 2)])
def test_lists_of_any_kind_become_documents(tmp_path: Path, kind: pa.DataType) -> None:
    table = pa.table({"ids": pa.array([[1, 2], [3, 4]] * 20, kind), "n": [0] * 40})
    options = {"to": "megatron", "columns": "ids", "token_type": "uint16", "verify": True}
    found = shuffle(table, tmp_path / "out.bin", **options)
    assert sorted(found) == sorted([[(1, 2)], [(3, 4)]] * 20)
    said = "token_type uint8: tokens of megatron inputs keep their type"
    refused(UsageError, said, tmp_path / "out.bin", tmp_path / "again.bin", token_type="uint8")
    said = "token_type 'uint24' is not possible: it is none of uint8, int8, int16,"
    refused(UsageError, said, table, tmp_path / "again.bin", to="megatron", token_type="uint24")


def test_numbers_of_json_are_written_wide_and_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"tokens":[1,2]}\n{"tokens":[]}\n')
    with pytest.warns(RecshufWarning, match="tokens are written as int64; token_type int32, or"):
        found = shuffle(tmp_path / "in.jsonl", tmp_path / "out.bin", to="megatron")
    assert sorted(found) == [[()], [(1, 2)]]


def test_a_table_has_no_place_for_rare_sequences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "_DOCUMENTS", 2)
    documents: list[Any] = [[(1,)], [(1,)], [(1,)], [], [(2,), (3,)]]
    path = write_pair(tmp_path / "x.bin", documents)
    said = "row 3: this document has 0 sequences, .*; keep the format of the inputs"
    refused(InputError, said, path, tmp_path / "x.parquet", workers=1)
    assert sorted(shuffle(path, tmp_path / "y.bin")) == sorted(documents)
