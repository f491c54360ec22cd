"""The conformance suite finds what is wrong with an adapter: its tests are run with the format of docs/plugin.md and a flaw in it."""

import importlib
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from recshuf.testing.runs import make_folder
from tests.support.other_packages import forget_formats, install, use
from tests.test_plugin_page import extract_files

SUMMARY = "InputSummary(file.name, start + count * self._size, count, True, count * self._size)"
FRAGMENT = "yield RowFragment(self._files[input_index].name, row, rows, read, limits)"
STEP = "step = max(1, block_bytes // self._size)"
BATCH, TABLE = (
    f"return pa.record_batch([array], schema=self.schema)\n{end}" for end in ("    def dec", "\nclass IdxT")
)
CONTENT = "content, _ = read_at(file, start + row * self._size, rows * self._size)\n"
SEEN = CONTENT + "        self.seen = {*getattr(self, 'seen', ()), (input_index, row)}\n"
SOURCE, TARGET = "class IdxSource(Source):\n", "class IdxTarget(Target):\n"
SHIFTED = """    def __setstate__(self, state):
        self.__dict__ = state | {"_heads": [(layout, count, start - 4) for layout, count, start in state["_heads"]]}
"""
EXTRA = """            self._file.write(b"" if self.record_count else bytes(24))
            self.record_count = self.record_count or 1
            self._file.seek(0)
"""
ABORT, CLOSED = "def abort(self):\n", "            self._file.close()\n    def abort"
OPEN = "def open(self, path, threads):\n        "
LEAK = "__import__('os').open({}, 0)"
WRITE = "self._file.write(content)"
FLAWS = [
    ("fragments_hold_the_records_in_order", "range(0, count, step)", "range(1, count, step)"),
    ("fragments_hold_the_records_in_order", CONTENT, CONTENT.replace("row *", "max(0, row - 1) *")),
    ("fragments_hold_the_records_in_order", BATCH, BATCH.replace(")\n", ".with_metadata({'a': 'b'}))\n")),
    ("fragments_hold_the_records_in_order", FRAGMENT,
     FRAGMENT.replace("yield", "one =") + "; one.record_count += 1; yield one"),
    ("fragments_hold_the_records_in_order", CONTENT,
     "rows -= rows > 1 and (input_index, row) in getattr(self, 'seen', ())\n        " + SEEN),
    ("fragments_hold_the_records_in_order", CONTENT,
     SEEN.replace("\n", "\n        content = content[::-1 if (input_index, row) in getattr(self, 'seen', ()) else 1]\n", 1)),
    ("a_source_that_was_sent_elsewhere_reads_the_same", SOURCE,
     SOURCE + "    def __setstate__(self, state): self.__dict__ = state | {'inputs': state['inputs'][::-1]}\n"),
    ("a_source_that_was_sent_elsewhere_reads_the_same", SOURCE, SOURCE + SHIFTED),
    ("batches_respect_block_bytes", STEP, "step, limits = count or 1, limits._replace(block_bytes=1 << 30)"),
    ("summaries_and_sizes_are_right", SUMMARY, SUMMARY.replace("file.name", "'a'")),
    ("summaries_and_sizes_are_right", SUMMARY, SUMMARY.replace("start +", "1 + start +")),
    ("summaries_and_sizes_are_right", SUMMARY, SUMMARY.replace("count, True", "None, False")),
    ("summaries_and_sizes_are_right", SUMMARY, SUMMARY.replace("count, True", "count + 1, True")),
    ("summaries_and_sizes_are_right", SUMMARY, SUMMARY.replace("count * self._size)", "None)")),
    ("summaries_and_sizes_are_right", SUMMARY, SUMMARY.replace("self._size)", "self._size * 9)")),
    ("summaries_and_sizes_are_right", SOURCE, SOURCE + "    def reading_bytes(self, block_bytes): return block_bytes // 9\n"),
    ("summaries_and_sizes_are_right", SOURCE, SOURCE + "    def reading_bytes(self, block_bytes): return 10**6 // block_bytes + 999\n"),
    ("summaries_and_sizes_are_right", TARGET, TARGET + "    def sink_bytes(self, threads): return 9 // threads\n"),
    ("inputs_without_records", "range(0, count, step)", "range(0, count if count > 3 else 0, step)"),
    ("inputs_without_records", "            self._file.seek(0)\n", EXTRA),
    ("no_file_is_held_open_between_calls", SOURCE, SOURCE + f"    inputs = property(lambda _: (), lambda self, _: {LEAK.format('self._files[0].path')})\n"),
    ("no_file_is_held_open_between_calls", CONTENT, f"{LEAK.format('file.path')}; {CONTENT}"),
    ("a_record_longer_than_the_limit_is_refused_by_name", "limit(block_bytes, max_record_bytes)", "limit(block_bytes, 1 << 30)"),
    ("a_record_longer_than_the_limit_is_refused_by_name", "RowFragment(self._files[input_index].name", "RowFragment('a'"),
    ("a_record_longer_than_the_limit_is_refused_by_name", STEP, STEP + "; limits = limits._replace(remedy='mend it')"),
    ("a_missing_file_is_named", "[read_header(file) for file in files]", "[read_header(file) for file in files if file.path.exists()]"),
    ("a_damaged_file_is_named_or_read_right", 'InputError(file.name, "is no IDX', 'InputError("a", "is no IDX'),
    ("a_damaged_file_is_named_or_read_right", "    head, size = read_at(", f"    {LEAK.format('file.path')}; head, size = read_at("),
    ("a_damaged_file_is_named_or_read_right", BATCH, BATCH.replace(")\n", ".with_metadata({'a': 'b'}))\n")),
    ("a_damaged_file_is_named_or_read_right", "format = FORMAT\n", "format = FORMAT\n    has_checksums = True\n"),
    ("a_stream_reads_like_a_file", "is a stream, and", "is a pipe, and"),
    ("an_object_reads_like_a_file", CONTENT, CONTENT.replace("start +", "start - 4 * (file.path is None) +")),
    ("a_round_trip_keeps_every_record", WRITE, "self._file.write(bytes(content)[::-1])"),
    ("a_round_trip_keeps_every_record", "self.record_count += len(batch)", "self.record_count += len(batch) + 1"),
    ("a_round_trip_keeps_every_record", 'pa.schema([("record", pa.binary(self._size))])',
     'pa.schema([("record", pa.binary(self._size))], {"files": str(len(files))})'),
    ("a_round_trip_keeps_every_record", CONTENT, CONTENT.replace("start +", "start - 4 * (file.name == 'again') +")),
    ("shard_bytes_do_not_depend_on_cuts_or_threads", WRITE, "self._file.write(bytes(content)[:4][::-1] + bytes(content)[4:])"),
    ("shard_bytes_do_not_depend_on_cuts_or_threads", WRITE, "self._file.write(bytes(255 - one for one in bytes(content)))"),
    ("each_compression_is_written", 'suffix = ".idx"', 'suffix = "idx"'),
    ("each_compression_is_written", '"idx", (".idx", ".ubyte"),', '"idx", (".idx", ".ubyte"), compressions=("none", "gzip"),'),
    ("each_compression_is_written", '"idx", (".idx", ".ubyte"),', '"idx", (".idx", ".ubyte"), is_wrapped=True, compressions=("none", "gzip"),'),
    ("an_empty_shard_reads_as_no_records", WRITE, "self._file.write(content or bytes(1))"),
    ("an_existing_file_is_refused_and_left_alone", 'path.open("xb")', '__import__("io").BytesIO() if path.is_file() else path.open("xb")'),
    ("an_existing_file_is_refused_and_left_alone", 'path.open("xb")', 'path.is_symlink() or path.write_bytes(b""), path.open("xb")'),
    ("an_existing_file_is_refused_and_left_alone", 'path.open("xb")', 'path.is_symlink() and path.write_bytes(b""), path.open("xb")'),
    ("abort_releases_everything_and_may_be_repeated", ABORT, f"{ABORT}        {LEAK.format('self._file.name')}\n"),
    ("close_and_then_abort_may_be_repeated", ABORT, f"{ABORT}        self.record_count = 0\n"),
    ("close_and_then_abort_may_be_repeated", CLOSED, f"            {LEAK.format('self._file.name')}\n{CLOSED}"),
    ("close_and_then_abort_may_be_repeated", WRITE, "self._file.write(bytes(content)[::-1])"),
    ("streams_and_targets_of_a_kept_layout_get_the_same_bytes", OPEN,
     f"n = 0\n    {OPEN}IdxTarget.n += 1; self._layout = IdxLayout(self._layout.code, (self.n, 6 // self.n))\n        "),
    ("table_form_does_not_depend_on_cuts_or_order", TABLE, TABLE.replace("array]", "array[1:]]")),
    ("table_form_does_not_depend_on_cuts_or_order", TABLE, TABLE.replace("schema=self.schema", "['other']")),
    ("table_form_does_not_depend_on_cuts_or_order", TABLE, TABLE.replace("array]", "array.take(pa.array([0] * len(array)))]")),
    ("table_form_does_not_depend_on_cuts_or_order", "range(0, count, step)", "range(0, count - 1, count)"),
    ("table_form_does_not_depend_on_who_observes_or_decodes", "IdxDecoder(stored.layout", "IdxDecoder(IdxLayout(13, (6,))"),
    ("table_form_is_accepted_by_the_same_format", "column.to_numpy()", "column.to_numpy()[::-1]"),
    ("table_form_is_accepted_by_the_same_format", "self._layout = layout or IdxLayout(codes[kind], tuple(shape))",
     "IdxTarget.n = n = getattr(IdxTarget, 'n', 0) + 1; self._layout = layout or IdxLayout(codes[kind], (n, 6 // n))"),
    ("table_form_is_accepted_by_the_same_format", "len(schema) != 1 or ", ""),
    ("the_format_is_found", "len(head) > 3 and head", "len(head) > 9999 and head"),
    ("the_format_is_found", "return len(head) > 3 and", "return True or"),
    ("other_records_are_not_appended_to_a_store", "if source.layout != kept.layout", "if False"),
]  # fmt: skip


