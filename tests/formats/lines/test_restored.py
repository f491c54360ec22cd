"""Decoders made for one field, or for records that are kept in a store, decode as those that saw the inputs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from recshuf.errors import InputError, UsageError
from recshuf.formats import csv, jsonl, text
from recshuf.interfaces import ReadOptions, StoredInputs
from tests.support.formats.format_tools import place_batches
from tests.support.formats.given_options import reading
from tests.support.formats.line_tools import give

if TYPE_CHECKING:
    from pathlib import Path

    from recshuf.interfaces import Format, Source


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
        (jsonl.FORMAT, '{"a":"1","b":[2]}\n{"c":null,"b":[0.5]}\n', ReadOptions()),
        (csv.FORMAT, "a;b\n1;'x;\n'\n2;\"\n", reading(quote=b"'")),
        (csv.FORMAT, '1\t"\n2\t\n', reading(delimiter=b"\t", quote=b"", header=0)),
    ],
    ids=["text", "jsonl", "csv", "tsv-unquoted"],
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


def test_one_field_is_decoded_whatever_the_others_hold(tmp_path: Path) -> None:
    lines = ['{"k":{"a":1},"x":0}\n', '{"k":{"a":2},"x":"text"}\n', '{"x":[],"k":{"a":null}}\n']
    source = open_one(tmp_path, jsonl.FORMAT, "".join(lines), ReadOptions(field="k.a"))
    decoder = source.decoder()
    placed = place_batches(source, 1)  # each record by itself
    for one in placed:
        decoder.observe(*one)
    assert decoder.finish() == pa.schema([("k", pa.struct([("a", pa.int64())]))])
    found = [decoder.decode(batch)["k"].to_pylist() for batch, _, _ in placed]
    assert found == [[{"a": 1}], [{"a": 2}], [{"a": None}]]
    decoder = open_one(tmp_path, jsonl.FORMAT, "{}\n", ReadOptions(field="k.a")).decoder()
    with pytest.raises(UsageError, match="no column 'k'"):
        decoder.finish()
