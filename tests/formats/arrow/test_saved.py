"""Folders that `save_to_disk` of Hugging Face datasets wrote, as inputs and as outputs, in folders and in buckets."""

import json
from pathlib import Path
from typing import Any

import pytest

import recshuf
from recshuf.errors import InputError, OutputError, RecshufWarning
from recshuf.output.local.stage import WorkFolder
from tests.formats.arrow.test_reading import ROWS, make_table, read, write
from tests.support.effort import mostly_slow
from tests.support.formats.file_suite import refused
from tests.support.objects.object_outputs import STORES, AnyBucket, check_whole, shuffle, shuffle_locally
from tests.support.small_runs import read_files

NAMES = ("part-b.arrow", "part-a.arrow")


def save(folder: Path, **state: Any) -> Path:
    """Write a saved data set whose list of files is not in the order of names."""
    table, half = make_table(), ROWS // 2
    folder.mkdir(parents=True)
    for name, part in zip(NAMES, (table.slice(0, half), table.slice(half)), strict=True):
        write(folder / name, part, stream=True)
    content = {"_data_files": [{"filename": name} for name in NAMES], "_split": "train", "_fingerprint": "0"}
    (folder / "state.json").write_text(json.dumps(content | state, indent=2))
    info = {"description": "rows", "features": {"a": [{"x": {}}]}, "splits": {"train": {}}}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    return folder


def read_document(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text())
    assert isinstance(content, dict)
    return content


def test_files_are_read_in_the_order_of_the_list_and_caches_passed_over(tmp_path: Path) -> None:
    folder = save(tmp_path / "in")
    write(folder / "cache-1.arrow", make_table(), stream=True)
    with pytest.warns(RecshufWarning, match=r"passed over .+/cache-1\.arrow, which the list of its files"):
        recshuf.shuffle(folder, tmp_path / "out.arrow", seed=3)
    recshuf.shuffle([folder / name for name in NAMES], tmp_path / "named.arrow", seed=3)
    assert (tmp_path / "out.arrow").read_bytes() == (tmp_path / "named.arrow").read_bytes()


def test_an_output_folder_is_one_too_and_is_replaced_as_a_whole(tmp_path: Path) -> None:
    folder, out = save(tmp_path / "in", _format_columns=["id", "half"]), tmp_path / "out"
    recshuf.shuffle(folder, out, shards=5, seed=1)
    recshuf.shuffle(folder, out, shards=3, seed=1, columns="id,text", overwrite=True, verify=True)
    state = read_document(out / "state.json")
    names = [entry["filename"] for entry in state["_data_files"]]
    assert sorted(path.name for path in out.iterdir()) == ["dataset_info.json", *names, "state.json"]
    assert sorted(row for name in names for row in read(out / name)["id"].to_pylist()) == [*range(ROWS)]
    assert (state["_split"], state["_format_columns"]) == ("train", ["id"])
    assert read_document(out / "dataset_info.json") == {"description": "rows"}
    recshuf.shuffle(folder, tmp_path / "other", shards=3, seed=2, columns="id,text")
    assert read_document(tmp_path / "other/state.json")["_fingerprint"] != state["_fingerprint"]
    assert recshuf.verify(folder, out, columns="id,text")
    recshuf.shuffle(folder, tmp_path / "text", shards=1, columns="text")
    assert read_document(tmp_path / "text/state.json")["_format_columns"] is None
    recshuf.shuffle(out, f"{tmp_path}/again/", seed=1)
    assert read_document(tmp_path / "again/state.json").keys() == state.keys()


