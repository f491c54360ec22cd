"""Filters that change values are undone once, and never applied again."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from recshuf.output.manifest import manifest_path
from tests.conftest import Run
from tests.support.formats.hdf5_tools import list_filters

plugins = pytest.importorskip("hdf5plugin")

ROWS = 200
LOSSLESS = ("bshuf", "blosc", "blosc2", "bzip2", "lz4", "zstd")
OPTIONS: dict[str, list[Callable[[], Any]]] = {
    "zfp": [
        lambda: plugins.Zfp(rate=8),
        lambda: plugins.Zfp(accuracy=0.01),
        lambda: plugins.Zfp(reversible=True),
    ],
    "sz": [lambda: plugins.SZ(absolute=0.01)],
    "sz3": [lambda: plugins.SZ3(absolute=0.01)],
    "sperr": [lambda: plugins.Sperr(rate=8)],
    "blosc2": [plugins.Blosc2, lambda: plugins.Blosc2(filters=plugins.Blosc2.TRUNC_PREC)],
}
CUTTING = OPTIONS["blosc2"][1]
DTYPES = {"fcidecomp": "u1", "htj2k": "u1", "sz": "<f8", "sperr": "<f8", "bzip2": ">f4"}
"""SZ and SPERR end the process when they are to write integers."""
CASES = {
    f"{kind.filter_name}-{index}": (kind.filter_name, make)
    for kind in plugins.get_filters()
    for index, make in enumerate(OPTIONS.get(kind.filter_name, [kind]))
}


def make_values(dtype: str) -> np.ndarray:
    values = np.random.default_rng(5).normal(size=(ROWS, 8, 8)).cumsum(axis=2) * 20 + 100
    return values.astype(dtype)


def test_rows_are_kept_as_decoded_and_so_are_filters_known_to_be_lossless(tmp_path: Path, call: Run) -> None:
    """What replaces another filter is said on the terminal and in the manifest, unless a compression is asked for."""
    with h5py.File(tmp_path / "in.h5", "w") as file:
        for case, (name, make) in CASES.items():
            values = make_values(DTYPES.get(name, "<f4"))
            flat = name in ("fcidecomp", "htj2k")
            shape, chunks = ((ROWS, 64), (20, 64)) if flat else (values.shape, (20, 8, 8))
            file.create_dataset(case, data=values.reshape(shape), chunks=chunks, **make())
    done = call(tmp_path / "in.h5", "-o", f"{tmp_path}/out/", "--shards", "1")
    notes = json.loads(manifest_path(tmp_path / "out").read_text())["notes"]
    [path] = (tmp_path / "out").iterdir()
    with h5py.File(tmp_path / "in.h5") as before, h5py.File(path) as after:
        for case, (name, make) in CASES.items():
            assert after[case].dtype == before[case].dtype, case
            assert sorted(map(bytes, after[case][:])) == sorted(map(bytes, before[case][:])), case
            own, kept = ([code for code, *_ in list_filters(file[case])] for file in (before, after))
            is_lossless = name in LOSSLESS and make is not CUTTING
            assert kept == (own if is_lossless else [h5py.h5z.FILTER_DEFLATE]), case
            said = f"in.h5: dataset '{case}': gzip replaces the filter "
            assert (said.encode() in done.stderr) == (not is_lossless), case
            assert [said in note for note in notes].count(True) == (not is_lossless), case
    assert (
        b"dataset 'zfp-0': gzip replaces the filter zfp, which may change values when it is applied again"
        in done.stderr
    )
    done = call(tmp_path / "in.h5", "-o", f"{tmp_path}/zstd/", "--compression", "zstd")
    assert b"replaces" not in done.stderr
    assert "notes" not in json.loads(manifest_path(tmp_path / "zstd").read_text())
