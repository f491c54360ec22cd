"""Filters that may lose precision, or that cannot be set up again, are replaced, and said."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest

import recshuf
from recshuf.cli.main import main
from recshuf.output.manifest import manifest_path

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

hdf5plugin = pytest.importorskip("hdf5plugin")

SMOOTH = np.cumsum(np.random.default_rng(1).normal(size=(200, 8, 8)), 0).astype("f4")
BYTES = np.random.default_rng(2).integers(0, 200, (200, 16, 16), np.uint8)
LOSSLESS: dict[str, Callable[[], Any]] = {
    "Bitshuffle": lambda: hdf5plugin.Bitshuffle(cname="zstd"),
    "Blosc": lambda: hdf5plugin.Blosc(cname="lz4"),
    "Blosc2": hdf5plugin.Blosc2,
    "BZip2": hdf5plugin.BZip2,
    "LZ4": hdf5plugin.LZ4,
    "Zstd": hdf5plugin.Zstd,
}
REPLACED: dict[str, tuple[np.ndarray, Callable[[], Any]]] = {
    "Blosc2 that cuts": (SMOOTH, lambda: hdf5plugin.Blosc2(filters=hdf5plugin.Blosc2.TRUNC_PREC)),
    "FciDecomp": (BYTES, hdf5plugin.FciDecomp),
    "Htj2k": (BYTES, hdf5plugin.Htj2k),
    "SZ": (SMOOTH, lambda: hdf5plugin.SZ(absolute=0.01)),
    "SZ3": (SMOOTH, lambda: hdf5plugin.SZ3(absolute=0.01)),
    "Sperr": (SMOOTH, lambda: hdf5plugin.Sperr(rate=8)),
    "Zfp rate": (SMOOTH, lambda: hdf5plugin.Zfp(rate=8)),
    "Zfp accuracy": (SMOOTH, lambda: hdf5plugin.Zfp(accuracy=0.01)),
    "Zfp big-endian": (SMOOTH.astype(">f4"), lambda: hdf5plugin.Zfp(rate=8)),
    "Zfp reversible": (SMOOTH, lambda: hdf5plugin.Zfp(reversible=True)),
    "scale-offset big-endian": (SMOOTH.astype(">f4"), lambda: {"scaleoffset": 2}),
    "scale-offset": (SMOOTH, lambda: {"scaleoffset": 2}),
}


def write_source(path: Path, values: np.ndarray, options: Any, **more: Any) -> np.ndarray:
    """Write a dataset ``x``, one of ids, and return the values of ``x`` as they are decoded."""
    chunk_rows = 1 if values.dtype == np.uint8 else 10
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=values, chunks=(chunk_rows, *values.shape[1:]), **options, **more)
        file["id"] = np.arange(len(values))
    with h5py.File(path) as file:
        decoded: np.ndarray = file["x"][()]
    return decoded


def check_rows(out: Path, decoded: np.ndarray) -> None:
    with h5py.File(out) as file:
        ids = file["id"][()]
        assert sorted(ids) == list(range(len(decoded)))
        assert file["x"].dtype == decoded.dtype
        assert file["x"][()].tobytes() == decoded[ids].tobytes()


@pytest.mark.parametrize("name", REPLACED)
def test_a_filter_that_may_lose_is_replaced_and_said(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    values, make = REPLACED[name]
    decoded = write_source(tmp_path / "in.h5", values, make())
    capfd.readouterr()
    command = ["recshuf", str(tmp_path / "in.h5"), "-o", f"{tmp_path / 'out'}/", "--seed", "1", "--verify"]
    monkeypatch.setattr("sys.argv", command)
    assert main() == 0
    (out,) = (tmp_path / "out").iterdir()
    check_rows(out, decoded)
    (change,) = json.loads(manifest_path(tmp_path / "out").read_text())["changes"]
    assert change.startswith("dataset 'x': gzip replaces the filter ")
    assert f"recshuf: warning: {change}" in capfd.readouterr().err
    with h5py.File(out) as file:
        assert file["x"].compression == "gzip"


@pytest.mark.parametrize("name", LOSSLESS)
def test_a_lossless_filter_stays(tmp_path: Path, name: str) -> None:
    decoded = write_source(tmp_path / "in.h5", SMOOTH, LOSSLESS[name]())
    recshuf.shuffle(tmp_path / "in.h5", tmp_path / "out", shards=1, seed=1)
    (out,) = (tmp_path / "out").iterdir()
    check_rows(out, decoded)
    assert "changes" not in json.loads(manifest_path(tmp_path / "out").read_text())
    with h5py.File(tmp_path / "in.h5") as before, h5py.File(out) as after:
        codes = [each["x"].id.get_create_plist().get_filter(0)[0] for each in (before, after)]
    assert codes[0] == codes[1]


def test_every_filter_of_the_plugins_is_tested() -> None:
    tested = {name.split()[0].lower() for name in (*LOSSLESS, *REPLACED)} - {"scale-offset"}
    assert {"bitshuffle" if name == "bshuf" else name for name in hdf5plugin.FILTERS} == tested


def test_a_chosen_compression_needs_no_word(tmp_path: Path) -> None:
    decoded = write_source(tmp_path / "in.h5", SMOOTH, hdf5plugin.Zfp(rate=8))
    recshuf.shuffle(tmp_path / "in.h5", tmp_path / "out", shards=1, seed=1, compression="lzf")
    (out,) = (tmp_path / "out").iterdir()
    check_rows(out, decoded)
    assert "changes" not in json.loads(manifest_path(tmp_path / "out").read_text())