@pytest.mark.parametrize("part", ["", "a/"])
def test_caches_in_an_output_are_no_difference(tmp_path: Path, part: str) -> None:
    folder, out = save(tmp_path / "in"), tmp_path / "out"
    recshuf.shuffle(folder, out, shards=2, seed=1, split={"a": 0.5, "b": 0.5} if part else None)
    for name in ("cache-0123456789abcdef.arrow", "cache-0123456789abcdef_00000_of_00002.arrow"):
        write(out / part / name, make_table(), stream=True)
    assert recshuf.verify(folder, out)
    write(out / part / "more.arrow", make_table(), stream=True)
    assert recshuf.verify(folder, out).differences == (
        f"{out}/{part}more.arrow: is not named in the manifest",
    )
    recshuf.shuffle(folder / NAMES[0], tmp_path / "plain", shards=2, seed=1)
    write(tmp_path / "plain/cache-1.arrow", make_table(), stream=True)
    assert not recshuf.verify(folder / NAMES[0], tmp_path / "plain")


def test_what_folders_say_differently_is_left_out(tmp_path: Path) -> None:
    folders = [save(tmp_path / "a"), save(tmp_path / "b", _split="test")]
    recshuf.shuffle(folders, tmp_path / "out", shards=1)
    assert read_document(tmp_path / "out/state.json")["_split"] is None
    plain = write(tmp_path / "plain.arrow", make_table(), stream=True)
    recshuf.shuffle([folders[0], plain], tmp_path / "mixed", shards=1)
    assert [path.name for path in (tmp_path / "mixed").iterdir()] == ["shard-00000.arrow"]


@pytest.mark.parametrize("step", ["_place", "_place_manifest"])
def test_a_commit_that_died_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def die(_: object) -> None:
        raise OSError(5, "Input/output error")

    folder, out = save(tmp_path / "in"), tmp_path / "out"
    recshuf.shuffle(folder, tmp_path / "whole", seed=1, shards=2)
    with monkeypatch.context() as patch:
        patch.setattr(WorkFolder, step, die)
        refused(OutputError, "Input/output error", folder, out, seed=1, shards=2)
    recshuf.shuffle(folder, out, seed=1, shards=2, resume=True)
    assert read_files(out) == read_files(tmp_path / "whole")


@pytest.mark.parametrize("bucket", mostly_slow(STORES, STORES[0]), indirect=True)
def test_a_bucket_gets_the_same_objects(tmp_path: Path, bucket: AnyBucket) -> None:
    folder = save(tmp_path / "in")
    expected = shuffle_locally(folder, tmp_path / "local")
    shuffle(folder, f"{bucket.url}/data/out/", shards=7)
    shuffle(folder, f"{bucket.url}/data/out/", overwrite=True)
    check_whole(bucket, expected)
    assert "data/out/state.json" in expected


def test_a_choice_of_rows_and_missing_files_are_refused(tmp_path: Path) -> None:
    chosen = save(tmp_path / "chosen", _indices_data_files=[{"filename": "indices.arrow"}])
    cut = save(tmp_path / "cut")
    (cut / NAMES[1]).unlink()
    for folder, said in (
        (chosen, "lists a choice of the rows.*flatten_indices"),
        (cut, r"lists part-a\.arrow, and its folder has no such file"),
    ):
        refused(InputError, rf"state\.json: {said}", folder, tmp_path / "out.arrow")


def test_datasets_open_the_output_with_their_features(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    kinds = {"id": datasets.Value("int32"), "label": datasets.ClassLabel(names=["cat", "dog"])}
    rows = {"id": list(range(100)), "label": [row % 2 for row in range(100)]}
    made = datasets.Dataset.from_dict(rows, features=datasets.Features(kinds))
    made = made.with_format("numpy", columns=["id"])
    made.save_to_disk(tmp_path / "in", num_shards=3)
    recshuf.shuffle(tmp_path / "in", tmp_path / "out", shards=2)
    found = datasets.load_from_disk(tmp_path / "out")
    assert (found.features, found.format) == (made.features, made.format)
    assert sorted(found["id"]) == rows["id"]
    assert found.with_format(None)[:] != rows
    datasets.DatasetDict({"train": made, "odd": made}).save_to_disk(tmp_path / "splits")
    said = r"the splits odd \(1 file\) and train .*as .+/odd/'? or .+/train/"
    refused(InputError, said, tmp_path / "splits", tmp_path / "both")
