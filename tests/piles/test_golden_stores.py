"""Stores of version 1, kept for ever, are read by this recshuf and by a reader written from docs/store.md alone.

``python -m tests.piles.test_golden_stores --write`` makes the stores anew: only for a new version, under a new name.
"""

import contextlib
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from numpy.random import Philox, SeedSequence

import recshuf
from tests.support.stores.small_stores import load_all
from tests.support.stores.store_reader import Row, read_footer, read_snapshot, read_store

GOLDEN = Path(__file__).parent.parent / "golden" / "stores-1.zip"
SEED = 2**100 + 7
LINES = {"a.txt": 40, "b.txt": 25, "later.txt": 10}
ROWS = 60


def make_line(name: str, row: int) -> bytes:
    return f"{name} {row} {'x' * (100 + row % 7)}".encode() + b"\xff\n"


def make_record(row: int) -> dict[str, Any]:
    return {"id": row, "text": None if row % 5 == 0 else f"row {row}", "list": list(range(row % 4))}


def make_table(rows: range) -> pa.Table:
    schema = pa.schema([("id", pa.int64()), ("text", pa.string()), ("list", pa.list_(pa.int16()))])
    return pa.Table.from_pylist([make_record(row) for row in rows], schema)


def write_lines(folder: Path) -> list[Path]:
    for name, count in LINES.items():
        (folder / name).write_bytes(b"".join(make_line(name, row) for row in range(count)))
    return [folder / name for name in LINES]


def make_lines(store: Path, inputs: list[Path], **options: Any) -> None:
    """Make a store of two sets of lines."""
    recshuf.scatter(inputs[:2], store, seed=SEED, piles=4, **options)
    with recshuf.PileStore(store).update() as update:
        update.append(inputs[2], time=12.5, **options)


def write_parts(store: Path, name: str, rows: range) -> None:
    """Write a set in slices of a few records."""
    with recshuf.PileWriter(store, name, seed=SEED, piles=2, buffer_bytes=400) as writer:
        writer.write(make_table(rows))


def make_wide(store: Path) -> None:
    """Make a set of one pile that outgrows the space reserved for it."""
    with recshuf.PileWriter(store, "wide", seed=SEED, piles=1, buffer_bytes=30_000) as writer:
        for row in range(100):
            writer.write({"value": pa.array([b"%04d" % row * 500], pa.large_binary())})


def make_all(folder: Path) -> Path:
    """Make all stores in a folder. Sources are named as they were given, so they lie in the current directory."""
    with contextlib.chdir(folder):
        make_here()
    return folder


def make_here() -> None:
    inputs, folder = write_lines(Path()), Path("stores")
    folder.mkdir()
    for compression in ("none", "lz4", "zstd"):
        make_lines(folder / compression, inputs, spill_compression=compression)
    for name in ("first", "second"):
        write_parts(folder / "table", name, range(ROWS))
    make_wide(folder / "wide")
    pq.write_table(make_table(range(ROWS)), "rows.parquet")
    recshuf.scatter("rows.parquet", folder / "parquet", seed=SEED, piles=4, spill_compression="zstd")


def write_golden() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = make_all(Path(name))
        with zipfile.ZipFile(GOLDEN, "x", zipfile.ZIP_DEFLATED) as golden:
            for path in sorted((folder / "stores").rglob("*")):
                if path.is_file():
                    golden.write(path, path.relative_to(folder / "stores"))


def list_expected(store: str) -> dict[tuple[str, int], Any]:
    """Return the records of a store by name of their source and row."""
    if store == "wide":
        return {("wide", row): b"%04d" % row * 500 for row in range(100)}
    if store in ("table", "parquet"):
        names = ["rows.parquet"] if store == "parquet" else ["first", "second"]
        return {(name, row): make_record(row) for name in names for row in range(ROWS)}
    return {(name, row): make_line(name, row) for name, count in LINES.items() for row in range(count)}


def find_key(row: Row, stream: tuple[int, ...], source: int) -> int:
    outputs = Philox(SeedSequence(SEED, spawn_key=(*stream, source))).random_raw(row.row + 1)
    return int(outputs[row.row])


def hash_name(name: str) -> tuple[int, ...]:
    """Return the stream of a named source."""
    return tuple(np.frombuffer(xxhash.xxh3_128_digest(name.encode())[::-1], "<u4").tolist())


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    with zipfile.ZipFile(GOLDEN) as packed:
        packed.extractall(folder)
    return folder


@pytest.fixture(scope="session")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_all(tmp_path_factory.mktemp("fresh")) / "stores"


NAMES = ("none", "lz4", "zstd", "table", "wide", "parquet")


@pytest.mark.parametrize("age", ["golden", "fresh"])
@pytest.mark.parametrize("name", NAMES)
def test_a_store_is_read_as_the_document_says(
    request: pytest.FixtureRequest, tmp_path: Path, age: str, name: str
) -> None:
    """By the reader written from it, which gives keys and order; and by recshuf."""
    store = request.getfixturevalue(age) / name
    rows = read_store(store)
    found = {(row.name, row.row): row.record for row in rows}
    assert len(found) == len(rows)
    assert found == list_expected(name)
    for row in rows:
        scattered = {"a.txt": 0, "b.txt": 1, "rows.parquet": 0}
        if row.name in scattered:
            assert row.key == find_key(row, (), scattered[row.name])
        else:
            stream = "append-000002-000" if row.name == "later.txt" else row.name
            assert row.key == find_key(row, hash_name(stream), 0)
    records = load_all(store)
    keyed = zip(records.keys.tolist(), records.batch.column("provenance").to_pylist(), strict=True)
    assert sorted((key, int.from_bytes(origin, "little")) for key, origin in keyed) == [
        (row.key, row.source << 42 | row.row) for row in rows
    ]
    sources = recshuf.PileStore(store).sources
    assert [sources[row.source] for row in rows] == [row.name for row in rows]
    expected = [row.record for row in rows]
    if isinstance(expected[0], bytes) and name != "wide":
        recshuf.gather(store, tmp_path / "out.txt")
        assert (tmp_path / "out.txt").read_bytes().splitlines(keepends=True) == expected
    else:
        recshuf.gather(store, tmp_path / "out.parquet")
        gathered = pq.read_table(tmp_path / "out.parquet").to_pylist()
        assert gathered == ([{"value": one} for one in expected] if name == "wide" else expected)


def test_the_golden_stores_have_all_that_the_document_names(golden: Path) -> None:
    """Several sets, several parts of a region, and slices compressed in every way."""
    assert [len(read_snapshot(golden / name)["sets"]) for name in NAMES] == [2, 2, 2, 2, 1, 1]
    for name, part_count in {"none": 4, "wide": 3}.items():
        path = min((golden / name / "sets").iterdir())
        header, parts, sums, _ = read_footer(path.read_bytes())
        assert len(parts) >= part_count > sums.shape[1] * (name == "wide")
        assert header["compression"] == "none"
    for name in ("lz4", "zstd"):
        for path in (golden / name / "sets").iterdir():
            header, parts, sums, _ = read_footer(path.read_bytes())
            assert parts[:, 2].sum() < sums[1].sum() / 2


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(f"usage: python -m {__spec__.name} --write")
    write_golden()
