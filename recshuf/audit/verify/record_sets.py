"""The two sides of a comparison: files opened so that equal records hash alike."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as pt

from recshuf.audit.verify.hashing import HashKey, hash_rows
from recshuf.audit.verify.type_classes import is_bytes, is_list, storage_of
from recshuf.errors import InputError, RecshufError, UsageError
from recshuf.formats import NameRules, load_format
from recshuf.interfaces import SupportsFields
from recshuf.output.manifest import MANIFEST_NAME, Manifest
from recshuf.system.listing import expand_inputs

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from recshuf.interfaces import Decoder, InputFile, ReadOptions, Source
    from recshuf.job.progress import Progress


INPUTS, OUTPUT = 0, 1


@dataclass(slots=True)
class Side:
    """The inputs or the output."""

    name: str
    """What the pass that reads it is called."""
    format: str
    source: Source
    files: list[InputFile]
    decoder: Decoder | None = None
    """Brings records to table form, where the other side is of another format."""
    added: tuple[str, ...] = ()
    """Columns that the other side has not, and that are not compared."""

    @property
    def names(self) -> list[str]:
        """The files as messages show them."""
        return [one.name for one in self.source.inputs]

    def observe(self, batch: pa.RecordBatch, input_index: int, first_row: int) -> None:
        """Let the decoder learn from a batch."""
        if self.decoder is not None and batch.num_rows:
            self.decoder.observe(batch, input_index, first_row)

    def hash(
        self, batch: pa.RecordBatch, input_index: int, first_row: int, key: HashKey
    ) -> NDArray[np.uint64]:
        """Return the hashes of the records of a batch, shape ``(n, 2)``."""
        if self.decoder is None:
            return hash_rows(self._leave_out_added(batch), key)
        table = self.decode(batch, input_index, first_row)
        return hash_rows(self._leave_out_added(table), key, is_converted=True)

    def _leave_out_added(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self.added:
            return batch
        if self.decoder is None and isinstance(self.source, SupportsFields):
            return self.source.field_adder(self.added).remove_fields(batch)
        return batch.select(
            [place for place, name in enumerate(batch.schema.names) if name not in self.added]
        )

    def leave_out_added(self, schema: pa.Schema) -> pa.Schema:
        """Return the fields of a schema that are compared."""
        return pa.schema([field for field in schema if field.name not in self.added], schema.metadata)

    def decode(self, batch: pa.RecordBatch, input_index: int, first_row: int) -> pa.RecordBatch:
        """Return the table form of a batch.

        Raises
        ------
        RecshufError
            When a record has none, naming it.
        """
        if self.decoder is None:
            raise RuntimeError("a side without a decoder has no table form")
        try:
            return self.decoder.decode(batch)
        except (RecshufError, pa.ArrowException):
            self.observe(batch, input_index, first_row)  # it can tell the place
            raise


def read_manifest(output: str) -> Manifest | None:
    """Return the manifest of an output; None where it has none.

    Raises
    ------
    InputError
        When there is one that cannot be read or understood.
    """
    name = str(Path(output, MANIFEST_NAME))
    try:
        return Manifest.read(Path(output))
    except OSError as error:
        raise InputError(name, error.strerror or str(error)) from error
    except ValueError as error:
        remedy = "remove it, so that the folder is compared without one"
        raise InputError(name, "is not a manifest of recshuf", remedy=remedy) from error


def list_files(patterns: Sequence[str], name: str | None, progress: Progress) -> list[InputFile]:
    """Return the files of one side; of a folder those of a format, if `name` says which.

    Raises
    ------
    InputError
        When one is missing.
    UsageError
        When one is a pipe or a device.
    """
    files = expand_inputs(patterns, NameRules(name), progress.warn)
    for file in files:
        _check_regular(file)
    return files


def _check_regular(file: InputFile) -> None:
    """Refuse what cannot be read twice, before anything is opened and waits."""
    if file.stamp is None:
        raise UsageError(
            f"{file.name}: verify reads files, some of them twice, and this is none; give a file"
        )


def open_side(name: str, files: list[InputFile], format_name: str, read: ReadOptions) -> Side:
    """Return one side, read in its native form."""
    return Side(name, format_name, load_format(format_name).open_source(files, read), files)


def options_of_inputs(read: ReadOptions, format_name: str) -> ReadOptions:
    """Return the options that concern inputs of a format; some are for the output only."""
    return read if format_name == "text" else replace(read, separator=b"\n")


def options_of_output(read: ReadOptions, given: str, to: str, schema: pa.Schema | None) -> ReadOptions:
    """Return the options by which an output is read that was made from inputs with the options `read`.

    Parameters
    ----------
    schema
        Table form of the inputs, where the formats differ.
    """
    is_same = given == to
    return replace(
        read,
        separator=read.separator if to == "text" else b"\n",
        header_lines=read.header_lines if is_same else 0,
        columns=None,
        datasets=None,
        schema=None if is_same or schema is None else _schema_for(to, schema),
    )


def _schema_for(to: str, schema: pa.Schema) -> pa.Schema | None:
    """Return the schema by which lines are read that were written from records of another schema."""
    if to == "text":
        return pa.schema([("text", pa.large_binary())])
    if to != "jsonl":
        return None
    return pa.schema([pa.field(field.name, _json_type(field.type)) for field in schema])


def _json_type(kind: pa.DataType) -> pa.DataType:
    """Return the type by which values of a type are read from JSON."""
    kind = storage_of(kind)
    if pt.is_map(kind):
        pair = [("key", _json_type(kind.key_type)), ("value", _json_type(kind.item_type))]
        return pa.large_list(pa.struct([pa.field(name, child) for name, child in pair]))
    if pt.is_struct(kind):
        return pa.struct([pa.field(field.name, _json_type(field.type)) for field in kind])
    if is_list(kind):
        return pa.large_list(_json_type(kind.value_type))
    if is_bytes(kind):
        is_text = pt.is_string(kind) or pt.is_large_string(kind) or str(kind) == "string_view"
        return pa.large_string() if is_text else pa.large_binary()
    return kind
