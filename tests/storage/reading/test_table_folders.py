"""Folders of tables are refused: their files also hold rows that the table has removed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from recshuf.errors import InputError
from recshuf.formats import NameRules
from recshuf.storage.reading.local_listing import expand_inputs

if TYPE_CHECKING:
    from pathlib import Path

MARKERS = {
    "Delta Lake": "_delta_log/00000000000000000000.json",
    "Iceberg": "metadata/v1.metadata.json",
    "Hudi": ".hoodie/hoodie.properties",
}
WAYS = ["", "data", "data/year=2024", "*", "data/*/*.parquet", "**/*.parquet", "data/year=*"]


def names(*patterns: str) -> list[str]:
    return [file.name for file in expand_inputs(patterns, NameRules(None), pytest.fail)]


def make_table(folder: Path, marker: str) -> Path:
    for name in (marker, "data/year=2024/0.parquet"):
        path = folder / "table" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(b"")
    return folder / "table"


@pytest.mark.parametrize("kind", MARKERS)
def test_the_folder_of_a_table_is_refused_however_it_is_named(tmp_path: Path, kind: str):
    table = make_table(tmp_path, MARKERS[kind])
    for way in WAYS:
        with pytest.raises(InputError, match=rf"has files of the {kind} table '{table}'.*removed; export"):
            names(f"{table}/{way}")
    for pattern in (tmp_path, f"{tmp_path}/*"):
        with pytest.raises(InputError, match=f"has files of the {kind} table"):
            names(str(pattern))


def test_files_of_a_table_may_be_named(tmp_path: Path):
    file = f"{make_table(tmp_path, MARKERS['Delta Lake'])}/data/year=2024/0.parquet"
    assert names(file) == [file]


def test_a_folder_called_metadata_is_no_table(tmp_path: Path):
    for name in ("metadata/about.json", "data/0.parquet", "metadata.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert names(f"{tmp_path}/data") == [f"{tmp_path}/data/0.parquet"]
