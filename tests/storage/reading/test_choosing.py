"""Which files of a folder or prefix are inputs: data that would be left out, and splits of a data set, are refused."""

import gzip
import json
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from recshuf.errors import InputError
from recshuf.formats.folders import NameRules
from recshuf.storage import StorageOptions
from recshuf.storage.reading import InputLister
from recshuf.storage.reading.objects import Stores
from tests.support.objects.object_server import Bucket

LINES = b'{"a": 1}\n{"a": 2}\n'
ONE = b'{"a": 1}\n'
DOCUMENT = json.dumps({"features": {"a": "int64"}}, indent=2).encode()
ARRAY = json.dumps([{"a": 1}, {"a": 2}], indent=1).encode()
Files = dict[str, bytes]


@pytest.fixture(params=["folder", "prefix"])
def put(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Mapping[str, bytes]], str]:
    """Return a function that makes files in a folder, or objects below a prefix, and returns its name as a shell has it."""

    def put_files(files: Mapping[str, bytes]) -> str:
        for name, content in files.items():
            path = tmp_path / "in" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return shlex.quote(str(tmp_path / "in"))

    def put_objects(files: Mapping[str, bytes]) -> str:
        bucket: Bucket = request.getfixturevalue("bucket")
        for name, content in files.items():
            bucket.put(f"in/{name}", content)
        return f"{bucket.url}/in"

    return put_files if request.param == "folder" else put_objects


def expand(*patterns: str, format_name: str | None = None, said: list[str] | None = None) -> list[str]:
    """Return the last parts of the names of the inputs that a shell would get."""
    told: list[str] = [] if said is None else said
    lister = InputLister(NameRules(format_name), told.append, Stores(StorageOptions(), 1 << 28, 2))
    files = lister.list_all([shlex.split(pattern)[0] for pattern in patterns])
    assert said is not None or not told
    return [re.sub(r".*/in/", "", file.name) for file in files]


