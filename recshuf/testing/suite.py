"""What every format adapter promises, as one class of tests.

An adapter's tests subclass `FormatSuite`, and give files, and a way to read them, that do not go through the
code under test. Records are compared as whole values, and no two records of `make_inputs` are equal.
"""

from __future__ import annotations

import gc
import io
import json
import pickle
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from recshuf.errors import BadRecordError, ConversionError, InputError, RecshufError, UsageError
from recshuf.formats.compression import split_suffix
from recshuf.formats.stored import pack, unpack
from recshuf.interfaces import InputFile, InputSummary, Sink, Source, StoredInputs, SupportsStream, Target
from recshuf.testing.runs import (
    LONGEST,
    MANY_BYTES,
    OneWayReader,
    OneWayWriter,
    RunSuite,
    cut_batch,
    find_open_files,
    make_folder,
    make_object,
    merge_batches,
    path_of,
    place_batches,
    read_input,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class FormatSuite(RunSuite):
    """The conformance tests; a subclass gives the attributes and methods of `Samples`. Its format must be installed."""

    # Helpers

    @pytest.fixture
    def inputs(self, tmp_path: Path) -> list[InputFile]:
        return self.make_inputs(make_folder(tmp_path / "in"), self.row_counts)

    @pytest.fixture
    def source(self, inputs: list[InputFile]) -> Source:
        return self.format.open_source(inputs, self.read_options)

    @pytest.fixture
    def expected(self, inputs: list[InputFile]) -> list[list[Any]]:
        expected = [self.read_back(path_of(each)) for each in inputs]
        assert [len(part) for part in expected] == list(self.row_counts)
        assert len({repr(record) for part in expected for record in part}) == sum(self.row_counts)
        return expected

    def open_target(self, source: Source) -> Target:
        return self.format.open_target(source.schema, source.layout, self.write_options)

    def records_in(self, batches: Iterable[pa.RecordBatch]) -> list[Any]:
        return [record for batch in batches for record in self.records_of(batch)]

    def write_shard(
        self, target: Target, path: Path, batches: Iterable[pa.RecordBatch], threads: int = 1
    ) -> Path:
        with target.open(path, threads) as sink:
            written = 0
            for batch in batches:
                sink.write(batch)
                written += batch.num_rows
        assert sink.record_count == written
        return path

    # Source

    @pytest.mark.parametrize("block_bytes", [64, 1000, MANY_BYTES])
    def test_fragments_hold_the_records_in_order(
        self, source: Source, expected: list[list[Any]], block_bytes: int
    ) -> None:
        """They do when many threads read them in any order, and know how many there are."""
        for index, records in enumerate(expected):
            fragments = list(source.fragments(index, block_bytes, LONGEST))
            scrambled = random.Random(1).sample(range(len(fragments)), len(fragments))
            with ThreadPoolExecutor(8) as pool:
                read = pool.map(lambda fragment: list(fragment.batches()), [fragments[k] for k in scrambled])
                batches = dict(zip(scrambled, read, strict=True))
            if index == 0:
                gc.collect()
            found = [batch for k in range(len(fragments)) for batch in batches[k]]
            assert self.records_in(found) == records
            assert all(batch.schema.equals(source.schema, check_metadata=True) for batch in found)
            for k, fragment in enumerate(fragments):
                rows = [batch.num_rows for batch in batches[k]]
                assert fragment.record_count in (None, sum(rows))
                if k % (1 + len(fragments) // 16):
                    continue  # some are read again
                again = list(fragment.batches())
                assert [batch.num_rows for batch in again] == rows
                assert self.records_in(again) == self.records_in(batches[k])

    def test_cuts_of_inputs_that_are_read_in_parts_depend_on_the_block_alone(self, source: Source) -> None:
        for index in filter(source.skips_fragments, range(len(source.inputs))):
            short, long = (
                [self.records_in(one.batches()) for one in source.fragments(index, 1000, most)]
                for most in (MANY_BYTES, LONGEST)
            )
            assert short == long

    def test_a_source_that_was_sent_elsewhere_reads_the_same(self, source: Source) -> None:
        try:
            sent = pickle.loads(pickle.dumps(source))
        except TypeError:
            return  # it need not be sent
        assert sent.inputs == source.inputs
        for index in range(len(source.inputs)):
            assert read_input(sent, index, 1000) == read_input(source, index, 1000)

    def test_inputs_that_are_read_at_once_hold_what_each_does(
        self, source: Source, expected: list[list[Any]]
    ) -> None:
        for first in range(len(expected)):
            joined = source.read_joined(range(first, len(expected)), MANY_BYTES, LONGEST)
            count = len(joined.rows) if joined else 0
            parts = expected[first : first + count]
            assert (joined.rows if joined else []) == [len(part) for part in parts]
            assert self.records_in([joined.batch] if joined else []) == [r for part in parts for r in part]

    def test_batches_respect_block_bytes(self, tmp_path: Path) -> None:
        inputs = self.make_inputs(make_folder(tmp_path / "in"), [self.bulk_rows])
        source = self.format.open_source(inputs, self.read_options)
        block_bytes = 100_000
        for fragment in source.fragments(0, block_bytes, LONGEST):
            sizes = [(batch.num_rows, batch.nbytes) for batch in fragment.batches()]
            assert all(rows <= 1 or size <= 2 * block_bytes for rows, size in sizes)
            if fragment.record_count is None:
                rows, size = map(sum, zip(*sizes, strict=True))
                assert rows <= 1 or size <= 2 * block_bytes

    def test_summaries_and_sizes_are_right(
        self, source: Source, inputs: list[InputFile], expected: list[list[Any]]
    ) -> None:
        assert [summary.name for summary in source.inputs] == [each.name for each in inputs]
        for index, (summary, records) in enumerate(zip(source.inputs, expected, strict=True)):
            assert summary.file_bytes == path_of(inputs[index]).stat().st_size
            assert summary.record_count is not None
            if summary.record_count_is_exact:
                assert summary.record_count == len(records)
            native_bytes = sum(batch.nbytes for batch in read_input(source, index, MANY_BYTES))
            assert summary.native_bytes is not None
            assert native_bytes / 4 - 1000 <= summary.native_bytes <= native_bytes * 4 + 1000
        largest = max(batch.nbytes for batch in read_input(source, 0, 1000))
        assert source.reading_bytes(1000) >= min(1000, largest)
        assert source.reading_bytes(2_000_000) >= source.reading_bytes(1000)
        target = self.open_target(source)
        assert 0 < target.sink_bytes(1) <= target.sink_bytes(4)

    def test_inputs_without_records(self, tmp_path: Path) -> None:
        inputs = self.make_inputs(make_folder(tmp_path / "some"), [0, 3, 0])
        source = self.format.open_source(inputs, self.read_options)
        counts = [len(self.records_in(read_input(source, index, MANY_BYTES))) for index in range(3)]
        assert counts == [0, 3, 0]
        inputs = self.make_inputs(make_folder(tmp_path / "none"), [0])
        source = self.format.open_source(inputs, self.read_options)
        converted = self.format.open_target(source.decoder().finish(), None, self.write_options)
        for number, target in enumerate((self.open_target(source), converted)):
            path = tmp_path / f"{number}{target.suffix}"
            assert self.read_back(self.write_shard(target, path, [])) == []

    def test_no_file_is_held_open_between_calls(self, inputs: list[InputFile]) -> None:
        source = self.format.open_source(inputs, self.read_options)
        assert not find_open_files(path_of(inputs[0]).parent)
        read_input(source, 0, 1000)
        started = source.fragments(0, 1000, LONGEST)
        next(started)
        del started
        gc.collect()
        assert not find_open_files(path_of(inputs[0]).parent)

    def test_a_record_longer_than_the_limit_is_refused_by_name(
        self, source: Source, inputs: list[InputFile]
    ) -> None:
        options = replace(self.read_options, max_record_bytes=7)
        limited = self.format.open_source(inputs, options)
        for block_bytes in (7, MANY_BYTES):
            with pytest.raises(InputError) as caught:
                read_input(source, 0, block_bytes, max_record_bytes=7)
            assert inputs[0].name in str(caught.value)
            assert "7" in str(caught.value).replace(inputs[0].name, "")
            assert "raise --memory" in str(caught.value)
            with pytest.raises(InputError, match="raise --max-record-bytes"):
                read_input(limited, 0, block_bytes, max_record_bytes=7)

    def test_a_missing_file_is_named(self, inputs: list[InputFile], tmp_path: Path) -> None:
        gone = InputFile(name="gone away", path=tmp_path / "gone away")
        with pytest.raises(InputError, match="gone away"):
            self.format.open_source([*inputs, gone], self.read_options)

    def test_a_damaged_file_is_named_or_read_right(
        self, inputs: list[InputFile], expected: list[list[Any]]
    ) -> None:
        """One that is truncated has the records that are left; of other bytes nobody knows what they were."""
        whole = path_of(inputs[0])
        content, path = whole.read_bytes(), whole.with_name(f"damaged {whole.name}")
        size, file = (
            len(content),
            InputFile(name="the damaged file", path=path, suffix=split_suffix(path.name)),
        )
        for suffix in self.format.traits.companion_suffixes:
            path.with_suffix(suffix).write_bytes(whole.with_suffix(suffix).read_bytes())
        cuts = [content[: int(size * kept)] for kept in (0, 0.001, 0.03, 0.5, 0.9, 0.97, 0.999)]
        cuts.append(content[:-1])
        places = range(0, size, size // 20 + 1)
        others = [content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :] for at in places]
        for number, damaged in enumerate([*cuts, *others]):
            path.write_bytes(damaged)
            try:
                source = self.format.open_source([file], self.read_options)
                batches = read_input(source, 0, 1000)
            except InputError as error:
                assert "the damaged file" in str(error)
            else:
                assert all(batch.schema.equals(source.schema, check_metadata=True) for batch in batches)
                if number < len(cuts):
                    assert self.records_in(batches) == self.read_back(path)
                elif self.has_checksums:
                    assert self.records_in(batches) == expected[0]
            gc.collect()
            assert not find_open_files(path.parent)

    def test_a_stream_reads_like_a_file(self, inputs: list[InputFile], expected: list[list[Any]]) -> None:
        stream = io.BufferedReader(OneWayReader(path_of(inputs[0]).read_bytes()))
        standard_input = InputFile(name="standard input", path=None, stream=stream)
        if not self.reads_streams:
            with pytest.raises((InputError, UsageError), match=r"standard input: .* stream"):
                self.format.open_source([standard_input], self.read_options)
            return
        source = self.format.open_source([standard_input], self.read_options)
        assert source.inputs == (InputSummary("standard input", None, None, False, None),)
        assert self.records_in(read_input(source, 0, 1000)) == expected[0]
        assert not stream.closed

    def test_an_object_reads_like_a_file(self, inputs: list[InputFile], expected: list[list[Any]]) -> None:
        file = make_object(path_of(inputs[0]))
        others = map(path_of(inputs[0]).with_suffix, self.format.traits.companion_suffixes)
        file = file._replace(companions=tuple(map(make_object, others)))
        source = self.format.open_source([file], self.read_options)
        assert self.records_in(read_input(source, 0, 1000)) == expected[0]

    # Target and sink

    def test_a_round_trip_keeps_every_record(
        self, source: Source, expected: list[list[Any]], tmp_path: Path
    ) -> None:
        target = self.open_target(source)
        batches = [batch for index in range(len(expected)) for batch in read_input(source, index, 1000)]
        path = self.write_shard(target, tmp_path / f"out{target.suffix}", batches)
        records = [record for part in expected for record in part]
        assert self.read_back(path) == records
        again = self.format.open_source([InputFile(name="again", path=path)], self.read_options)
        assert again.schema.equals(source.schema, check_metadata=True)
        assert self.records_in(read_input(again, 0, 1000)) == records

    def test_each_compression_is_written(
        self, source: Source, expected: list[list[Any]], tmp_path: Path
    ) -> None:
        """Shards say neither when they were written nor their names; suffixes are those of the format."""
        batches, traits, contents = read_input(source, len(expected) - 1, 1000), self.format.traits, set()
        for name in traits.compressions:
            options = replace(self.write_options, compression=name)
            target = self.format.open_target(source.schema, source.layout, options)
            path = self.write_shard(target, tmp_path / f"{name}{target.suffix}", batches)
            suffix, is_wrapped = split_suffix(path.name), traits.is_lines or traits.is_wrapped
            assert suffix.kind in traits.suffixes
            assert suffix.compression == (name if is_wrapped and name != "none" else None)
            again = self.format.open_source([InputFile("again", path, suffix=suffix)], self.read_options)
            assert again.compression in (name, None)
            assert self.records_in(read_input(again, 0, 1000)) == expected[-1]
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(time, "time", partial(float, time.time() + 100_000))
                later = self.write_shard(target, tmp_path / f"{name} later{target.suffix}", batches)
            assert later.read_bytes() == path.read_bytes()
            contents.add(path.read_bytes())
        assert len(contents) == len(traits.compressions)

    @pytest.mark.parametrize("rows", ["few", "many"])
    def test_shard_bytes_do_not_depend_on_cuts_or_threads(self, tmp_path: Path, rows: str) -> None:
        count = self.bulk_rows if rows == "many" else 50
        inputs = self.make_inputs(make_folder(tmp_path / "in"), [count])
        source = self.format.open_source(inputs, self.read_options)
        whole = merge_batches(source, read_input(source, 0, MANY_BYTES))
        target = self.open_target(source)
        shards = [
            self.write_shard(
                target, tmp_path / f"out{draw}{target.suffix}", cut_batch(whole, pieces, draw), threads
            )
            for draw, (pieces, threads) in enumerate([(1, 1), (7, 3), (40, 1)])
        ]
        contents = [shard.read_bytes() for shard in shards]
        assert all(content == contents[0] for content in contents)
        assert self.read_back(shards[-1]) == self.read_back(path_of(inputs[0]))

    def test_an_empty_shard_reads_as_no_records(self, source: Source, tmp_path: Path) -> None:
        target = self.open_target(source)
        nothing = merge_batches(source, [])
        without_write = self.write_shard(target, tmp_path / f"a{target.suffix}", [])
        with_empty_write = self.write_shard(target, tmp_path / f"b{target.suffix}", [nothing, nothing])
        assert without_write.read_bytes() == with_empty_write.read_bytes()
        assert self.read_back(without_write) == []
        again = self.format.open_source([InputFile(name="empty", path=without_write)], self.read_options)
        assert self.records_in(read_input(again, 0, 1000)) == []

    def test_an_existing_file_is_refused_and_left_alone(self, source: Source, tmp_path: Path) -> None:
        target = self.open_target(source)
        path, link = tmp_path / f"out{target.suffix}", tmp_path / f"link{target.suffix}"
        path.write_bytes(b"precious")
        link.symlink_to(tmp_path / "elsewhere")
        for taken in (path, link):
            with pytest.raises(OSError, match=r"exists|File"):
                target.open(taken, 1)
        assert path.read_bytes() == b"precious"
        assert not (tmp_path / "elsewhere").exists()

    def test_abort_releases_everything_and_may_be_repeated(self, source: Source, tmp_path: Path) -> None:
        target = self.open_target(source)
        batches = read_input(source, 0, 1000)
        for number, (threads, written) in enumerate([(1, 0), (3, 1), (1, 3), (3, 3)]):
            sink = target.open(tmp_path / f"out{number}{target.suffix}", threads)
            for batch in batches[:written]:
                sink.write(batch)
            sink.abort()
            sink.abort()
            assert not find_open_files(tmp_path)
        with pytest.raises(ZeroDivisionError), target.open(tmp_path / f"out{target.suffix}", 1):
            raise ZeroDivisionError
        assert not find_open_files(tmp_path)

    def test_close_and_then_abort_may_be_repeated(
        self, source: Source, expected: list[list[Any]], tmp_path: Path
    ) -> None:
        target = self.open_target(source)
        path = tmp_path / f"out{target.suffix}"
        sink: Sink = target.open(path, 2)
        for batch in read_input(source, 0, 1000):
            sink.write(batch)
        for finish in (sink.close, sink.close, sink.abort, sink.close):
            finish()
            assert sink.record_count == len(expected[0])
        assert not find_open_files(tmp_path)
        assert self.read_back(path) == expected[0]

    def test_streams_and_targets_of_a_kept_layout_get_the_same_bytes(
        self, source: Source, tmp_path: Path
    ) -> None:
        batches = read_input(source, 0, 1000)
        target = self.open_target(source)
        content = self.write_shard(target, tmp_path / f"out{target.suffix}", batches).read_bytes()
        kept = unpack(json.loads(json.dumps(pack(source.layout))), self.format.layout_types)
        again = self.format.open_target(source.schema, kept, self.write_options)
        assert self.write_shard(again, tmp_path / f"kept{again.suffix}", batches).read_bytes() == content
        if not isinstance(target, SupportsStream):
            return
        written = OneWayWriter()
        stream = io.BufferedWriter(written)
        with target.open_stream(stream, 2) as sink:
            for batch in batches:
                sink.write(batch)
        assert not stream.closed
        assert written.content == content

    # Decoder

    def decode_all(self, source: Source, block_bytes: int, *, scramble: bool) -> pa.Table:
        """Return the table form of all records in order, observed in another order than read if `scramble`."""
        decoder = source.decoder()
        placed = place_batches(source, block_bytes)
        order = random.Random(2).sample(placed, len(placed)) if scramble else placed
        with ThreadPoolExecutor(4 if scramble else 1) as pool:
            list(pool.map(lambda each: decoder.observe(*each), order))
            schema = decoder.finish()
            decoded = list(pool.map(lambda each: decoder.decode(each[0]), placed))
        assert decoder.schema is not None
        assert decoder.schema.equals(schema)
        assert all(batch.schema.equals(schema) for batch in decoded)
        assert [batch.num_rows for batch in decoded] == [batch.num_rows for batch, _, _ in placed]
        return pa.Table.from_batches(decoded, schema=schema).combine_chunks()

    def test_table_form_does_not_depend_on_cuts_or_order(
        self, source: Source, expected: list[list[Any]]
    ) -> None:
        table = self.decode_all(source, MANY_BYTES, scramble=False)
        table.validate(full=True)
        assert table.num_rows == sum(map(len, expected))
        for block_bytes in (64, 1000):
            assert self.decode_all(source, block_bytes, scramble=True).equals(table)

    def test_table_form_does_not_depend_on_who_observes_or_decodes(self, source: Source) -> None:
        table = self.decode_all(source, 1000, scramble=False)
        placed = place_batches(source, 1000)
        decoders = [source.decoder(), source.decoder()]
        for number, each in enumerate(placed):
            decoders[number % 3 % 2].observe(*each)
        decoders[1].merge(json.loads(json.dumps(decoders[0].state())))
        options = replace(source.options or self.read_options, schema=decoders[1].finish())
        names = [file.name for file in source.inputs]
        stored = StoredInputs(source.schema, names, lambda: source.layout, options)
        for decoder in (decoders[1], self.format.restore_decoder(stored)):
            decoded = [decoder.decode(batch) for batch, _, _ in placed]
            assert pa.Table.from_batches(decoded).combine_chunks().equals(table)

    def test_columns_are_those_of_the_whole_table(self, source: Source, inputs: list[InputFile]) -> None:
        if "columns" not in self.format.traits.read_options:
            return
        options = replace(self.read_options, columns=("no such column",))
        with pytest.raises(RecshufError, match="no such column"):
            self.decode_all(self.format.open_source(inputs, options), 1000, scramble=False)
        table = self.decode_all(source, 1000, scramble=False)
        names = table.schema.names[::-2]
        options = replace(self.read_options, columns=tuple(names))
        chosen = self.format.open_source(inputs, options)
        found = self.decode_all(chosen, 1000, scramble=True)
        assert found.equals(table.select(names))
        options = replace(chosen.options or options, schema=found.schema)
        files = [file.name for file in chosen.inputs]
        stored = StoredInputs(chosen.schema, files, lambda: chosen.layout, options)
        restored = self.format.restore_decoder(stored)
        decoded = [restored.decode(batch) for batch, _, _ in place_batches(chosen, 1000)]
        assert pa.Table.from_batches(decoded).combine_chunks().equals(found)

    def test_bad_records_are_refused_or_told_wherever_batches_are_cut(self, tmp_path: Path) -> None:
        made = self.make_bad_input(make_folder(tmp_path / "bad"))
        if made is None:
            return
        file, bad_rows = made
        source = self.format.open_source([file], self.read_options)
        with pytest.raises(BadRecordError) as caught:
            self.decode_all(source, 1000, scramble=False)
        assert file.name in str(caught.value)
        options = replace(self.read_options, sets_bad_aside=True)
        for block_bytes in (64, 1000, MANY_BYTES):
            source = self.format.open_source([file], options)
            decoder, found, good = source.decoder(), list[int](), list[pa.RecordBatch]()
            for batch, index, first_row in place_batches(source, block_bytes):
                bad = decoder.observe(batch, index, first_row)
                rows = bad.index.tolist() if bad else []
                assert len(bad.reasons if bad else ()) == len(rows)
                found += [first_row + row for row in rows]
                is_good = [row not in rows for row in range(len(batch))]
                good.append(batch.filter(pa.array(is_good, pa.bool_())))
            assert found == bad_rows
            schema = decoder.finish()
            assert all(decoder.decode(batch).schema.equals(schema) for batch in good)

    def test_table_form_is_accepted_by_the_same_format(
        self, source: Source, expected: list[list[Any]], tmp_path: Path
    ) -> None:
        """It gives the same bytes, however it is cut; a column more is kept or refused."""
        table = self.decode_all(source, 1000, scramble=False)
        paths = []
        for rows, threads in ((None, 1), (7, 3), (40, 1)):
            target = self.format.open_target(table.schema, None, self.write_options)
            path = tmp_path / f"out{rows}{target.suffix}"
            paths.append(self.write_shard(target, path, table.to_batches(rows), threads))
        records = [self.meaning_of(record) for part in expected for record in part]
        assert [self.meaning_of(record) for record in self.read_back(paths[0])] == records
        assert all(path.read_bytes() == paths[0].read_bytes() for path in paths)
        more = table.append_column("one more", pa.array(range(table.num_rows), pa.int64()))
        try:
            target = self.format.open_target(more.schema, None, self.write_options)
            path = self.write_shard(target, tmp_path / f"more{target.suffix}", more.to_batches())
        except ConversionError:
            return
        again = self.format.open_source([InputFile("again", path)], self.read_options)
        assert "one more" in self.decode_all(again, 1000, scramble=False).schema.names
