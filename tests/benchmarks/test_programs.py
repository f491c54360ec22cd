"""Each benchmark beside the suite runs at the size of a test, and has a row for all that it compares."""

import importlib
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import benchmarks
from benchmarks import formats, tables, wide
from benchmarks.loaders import LOADERS, has_module, make_data
from benchmarks.loading.rows import KINDS

pytestmark = pytest.mark.slow
SMALL = {
    "far_loaders": (["--rows", "4000", "--loader", "PileLoader"], ["| PileLoader | "]),
    "formats": (["--small"], [f"| {case}" for case in formats.CASES if case != "tfrecord"]),
    "gpu": (["--records", "600", "--seconds", "0.01", "--workers", "0", "--compute", "0"], ["| PileLoader | 0 | "]),
    "loader_costs": (["--size", "20MB", "--piles", "200", "--rounds", "1"], ["opening a store of 200 piles in two sets"]),
    "tables": (["--size", "20kB", "--rounds", "1"], ["numbers and text"]),
    "wide": (["--small"], [f"| {case} " for case in wide.CASES]),
}  # fmt: skip
WITHOUT_FOLDER = ("formats", "tables", "wide")


@pytest.mark.parametrize("name", SMALL)
def test_a_benchmark_has_a_row_for_all_that_it_compares(name: str, tmp_path: Path) -> None:
    if name == "gpu":
        pytest.importorskip("torch", reason="PyTorch is not installed")
    options, rows = SMALL[name]
    arguments = options if name in WITHOUT_FOLDER else [str(tmp_path), *options]
    done = CliRunner().invoke(importlib.import_module(f"benchmarks.{name}").main, arguments)
    assert done.exit_code == 0 or (name, done.exit_code) == ("loader_costs", 1), done.output  # it may be busy
    assert all(row in done.output for row in rows), done.output


def test_helps_are_readable_and_names_are_checked() -> None:
    programs = [
        path.stem
        for path in Path(benchmarks.__path__[0]).glob("*.py")
        if "@click.command" in path.read_text("utf-8") and (find_spec("ray") or path.stem != "scale")
    ]
    assert len(programs) > 8
    for name in programs:
        done = CliRunner().invoke(importlib.import_module(f"benchmarks.{name}").main, ["--help"])
        assert (done.exit_code, "PARSE" in done.output) == (0, False)
    for module in (formats, wide):
        assert "none: choose among " in CliRunner().invoke(module.main, ["none"]).output


def test_tables_need_no_other_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "has", lambda _: False)
    done = CliRunner().invoke(tables.main, ["--size", "20kB", "--rounds", "1"])
    assert "polars is not installed" in done.output


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_comes_once_from_each_loader(kind: str, tmp_path: Path) -> None:
    """From those whose libraries are installed: recshuf's own at least."""
    present = [loader for name, loader in LOADERS.items() if has_module(name)]
    make_data(tmp_path, kind, 1000, (loader.folder for loader in present))
    for loader in present:
        ids = np.concatenate([np.atleast_1d(batch["id"]) for batch in loader.load(tmp_path / loader.folder)])
        assert np.array_equal(np.sort(ids), np.arange(1000))
