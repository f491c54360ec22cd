"""Dense types have no dictionaries and views."""

from __future__ import annotations

import pyarrow as pa

from recshuf.formats.parquet.types import dense_type


def test_dense_types_have_no_dictionaries_and_views() -> None:
    assert dense_type(pa.list_(pa.dictionary(pa.int8(), pa.string()), 3)) == pa.list_(pa.string(), 3)
    assert dense_type(pa.dictionary(pa.int8(), pa.string_view())) == pa.large_string()