SAVED = {
    "train/dataset_info.json": DOCUMENT,
    "train/state.json": json.dumps({"_data_files": [{"filename": "data.arrow"}]}, indent=2).encode(),
    "dataset_dict.json": ONE,
    "train/data.arrow": b"x",
}
"""Of it, a data set that was saved to disk, one file is data."""
CHOSEN: dict[str, tuple[Files, str | None, list[str]]] = {
    "JSON of lines": ({"train.json": LINES, "README.txt": b"x"}, None, ["train.json"]),
    "with JSONL": ({"train.json": LINES, "more.jsonl": ONE, "LICENSE": b"x"}, None, ["more.jsonl", "train.json"]),
    "JSON arrays": ({"a.json": ARRAY, "b.json": ARRAY}, None, ["a.json", "b.json"]),
    "by format": ({"a.json.gz": gzip.compress(LINES), "README.md": b"x"}, "jsonl", ["a.json.gz"]),
    "single records": ({"1.json": ONE, "2.json": ONE[:-1]}, None, ["1.json", "2.json"]),
    "JSON that describes": ({"a.jsonl": ONE, "dataset_info.json": DOCUMENT, "e.json": b""}, None, ["a.jsonl"]),
    "about a table": ({"a.parquet": b"x", "dataset_infos.json": ONE, "info.json": DOCUMENT}, None, ["a.parquet"]),
    "parts": ({"part-0": ONE, "part-1": ONE, "data.0": ONE}, "jsonl", ["data.0", "part-0", "part-1"]),
    "a pile store": ({"a.json": LINES, "s/sets/0.piles": b"x", "s/snapshot-000001.json": ARRAY}, None, ["a.json"]),
    "saved to disk": (SAVED, None, ["train/data.arrow"]),
    "saved to disk, by format": (SAVED, "arrow", ["train/data.arrow"]),
    "no data": (
        {"a.csv": b"a\n", "NOTICE.txt": b"x", "make.py": b"x", "SHA256SUMS": b"x", "done": b"", "x.bak": b""},
        None,
        ["a.csv"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CHOSEN)
def test_a_folder_gives_what_is_data_of_its_format(put: Callable[..., str], case: str) -> None:
    files, format_name, chosen = CHOSEN[case]
    assert expand(put(files), format_name=format_name) == chosen


LEFT_OUT: dict[str, tuple[Files, str | None, str]] = {
    "an array": ({"a.jsonl": ONE, "b.json": ARRAY}, None, "b.json"),
    "lists of objects": ({"a.jsonl": ONE, "b.json": b'{\n "x":\n ' + ARRAY + b"}"}, None, "b.json"),
    "one object": ({"a.jsonl": ONE, "b.json": ONE}, None, "b.json"),
    "one long object": ({"a.jsonl": ONE, "b.json": b'{"a": "%s"}' % (b"x" * 70_000)}, None, "b.json"),
    "another suffix": ({"d's[0]/a.csv": b"a\n", "d's[0]/b.dat": b"a\n"}, None, "b.dat"),
    "another suffix, by format": ({"a.jsonl": ONE, "b.dat": ONE}, "jsonl", "b.dat"),
    "no suffix": ({"d/a.txt": ONE, "e/f/a.txt": ONE, "e/part-0": ONE}, None, "part-0"),
    "in a folder beside": ({"a.jsonl": ONE, "b/c.dat": ONE}, None, "c.dat"),
    "another kind": ({"a.parquet": b"x", "b.msgpack": b"x"}, None, "b.msgpack"),
}


@pytest.mark.parametrize("case", LEFT_OUT)
def test_data_that_would_be_left_out_is_refused_with_a_pattern(put: Callable[..., str], case: str) -> None:
    files, format_name, name = LEFT_OUT[case]
    with pytest.raises(InputError, match=r"would be left out: .+; choose with a pattern, as .") as caught:
        expand(put(files), format_name=format_name)
    assert caught.value.problem.endswith(name)
    pattern = str(caught.value.remedy).partition(" as ")[2]
    assert sorted(expand(pattern)) == sorted(one for one in files if not one.endswith(name))


NONE: dict[str, tuple[Files, str | None, str]] = {
    "documents": ({"README.txt": b"x"}, "jsonl", "holds no jsonl files, only .*README.txt; "),
    "others": (
        dict.fromkeys(["a.dat", "b.dat", "c.dat", "d.dat"], ONE),
        None,
        r"only .*a.dat, .*b.dat, .*c.dat and 1 more; .* as '?.*/in/\*'?$",
    ),
    "of another format": ({"a.csv": ONE, "b.json": LINES}, "parquet", "no parquet files, only .*a.csv"),
    "saved to disk": (SAVED, "parquet", r"holds no parquet files, only .+/data.arrow"),
    "a JSON array": ({"a.json": ARRAY}, "jsonl", "holds no jsonl files, only .*a.json"),
}


@pytest.mark.parametrize("case", NONE)
def test_a_folder_without_inputs_is_refused(put: Callable[..., str], case: str) -> None:
    files, format_name, problem = NONE[case]
    with pytest.raises(InputError, match=problem) as caught:
        expand(put(files), format_name=format_name)
    assert ("give another --format" in str(caught.value.remedy)) == (format_name is not None)


SPLITS: dict[str, tuple[list[str], dict[str, list[str]]]] = {
    "Hugging Face": (
        ["train-00000-of-00002.jsonl", "train-00001-of-00002.jsonl", "validation-00000-of-00001.jsonl"],
        {"train": ["train-00000-of-00002.jsonl", "train-00001-of-00002.jsonl"], "validation": ["validation-00000-of-00001.jsonl"]},
    ),
    "of another name": (
        ["data/test-00000-of-00001.jsonl", "data/extra-000-of-001.jsonl"],
        {"test": ["data/test-00000-of-00001.jsonl"], "extra": ["data/extra-000-of-001.jsonl"]},
    ),
    "folders": (
        ["en/train/a.jsonl", "en/train/b/c.jsonl", "en/dev/a.jsonl", "en/eval/a.jsonl"],
        {"train": ["en/train/a.jsonl", "en/train/b/c.jsonl"], "dev": ["en/dev/a.jsonl"], "eval": ["en/eval/a.jsonl"]},
    ),
    "behind a name": (
        ["mnist_Train1.jsonl", "mnist_Train2.jsonl", "mnist_Test.jsonl", "more.jsonl"],
        {"Train": ["mnist_Train1.jsonl", "mnist_Train2.jsonl"], "Test": ["mnist_Test.jsonl"]},
    ),
    "in folders of languages": (
        ["de/val.jsonl", "de/training.jsonl", "fr/val.jsonl", "fr/training.jsonl"],
        {"val": ["de/val.jsonl", "fr/val.jsonl"], "training": ["de/training.jsonl", "fr/training.jsonl"]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SPLITS)
def test_splits_of_a_folder_are_refused_and_the_message_chooses_one(
    put: Callable[..., str], case: str
) -> None:
    names, splits = SPLITS[case]
    folder = put(dict.fromkeys(names, ONE) | {"README.md": b"train, test"})
    with pytest.raises(InputError, match=r"holds the splits .* of a data set") as caught:
        expand(folder)
    assert {
        word: f"{word} ({len(found)} file" in str(caught.value) for word, found in splits.items()
    } == dict.fromkeys(splits, True)
    remedy = str(caught.value.remedy)
    patterns = re.findall(r"'[^']*/in/[^']+'|\S*/in/[^\s,;]+", remedy.partition("; ")[0])
    every = remedy.rpartition("give ")[2]
    chosen = [sorted(expand(pattern)) for pattern in patterns]
    assert sorted(chosen) == sorted(sorted(found) for found in splits.values())
    said: list[str] = []
    assert sorted(expand(every, said=said)) == sorted(names)
    assert expand(*patterns, said=said)
    assert [line.partition("of a data set")[2] for line in said] == [", and one output mixes them"] * 2


@pytest.mark.parametrize(
    "names",
    [
        ["train-0.jsonl", "train-1.jsonl", "more.jsonl"],
        ["crash-test-1.jsonl", "my-dev-server.jsonl"],
        ["split=train/a.jsonl", "split=test/a.jsonl"],
        ["latest.jsonl", "trains.jsonl", "developers.jsonl"],
        ["a-00000-of-00002.jsonl", "b-00000-of-00002.jsonl"],
        ["crash-test.jsonl", "a-00000-of-00002.jsonl", "b-00000-of-00002.jsonl"],
    ],
)
def test_other_names_are_no_splits(put: Callable[..., str], names: list[str]) -> None:
    assert sorted(expand(put(dict.fromkeys(names, ONE)))) == sorted(names)
