"""Entry points of coverage-guided fuzzing of what recshuf parses by itself; needs atheris, which no test needs.

::

    pip install atheris
    python -m tests.fuzzing.parsers text -max_total_time=600

The parsers are ``text`` (blocks and ranges of records), ``zstd`` (frames) and ``schema`` (schema files); what follows
goes to libFuzzer. A finding is an exception that a parser may not raise, or a difference from a plain oracle.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import zstandard

from recshuf.errors import InputError
from recshuf.formats import text
from recshuf.formats.compression.readers import ZstdReader
from recshuf.formats.lines import ranges
from recshuf.interfaces import InputFile, ReadOptions
from recshuf.job.schema_file import read_schema
from tests.support.formats.line_tools import SEPARATORS, ends_ambiguously, split_records

if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER = Path(tempfile.gettempdir())
_ENOUGH_BYTES = 1 << 20


def check_text(data: bytes) -> None:
    """Cut text as the first bytes say, and compare with `bytes.split`."""
    if len(data) < 3:
        return
    separator, block_bytes, limit = SEPARATORS[data[0] % len(SEPARATORS)], data[1] + 1, 10 * data[2] + 1
    content = data[3:]
    expected = split_records(content, separator)
    with tempfile.NamedTemporaryFile(dir=FOLDER, suffix=".txt") as file:
        file.write(content)
        file.flush()
        given = InputFile("in.txt", Path(file.name))
        try:
            source = text.FORMAT.open_source([given], ReadOptions(separator=separator))
            fragments = list(source.fragments(0, block_bytes, limit))
            batches = [batch for fragment in fragments for batch in fragment.batches()]
        except InputError:
            longest = max(map(len, expected), default=0)
            if longest <= limit and not ends_ambiguously(content, separator):
                raise
            return
    found = [record for batch in batches for record in batch.column(0).to_pylist()]
    assert found == expected, (separator, block_bytes, found, expected)


def check_zstd(data: bytes) -> None:
    """Decompress data, and compare with the library's own reading, frame by frame."""
    expected = _decompress(data)
    reader = ZstdReader("in.zst", BytesIO(data))
    found = bytearray()
    view = memoryview(bytearray(4096))
    try:
        while (count := reader.readinto(view)) and len(found) < _ENOUGH_BYTES:
            found += view[:count]
    except InputError:
        assert expected is None, "whole frames are refused"
        return
    finally:
        reader.close()
    assert len(found) >= _ENOUGH_BYTES or expected == bytes(found), (expected, bytes(found))


def _decompress(data: bytes) -> bytes | None:
    """Return the content of frames that are whole, None if there is anything else."""
    parts: list[bytes] = []
    try:
        while data:
            if data[1:4] == b"\x2a\x4d\x18" and data[0] >> 4 == 5:
                size = int.from_bytes(data[4:8], "little")
                if len(data) < 8 + size:
                    return None
                data = data[8 + size :]
                continue
            frame = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
            parts.append(frame.decompress(data))
            if not frame.eof:
                return None
            data = frame.unused_data
    except zstandard.ZstdError:
        return None
    return b"".join(parts)


def check_schema(data: bytes) -> None:
    """Read a schema file: a schema, or an error that names the file in one line."""
    with tempfile.NamedTemporaryFile(dir=FOLDER, suffix=".json") as file:
        file.write(data)
        file.flush()
        try:
            schema = read_schema(Path(file.name))
        except InputError as error:
            assert str(error).startswith(file.name)
            return
    assert isinstance(schema, pa.Schema)
    assert len(set(schema.names)) == len(schema.names)


PARSERS: dict[str, Callable[[bytes], None]] = {"text": check_text, "zstd": check_zstd, "schema": check_schema}
SEEDS: dict[str, tuple[bytes, ...]] = {
    "text": (b"\0\x0a\xffline\nline\n\nline", b"\x07\x05\x20a<|end|>b<|end|>", b"\x05\x03\x60ababa"),
    "zstd": (zstandard.compress(b"line\n" * 50), zstandard.compress(b"") + b"\x50\x2a\x4d\x18\x01\0\0\0x"),
    "schema": (
        b'{"a": "int64", "b": ["string"], "c": {"d": "timestamp[us, tz=UTC]"}}',
        b'{"e": "fixed_size_list<list<decimal128(10, 2)>>[3]", "f": "large_list<time32[s]>"}',
    ),
}


def main() -> int:
    """Fuzz the parser named first."""
    try:
        import atheris
    except ImportError:
        sys.stderr.write("atheris is not installed: pip install atheris; nothing was tried\n")
        return 1
    if len(sys.argv) < 2 or sys.argv[1] not in PARSERS:
        sys.stderr.write(f"name a parser: {', '.join(PARSERS)}\n")
        return 2
    name = sys.argv.pop(1)
    ranges.READ_ON_BYTES = 16  # so that small files show what large ones do
    ranges._SEARCH_BYTES = 8
    with tempfile.TemporaryDirectory() as corpus:
        for index, seed in enumerate(SEEDS[name]):
            (Path(corpus) / str(index)).write_bytes(seed)
        for module in (text, ranges, *_parsing_modules()):
            _instrument(atheris, module)
        atheris.Setup([*sys.argv, corpus], PARSERS[name])
        with contextlib.suppress(SystemExit):
            atheris.Fuzz()
    return 0


def _parsing_modules() -> list[object]:
    from recshuf.formats.compression import readers
    from recshuf.formats.lines import cutting
    from recshuf.formats.lines import files as blocks
    from recshuf.job import schema_file

    return [cutting, blocks, readers, schema_file]


def _instrument(atheris: object, module: object) -> None:
    """Make the functions and methods of a module report which branches they take."""
    for holder in (module, *(one for one in vars(module).values() if isinstance(one, type))):
        if getattr(holder, "__module__", module.__name__) != module.__name__:
            continue
        for key, value in list(vars(holder).items()):
            if hasattr(value, "__code__") and value.__module__ == module.__name__:
                setattr(holder, key, atheris.instrument_func(value))


if __name__ == "__main__":
    sys.exit(main())
