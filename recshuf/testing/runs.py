"""What every format promises to whole runs: shuffles, conversions, comparisons, stores, loaders, resumed runs; tools of the suite."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections import Counter
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import InputError, RecshufError
from recshuf.formats import load_format
from recshuf.formats.compression import split_suffix
from recshuf.interfaces import Format, InputFile, ReadOptions, Stamp, WriteOptions
from recshuf.job.report import SilentProgress
from recshuf.storage.reading.local import LocalFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from recshuf.interfaces import Source


MANY_BYTES = 1 << 20
LONGEST = 1 << 30


def make_folder(path: Path) -> Path:
    path.mkdir()
    return path


def path_of(file: InputFile) -> Path:
    assert file.path is not None
    return file.path


def read_input(
    source: Source, index: int, block_bytes: int, *, max_record_bytes: int = LONGEST
) -> list[pa.RecordBatch]:
    """Return all batches of an input in order; the fragments are read after the iterator has ended."""
    fragments = list(source.fragments(index, block_bytes, max_record_bytes))
    return [batch for fragment in fragments for batch in fragment.batches()]


def place_batches(source: Source, block_bytes: int) -> list[tuple[pa.RecordBatch, int, int]]:
    """Return all batches of all inputs, each with its input and first row."""
    placed = []
    for index in range(len(source.inputs)):
        first_row = 0
        for batch in read_input(source, index, block_bytes):
            placed.append((batch, index, first_row))
            first_row += batch.num_rows
    return placed


def merge_batches(source: Source, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    merged = pa.Table.from_batches(batches, schema=source.schema).combine_chunks().to_batches()
    return merged[0] if merged else pa.RecordBatch.from_pylist([], schema=source.schema)


def cut_batch(batch: pa.RecordBatch, pieces: int, seed: int) -> list[pa.RecordBatch]:
    """Return the batch as that many slices, some of them perhaps empty."""
    inner = np.sort(
        np.random.default_rng(seed).integers(0, batch.num_rows, pieces - 1, endpoint=True)
    ).tolist()
    edges = [0, *inner, batch.num_rows]
    return [batch.slice(start, end - start) for start, end in pairwise(edges)]


def find_open_files(folder: Path, process: int | str = "self") -> list[Path]:
    """Return the files under a folder that a process, by default this one, holds open."""
    links = []
    for link in Path(f"/proc/{process}/fd").iterdir():
        try:
            links.append(link.readlink())
        except FileNotFoundError:  # closed meanwhile, as is the descriptor of this very listing
            continue
    return [path for path in links if path.is_relative_to(folder)]


class OneWayReader(io.RawIOBase):
    """Bytes as a pipe gives them: little at a time, no seeking, no file number."""

    def __init__(self, content: bytes) -> None:
        self._content = memoryview(content)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = min(len(buffer), len(self._content), 997)
        buffer[:count] = self._content[:count]
        self._content = self._content[count:]
        return count


class OneWayWriter(io.RawIOBase):
    """Collects what is written; cannot seek and has no file number."""

    def __init__(self) -> None:
        self.content = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.content += bytes(data)
        return len(data)


def make_object(path: Path) -> InputFile:
    """Return a file as the object of a bucket, which has no path."""
    name, stamp = f"s3://bucket/{path.name}", Stamp.of(path.stat())
    return InputFile(name, None, stamp=stamp, suffix=split_suffix(path.name), opener=LocalFile(name, path))


class Samples(ABC):
    """What the tests of a format need to know of it."""

    format: Format
    """The adapter's module-level format."""
    read_options = ReadOptions()
    write_options = WriteOptions()
    reads_streams = False
    """Whether standard input can be of this format."""
    row_counts: Sequence[int] = (150, 1, 40)
    """Records of the inputs of most tests."""
    run_options: Mapping[str, Any] = {}
    """Options of `recshuf.shuffle` that its inputs need."""
    converts = True
    """Whether its records have a table form, and are written from that."""
    field: str | None = None
    """A column of the table form with a value in each record, by which records are grouped; None if they have none."""
    has_checksums = False
    """Whether every changed byte of a record must be noticed; the first input is damaged."""
    bulk_rows = 12_000
    """Records of the input of the tests that must exceed buffers inside a sink."""

    @abstractmethod
    def make_inputs(self, folder: Path, row_counts: Sequence[int]) -> list[InputFile]:
        """Write one file for each count, around the code under test; every record differs from all others."""

    def make_bad_input(self, folder: Path) -> tuple[InputFile, list[int]] | None:
        """Write a file of which some records have no table form, and return these, by row; None if there is no such file."""
        return None

    def make_other_input(self, folder: Path) -> InputFile | None:
        """Write a file whose records cannot lie with those of `make_inputs`: of other fields or types; None if all can."""
        return None

    @abstractmethod
    def read_back(self, path: Path) -> list[Any]:
        """Return the records of a file in order, around the code under test; raise if it is damaged."""

    @abstractmethod
    def records_of(self, batch: pa.RecordBatch) -> list[Any]:
        """Return the records of a native batch, in the terms of `read_back`."""

    def meaning_of(self, record: Any) -> Any:
        """Return what must survive a conversion to table form and back; the record itself by default."""
        return record


