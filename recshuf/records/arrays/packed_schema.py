"""Arrow schemas as text, for JSON: the message of Arrow's IPC format in base64."""

from __future__ import annotations

import base64

import pyarrow as pa


def pack_schema(schema: pa.Schema) -> str:
    """Return a schema as text."""
    return base64.b64encode(schema.serialize()).decode()


def unpack_schema(text: str) -> pa.Schema:
    """Return the schema that `pack_schema` was given, with its metadata."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
