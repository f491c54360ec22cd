"""Decoders made for one field, or for records that are kept in a store, decode as those that saw the inputs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from recshuf.errors import InputError
from recshuf.formats import csv, jsonl, text
from recshuf.interfaces import Format, ReadOptions, Source, StoredInputs
from tests.support.formats.format_tools import place_batches, reading
from tests.support.formats.line_tools import give


def open_one(folder: Path, format_: Format, content: str, options: ReadOptions) -> Source:
    return format_.open_source([give(folder / "in", content.encode())], options)


def store(source: Any, schema: pa.Schema | None) -> StoredInputs:
    """Return the inputs of a source as a store knows them."""
    names = [one.name for one in source.inputs]
    return StoredInputs(source.schema, names, lambda: source.layout, replace(source.options, schema=schema))


@pytest.mark.parametrize(
    ("format_", "content", "options"),
    [
        (text.FORMAT, "a;b\n\0é\0", reading(separator=b"\0")),
        (csv.FORMAT, "a;b\n1;'x;\n'\n2;\"\n", reading(quote=b"'")),
        (csv.FORMAT, '1\t"\n2\t\n', reading(delimiter=b"\t", quote=b"", header=0)),
    ],
    ids=["text", "csv", "tsv-unquoted"],
)
def test_records_of_a_store_decode_as_those_of_its_inputs(
    tmp_path: Path, format_: Format, content: str, options: ReadOptions
) -> None:
    source = open_one(tmp_path, format_, content, options)
    decoder = source.decoder()
    [(batch, index, row)] = place_batches(source, 1 << 20)
    decoder.observe(batch, index, row)
    restored = format_.restore_decoder(store(source, decoder.finish()))
    assert restored.schema == decoder.schema
    assert restored.decode(batch).equals(decoder.decode(batch))
    assert restored.decode(batch).num_rows == 2


def test_fields_are_checked_where_they_are_added_to_records_of_a_store(tmp_path: Path) -> None:
    source = open_one(tmp_path, jsonl.FORMAT, '{"a":1}\n{"row":2}\n', ReadOptions())
    [(batch, _, _)] = place_batches(source, 1 << 20)
    columns = pa.record_batch({"file": ["x", "y"], "row": [6, 7]})
    adder = jsonl.FORMAT.restore_field_adder(store(source, None), ["file", "row"])
    assert adder.add_fields(batch[:1], columns[:1])[0].to_pylist() == [b'{"a":1,"file":"x","row":6}\n']
    with pytest.raises(InputError, match="y: line 8: may already have one of these fields"):
        adder.add_fields(batch, columns)
