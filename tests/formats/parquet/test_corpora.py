"""Every real Parquet file survives, or says why not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from recshuf.errors import InputError
from tests.support.formats.parquet_tools import holds_the_same, load, open_source, write_all

if TYPE_CHECKING:
    from pathlib import Path

NO_RECORDS = {
    "no_columns.parquet": "no columns",
    "no_columns_new.parquet": "no columns",
    "_metadata": "holds only the metadata",
}
UNREADABLE = {
    "incorrect_map_schema.parquet": "Map keys",
    "datapage_v1-corrupt-checksum.parquet": "checksum",
    "rle-dict-uncompressed-corrupt-checksum.parquet": "checksum",
    # One of its times is beyond what 64 bits hold in microseconds.
    "int96_from_spark.parquet": "outside the range",
    **NO_RECORDS,
}


INDICES = {"metas.parq": "rowindex"}
"""Names of the columns that indices of pandas become."""
# Not all versions of pyarrow before 20 read these.
NEEDS_PYARROW_20 = {
    "datapage_v2_empty_datapage.snappy.parquet",
    "overflow_i16_page_cnt.parquet",
    "page_v2_empty_compressed.parquet",
    "unknown-logical-type.parquet",
}


def problem_of(path: Path) -> str | None:
    """Return what a real file must be refused for; None if it must be read."""
    return "encrypted" if path.suffix == ".encrypted" else UNREADABLE.get(path.name)


def test_every_real_file_survives_or_says_why_not(corpora: Path, tmp_path: Path) -> None:
    suffixes = (".parquet", ".parq", ".encrypted")
    files = sorted(
        path for path in (corpora / "parquet").rglob("*") if path.is_file() and path.suffix in suffixes
    )
    files += [path for path in (corpora / "parquet").rglob("_metadata") if path.is_file()]
    assert len(files) > 150
    if int(pa.__version__.split(".")[0]) < 20:
        files = [path for path in files if path.name not in NEEDS_PYARROW_20]
    for index, path in enumerate(files):
        out = tmp_path / f"{index}.parquet"
        problem = problem_of(path)
        if problem is not None:
            with pytest.raises(InputError, match=problem):
                write_all(open_source(path), out)
            continue
        source = open_source(path)
        write_all(source, out)
        before, after = load(path), load(out)
        assert source.inputs[0].record_count == before.num_rows == after.num_rows, path
        if path.name in INDICES:
            assert after.column_names == [*before.column_names, INDICES[path.name]]
            after = after.select(before.column_names)
        assert after.schema.equals(before.schema), path
        assert holds_the_same(before, after), path