class _Heard(SilentProgress):
    """Calls a function once, when records of a pass have been handled."""

    def __init__(self, pass_name: str, act: Callable[[], object]) -> None:
        self._wanted, self._act = pass_name, act
        self._is_done, self._name = False, ""

    def start(self, name: str, record_total: int | None, byte_total: int | None) -> None:
        self._name = name

    def advance(self, records: int, byte_count: int) -> None:
        if self._name == self._wanted and not self._is_done:
            self._is_done = True
            self._act()


class RunSuite(Samples):
    """The tests of whole runs."""

    @pytest.fixture
    def paths(self, tmp_path: Path) -> list[Path]:
        return [path_of(file) for file in self.make_inputs(make_folder(tmp_path / "in"), self.row_counts)]

    def shuffle(self, paths: Sequence[Path], output: Path, **options: Any) -> list[Path]:
        """Return the files of a shuffle into a folder, or into a file if its name has a suffix."""
        name = str(output) if output.suffix else f"{output}/"
        recshuf.shuffle(paths, name, **{"seed": 1, **self.run_options, **options})
        return self.list_shards(output) if output.is_dir() else [output]

    def list_shards(self, folder: Path) -> list[Path]:
        """Return the shards of a folder, without their companions."""
        suffixes = self.format.traits.companion_suffixes
        return sorted(path for path in folder.iterdir() if not path.name.endswith(suffixes))

    def count_records(self, paths: Iterable[Path]) -> Counter[str]:
        return Counter(repr(self.meaning_of(record)) for path in paths for record in self.read_back(path))

    def test_the_format_is_found(self, paths: list[Path]) -> None:
        traits = self.format.traits
        assert load_format(traits.name) is self.format
        if traits.content_rank is not None and not traits.is_lines:
            others = (b"", b"some text\n" * 99, bytes(range(256)) * 9)
            assert not any(map(self.format.recognises, others))
            telling = [path.with_suffix(one) for path in paths for one in traits.companion_suffixes[:1]]
            for path in telling or [path for path in paths if split_suffix(path.name).compression is None]:
                assert self.format.recognises(path.read_bytes()[: 64 << 10])

    def test_a_shuffle_has_every_record_in_the_order_of_its_seed(
        self, paths: list[Path], tmp_path: Path
    ) -> None:
        shards = self.shuffle(paths, tmp_path / "out", shards=2, verify=True)
        assert len(shards) == 2
        assert self.count_records(shards) == self.count_records(paths)
        again = self.shuffle(paths, tmp_path / "again", shards=2, workers=3)
        assert [path.read_bytes() for path in again] == [path.read_bytes() for path in shards]
        in_order = [record for path in paths for record in self.read_back(path)]
        assert [record for path in shards for record in self.read_back(path)] != in_order
        assert not recshuf.verify(paths[:1], tmp_path / "out", **self.run_options)

    def test_a_conversion_and_back_has_every_record(self, paths: list[Path], tmp_path: Path) -> None:
        if not self.converts:
            return
        tables = self.shuffle(paths, tmp_path / "tables", to="parquet", shards=2, verify=True)
        recshuf.shuffle(tables, f"{tmp_path}/back/", seed=2, to=self.format.traits.name, verify=True)
        assert self.count_records(self.list_shards(tmp_path / "back")) == self.count_records(paths)

    def test_a_field_tells_groups_parts_and_repeats(self, paths: list[Path], tmp_path: Path) -> None:
        if self.field is None:
            return

        def read(name: str, **options: Any) -> list[Any]:
            shards = self.shuffle(paths, tmp_path / name, to="parquet", verify=True, **options)
            return [value for shard in shards for value in pq.read_table(shard)[self.field].to_pylist()]

        values = read("all")
        grouped = read("grouped", group_by=self.field)
        assert Counter(grouped) == Counter(values)
        assert len([value for value, _ in groupby(grouped)]) == len({*values})
        assert Counter(read("once", dedup=self.field)) == Counter({*values})
        self.shuffle(
            paths,
            tmp_path / "parts",
            to="parquet",
            split={"a": 0.5, "b": 0.5},
            split_by=self.field,
            verify=True,
        )
        first, second = (pq.read_table(tmp_path / "parts" / part)[self.field].to_pylist() for part in "ab")
        assert Counter([*first, *second]) == Counter(values)
        assert not {*first} & {*second}
        shards = self.shuffle(paths, tmp_path / "native", group_by=self.field, verify=True)
        assert self.count_records(shards) == self.count_records(paths)

    def test_provenance_says_where_each_record_was(self, paths: list[Path], tmp_path: Path) -> None:
        if self.format.traits.adds_columns and self.format.traits.has_columns:
            self.shuffle(paths, tmp_path / "native", provenance=True, verify=True)
        if not self.converts:
            return
        (output,) = self.shuffle(paths, tmp_path / "out.parquet", provenance=True)
        table = pq.read_table(output)
        found = zip(table["source_file"].to_pylist(), table["source_row"].to_pylist(), strict=True)
        counted = [(str(path), count) for path, count in zip(paths, self.row_counts, strict=True)]
        assert sorted(found) == sorted((name, row) for name, count in counted for row in range(count))

    def test_a_store_is_appended_to_gathered_and_loaded(self, paths: list[Path], tmp_path: Path) -> None:
        store = tmp_path / "store"
        recshuf.scatter(paths, store, seed=1, **self.run_options)
        recshuf.gather(store, f"{tmp_path}/gathered/", verify=True)
        shuffled = self.shuffle(paths, tmp_path / "shuffled")
        gathered = self.list_shards(tmp_path / "gathered")
        assert [path.read_bytes() for path in gathered] == [path.read_bytes() for path in shuffled]
        more = [path_of(file) for file in self.make_inputs(make_folder(tmp_path / "more"), [20])]
        with recshuf.PileStore(store).update() as update:
            update.append(more, **self.run_options)
        recshuf.gather(store, f"{tmp_path}/all/")
        assert self.count_records(self.list_shards(tmp_path / "all")) == self.count_records([*paths, *more])
        if self.converts:
            loader = recshuf.PileLoader(store, 50, output="arrow", drop_last=False)
            assert sum(batch.num_rows for batch in loader) == sum(self.row_counts) + 20

    def test_other_records_are_not_appended_to_a_store(self, paths: list[Path], tmp_path: Path) -> None:
        """A run with them keeps or refuses them."""
        other = self.make_other_input(make_folder(tmp_path / "other"))
        if other is None:
            return
        store = tmp_path / "store"
        recshuf.scatter(paths, store, seed=1, **self.run_options)
        with pytest.raises(RecshufError, match="the store"), recshuf.PileStore(store).update() as update:
            update.append(path_of(other), **self.run_options)
        recshuf.gather(store, f"{tmp_path}/all/", verify=True)
        assert self.count_records(self.list_shards(tmp_path / "all")) == self.count_records(paths)
        together = [*paths, path_of(other)]
        try:
            shards = self.shuffle(together, tmp_path / "together")
        except RecshufError:
            return
        assert self.count_records(shards) == self.count_records(together)

    def test_standard_input_and_output_hold_what_files_do(self, paths: list[Path], tmp_path: Path) -> None:
        traits = self.format.traits
        if not (traits.is_lines or traits.has_streams):
            return
        stdin, stdout = io.BytesIO(paths[0].read_bytes()), OneWayWriter()
        options = {"format": traits.name, "seed": 1, **self.run_options}
        recshuf.shuffle("-", "-", stdin=stdin, stdout=cast("BinaryIO", stdout), **options)
        output = tmp_path / paths[0].name
        output.write_bytes(stdout.content)
        assert self.count_records([output]) == self.count_records(paths[:1])

    def test_an_input_that_changes_is_named(self, paths: list[Path], tmp_path: Path) -> None:
        def change() -> None:
            content = paths[0].read_bytes()
            paths[0].unlink()
            paths[0].write_bytes(content + b"\n")

        with pytest.raises(InputError, match="changed") as caught:
            self.shuffle(paths, tmp_path / "out", workers=1, progress=_Heard("scatter", change))
        assert str(paths[0]) in str(caught.value)
        assert not (tmp_path / "out").exists()

    def test_a_run_that_was_stopped_is_continued(self, paths: list[Path], tmp_path: Path) -> None:
        def stop() -> None:
            raise KeyboardInterrupt

        whole = self.shuffle(paths, tmp_path / "whole", shards=2)
        with pytest.raises(KeyboardInterrupt):
            self.shuffle(paths, tmp_path / "out", shards=2, workers=1, progress=_Heard("gather", stop))
        done = self.shuffle(paths, tmp_path / "out", shards=2, resume=True)
        assert [path.read_bytes() for path in done] == [path.read_bytes() for path in whole]
