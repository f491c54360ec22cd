"""Outputs in place of inputs and among them; a run that cannot write leaves nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import recshuf
from recshuf.errors import OutputError
from tests.support.numbered_files import FORMATS, SUFFIXES, make_inputs, order_of, read_ids
from tests.support.output_trees import list_shards, list_tree


def test_an_output_in_place_of_the_input(tmp_path: Path):
    for name in FORMATS:
        (path,) = make_inputs(tmp_path / name, name, [800])
        with pytest.raises(OutputError, match="overwrite=True"):
            recshuf.shuffle(path, path, seed=1)
        assert read_ids(path) == list(range(800))
        recshuf.shuffle(path, path, seed=1, overwrite=True)
        assert read_ids(path) == order_of([800], 1)
        assert os.listdir(tmp_path / name) == [path.name]


@pytest.mark.parametrize("name", ["text", "parquet", "hdf5"])
def test_the_shards_of_a_run_can_be_shuffled_in_place(tmp_path: Path, name: str):
    inputs = make_inputs(tmp_path / "in", name, [300, 300])
    recshuf.shuffle(inputs, f"{tmp_path}/out/", seed=1)
    first = [number for shard in list_shards(tmp_path / "out") for number in read_ids(shard)]
    recshuf.shuffle(tmp_path / "out", f"{tmp_path}/out/", seed=2, overwrite=True)
    second = [number for shard in list_shards(tmp_path / "out") for number in read_ids(shard)]
    assert second == [first[place] for place in order_of([300, 300], 2)]
    assert len(os.listdir(tmp_path / "out")) == 2


def test_a_missing_temp_dir_is_refused(tmp_path: Path):
    (path,) = make_inputs(tmp_path, "text", [10])
    with pytest.raises(OutputError, match="temp_dir"):
        recshuf.shuffle(path, tmp_path / "out.txt", temp_dir=tmp_path / "none")
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("name", FORMATS)
def test_nothing_is_left_when_writing_fails(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch):
    """The folder of the output is full: simulated by the rename that puts it in place."""
    inputs = make_inputs(tmp_path / "in", name, [100])
    before = list_tree(tmp_path)

    def refuse(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(OutputError, match="no space left"):
        recshuf.shuffle(inputs, f"{tmp_path}/out{SUFFIXES[name]}", seed=0)
    assert list_tree(tmp_path) == before


def test_an_output_inside_a_folder_of_inputs_is_not_read_back(tmp_path: Path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("1\n2\n3\n")
    for _ in range(3):
        report = recshuf.shuffle(tmp_path / "in", tmp_path / "in" / "out.txt", overwrite=True)
        assert report.records == 3
