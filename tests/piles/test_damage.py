"""A damaged store gives its records or an error that names the file, never other records."""

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import PileError, UsageError
from recshuf.piles import set_folder as scratch
from recshuf.piles.footer import Footer
from recshuf.piles.kept.stored import StoredPiles
from recshuf.piles.kept.upkeep import verify_store
from tests.support.effort import some
from tests.support.stores.small_stores import load_all, write

Rows = list[tuple[int, dict[str, Any]]]


def read_all(store: Path) -> Rows:
    """Return every key and record."""
    records = load_all(store)
    return list(zip(records.keys.tolist(), records.batch.to_pylist(), strict=True))


def make_lines(tmp_path: Path, name: str, text: str = "line", **options: Any) -> Path:
    """Scatter lines into a store of two sets."""
    inputs = [tmp_path / f"{name}{index}.txt" for index in range(2)]
    for index, path in enumerate(inputs):
        path.write_text("".join(f"{text} {index} {row}\n" for row in range(6)))
    options = {"seed": 5, "piles": 2} | options
    recshuf.scatter(inputs, tmp_path / name, **options)
    return tmp_path / name


def make_table(tmp_path: Path, name: str) -> Path:
    table = pa.table({"id": np.arange(6), "text": [None, "b", "", "d", "e", "f"]})
    pq.write_table(table, tmp_path / f"{name}.parquet")
    recshuf.scatter(tmp_path / f"{name}.parquet", tmp_path / name, seed=5, piles=2)
    return tmp_path / name


MAKERS = {
    "flat": make_lines,
    "packed": lambda tmp_path, name: make_lines(tmp_path, name, "x" * 99, spill_compression="zstd"),
    "ipc": make_table,
}


@pytest.fixture(params=MAKERS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    made: Path = MAKERS[request.param](tmp_path, "store")
    return made


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    return make_lines(tmp_path, "lines")


def check_damage(store: Path, damaged: Path, content: bytes, expected: Rows) -> bool:
    """Check that a store with a damaged file gives its records, or names the file; return whether it gives them."""
    damaged.write_bytes(content)
    try:
        found = read_all(store)
    except (PileError, UsageError) as error:
        assert str(damaged) in str(error)
        return False
    assert found == expected
    return True


def test_every_flipped_byte_and_every_cut_is_found_or_harmless(store: Path) -> None:
    """Harmless are bytes that hold nothing: between slices, and between regions; and the end of a last line."""
    expected = read_all(store)
    for path in [path for path in store.rglob("*") if path.is_file()]:
        content = path.read_bytes()
        for place in some(range(len(content)), max(3, len(content) // 70)):
            changed = bytearray(content)
            changed[place] ^= 1 << place % 8
            assert not (check_damage(store, path, changed, expected) and content[place])
        for length in some(range(0, len(content), 23)):
            is_harmless = check_damage(store, path, content[:length], expected)
            assert not is_harmless or content[length:] == b"\n"
        assert not check_damage(store, path, content + b"\0", expected)
        assert check_damage(store, path, content, expected)


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def replace_by_other(path: Path) -> None:
    """Put that of another store there, of which seed, sources, columns and all lengths are the same."""
    other = make_lines(path.parents[2], "other", "ENIL")
    shutil.copy(other / "sets" / path.name, path)


def flip(path: Path) -> None:
    """Change a byte in the payload of the first slice."""
    content = bytearray(path.read_bytes())
    content[48] ^= 1
    path.write_bytes(content)


AGAIN = "recshuf store drop {store}, and make it again"
HARMS: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (
        Path.unlink,
        f"cannot be opened: No such file.*; put it back, or delete the store with {AGAIN}$",
    ),
    "folder": (replace_by_folder, ""),
    "pipe": (replace_by_pipe, ""),
    "of another store": (replace_by_other, f"is another pile set .*; put that back, or .*{AGAIN}$"),
    "flipped": (flip, f"region 0 .*faulty; .*{AGAIN} on another disk$"),
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_set_is_named_by_all_that_read_it(lines: Path, tmp_path: Path, harm: str) -> None:
    """And nothing is put in place."""
    path = min((lines / "sets").iterdir())
    do, said = HARMS[harm]
    do(path)
    for use in (
        read_all,
        lambda store: list(recshuf.PileLoader(store, 1)),
        lambda store: recshuf.gather(store, f"{tmp_path}/out/", shards=1),
    ):
        with pytest.raises(PileError, match=f"^{path}.*{said.format(store=lines)}"):
            use(lines)
    assert not list(tmp_path.glob("out*"))


def test_a_set_that_may_not_be_read_is_not_called_missing(
    lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = PermissionError(errno.EACCES, "Permission denied", "the set")
    monkeypatch.setattr(scratch, "open_regular", Mock(side_effect=refused))
    with pytest.raises(PileError, match=r"^the set: cannot be opened: Permission denied; make it readable$"):
        read_all(lines)


@pytest.mark.parametrize("kind", ["hard", "symbolic"])
def test_sets_may_be_links(lines: Path, tmp_path: Path, kind: str) -> None:
    """As backups and stores of large files make them."""
    expected = read_all(lines)
    for path in [*(lines / "sets").iterdir(), *lines.glob("snapshot-*")]:
        moved = path.rename(tmp_path / path.name)
        path.hardlink_to(moved) if kind == "hard" else path.symlink_to(moved)
    assert read_all(lines) == expected
    recshuf.gather(lines, tmp_path / "out.txt")


def test_a_set_that_is_cut_while_it_is_read_is_damage_of_the_store(lines: Path) -> None:
    path = min((lines / "sets").iterdir())
    with closing(StoredPiles(lines)) as piles:
        path.write_bytes(b"")
        with pytest.raises(
            PileError, match=f"^{path}: ends at byte .*{AGAIN.format(store=lines)} on another disk$"
        ):
            piles.load([(0, int(np.flatnonzero(piles.counts[0])[0]))])


def test_verify_finds_other_lengths_than_those_of_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Footer.pack

    def pack_wrongly(self: Footer, offset: int) -> bytes:
        self.lengths[0, np.flatnonzero(self.sums[0])[0]] += 1
        return whole(self, offset)

    monkeypatch.setattr(Footer, "pack", pack_wrongly)
    write(tmp_path / "store", "a", {"text": ["x"]}, piles=1)
    with pytest.raises(
        PileError, match=r"set a-00000: its footer has other lengths than the records of pile 0;"
    ):
        verify_store(tmp_path / "store", lambda *_: None)
