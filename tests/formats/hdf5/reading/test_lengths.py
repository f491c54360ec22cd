"""Files whose datasets differ in length: what is proposed, and that it can be copied."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import h5py
import numpy as np
import pytest

import recshuf
from recshuf.errors import InputError
from tests.support.formats.hdf5_tools import open_source

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, **lengths: int | tuple[int, ...]) -> Path:
    with h5py.File(path, "w") as file:
        for name, shape in lengths.items():
            file[name] = np.zeros(shape, "u1")
    return path


def refusal(path: Path) -> str:
    with pytest.raises(InputError, match="differ in length") as caught:
        open_source(path)
    return str(caught.value)


def proposed(path: Path) -> tuple[str, ...]:
    """Return the proposed datasets as a shell would pass them, after trying them."""
    _, _, flag = refusal(path).rpartition(" --datasets ")
    names = tuple(shlex.split(flag)[0].split(","))
    open_source(path, datasets=names)
    return names


def test_the_table_of_pandas_is_proposed_not_its_indexes(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("tables")
    frame = pandas.DataFrame({"a": np.arange(1000), "b": np.arange(1000) / 2})
    frame.to_hdf(tmp_path / "in.h5", key="frame", format="table", data_columns=["a", "b"])
    assert proposed(tmp_path / "in.h5") == ("frame/table",)
    assert len(refusal(tmp_path / "in.h5")) < 400 + len(str(tmp_path))


def test_the_observations_of_h5ad_are_proposed_not_their_categories(tmp_path: Path) -> None:
    lengths = {"X": (30, 4), "obs/_index": 30, "obs/cell_type/codes": 30, "obs/cell_type/categories": 3}
    write(tmp_path / "in.h5ad.h5", **lengths, **{"var/_index": 4})
    assert proposed(tmp_path / "in.h5ad.h5") == ("X", "obs/_index", "obs/cell_type/codes")


def test_of_lengths_as_common_the_one_with_most_bytes_is_proposed(tmp_path: Path) -> None:
    assert proposed(write(tmp_path / "in.h5", a=9, b=(2, 50), c=0, d=0)) == ("b",)
    assert proposed(write(tmp_path / "in.h5", a=(9, 50), b=2)) == ("a",)


def test_more_than_three_names_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "in.h5", a=1, b=2, c=2, d=2, e=2, f=2)
    assert proposed(path) == ("b", "c", "d")
    assert refusal(path).endswith("--datasets b,c,d and 2 more")
    assert "a (1,), b (2,) and 4 more;" in refusal(path)


def test_names_are_quoted_for_the_shell(tmp_path: Path) -> None:
    assert proposed(write(tmp_path / "in.h5", **{"it's 1": 2, "$x": 2, "y": 3})) == ("$x", "it's 1")


@pytest.mark.parametrize("name", ["a,b", "a\nb"])
def test_names_that_the_command_line_cannot_give_are_not_proposed(tmp_path: Path, name: str) -> None:
    assert re.search("with --datasets$", refusal(write(tmp_path / "in.h5", **{name: (3, 9), "y": 2})))


def test_keep_others_is_proposed_for_hdf5_alone(tmp_path: Path) -> None:
    """Other formats refuse it; what else is proposed works for all."""
    given = write(tmp_path / "in.h5", a=9, b=9, c=2)
    assert "for HDF5 output, --keep-others" in refusal(given)
    recshuf.shuffle(given, tmp_path / "out.h5", keep_others=True)
    recshuf.shuffle(given, tmp_path / "out.parquet", datasets=list(proposed(given)))