pytestmark = pytest.mark.slow


@contextmanager
def open_suite(folder: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> Iterator[Any]:
    """Give the tests of the page, with a flaw in one of its files; the package is installed meanwhile."""
    files = extract_files()
    assert sum(old in content for content in files.values()) == 1, old
    for name, content in files.items():
        (folder / name).write_text(content.replace(old, new))
    install(folder, "recshuf-idx", idx="recshuf_idx:FORMAT")
    names = "recshuf_idx", "test_idx"
    try:
        use(folder, monkeypatch)
        importlib.invalidate_caches()
        yield importlib.import_module(names[1]).TestIdx()
    finally:
        monkeypatch.undo()
        forget_formats()
        for name in names:
            sys.modules.pop(name, None)


def call(suite: Any, name: str, folder: Path) -> None:
    """Run a test of a suite with what it asks for."""
    test = getattr(suite, f"test_{name}")
    files = suite.make_inputs(make_folder(folder / "in"), suite.row_counts)
    paths = [file.path for file in files]
    found = {"tmp_path": make_folder(folder / "out"), "block_bytes": 1000, "rows": "few", "inputs": files}
    found |= {"paths": paths, "expected": [suite.read_back(path) for path in paths]}
    if "source" in (wanted := inspect.signature(test).parameters):
        found["source"] = suite.format.open_source(files, suite.read_options)
    test(**{each: found[each] for each in wanted})


@pytest.mark.parametrize("name", dict.fromkeys(name for name, *_ in FLAWS))
def test_a_format_without_a_flaw_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with open_suite(make_folder(tmp_path / "package"), monkeypatch, SOURCE, SOURCE) as suite:
        call(suite, name, tmp_path)


@pytest.mark.parametrize(
    "flaw", range(len(FLAWS)), ids=[f"{number} {name}" for number, (name, *_) in enumerate(FLAWS)]
)
def test_a_flaw_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flaw: int) -> None:
    name, old, new = FLAWS[flaw]
    with (
        open_suite(make_folder(tmp_path / "package"), monkeypatch, old, new) as suite,
        pytest.raises((AssertionError, pytest.fail.Exception)),
    ):
        call(suite, name, tmp_path)
