"""Inputs whose attributes and keys differ: what decides the meaning of values is refused, and what the output says is that of all."""

import json
import re
import warnings
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import InputError, RecshufWarning

Says = dict[str, Any]
"""Attributes of the column ``label``, by name."""


def write_hdf5(path: Path, says: Says, rows: int = 4) -> Path:
    with h5py.File(path, "w") as file:
        file["id"] = np.arange(rows)
        file["label"] = np.arange(rows) % 2
        file["label"].attrs.update(says)
    return path


def write_parquet(path: Path, says: Says, rows: int = 4) -> Path:
    # Keys hold text, and others write it in more than one way.
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in says.items()}
    label = pa.field("label", pa.int64(), metadata=texts)
    schema = pa.schema([("id", pa.int64()), label])
    pq.write_table(pa.table([range(rows), [row % 2 for row in range(rows)]], schema=schema), path)
    return path


def read_hdf5(path: Path) -> Says:
    with h5py.File(path) as file:
        found = file["label"].attrs.items()
        return {key: value.tolist() if hasattr(value, "tolist") else value for key, value in found}


def read_parquet(path: Path) -> Says:
    found = pq.read_schema(path).field("label").metadata or {}
    texts = {key.decode(): value.decode() for key, value in found.items()}
    return {key: json.loads(text) if text[0] in '["{-0123456789' else text for key, text in texts.items()}


WRITERS: dict[str, tuple[Callable[..., Path], Callable[[Path], Says]]] = {
    ".h5": (write_hdf5, read_hdf5),
    ".parquet": (write_parquet, read_parquet),
}


class Files:
    """Inputs of one format, and the outputs of runs on them."""

    def __init__(self, folder: Path, suffix: str) -> None:
        self.folder = folder
        self.suffix = suffix
        self.write, self.read = WRITERS[suffix]
        self.output = folder / f"out{suffix}"
        self.warnings: tuple[str, ...] = ()
        """Of the last run."""

    def make(self, *says: Says, rows: int = 4) -> list[Path]:
        paths = [self.folder / f"{index}{self.suffix}" for index in range(len(says))]
        return [self.write(path, one, rows) for path, one in zip(paths, says, strict=True)]

    def shuffle(self, *paths: Path, **options: Any) -> Says:
        """Return what an output says that is compared with its inputs."""
        report = recshuf.shuffle(paths, self.output, seed=1, overwrite=True, verify=True, **options)
        self.warnings = report.warnings
        return self.read(self.output)


@pytest.fixture(params=WRITERS)
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    return Files(tmp_path, request.param)


CONTRADICTIONS = {
    "scale_factor": (0.01, 0.02),
    "add_offset": (0.0, 10.0),
    "units": ("K", "degC"),
    "calendar": ("standard", "noleap"),
    "_FillValue": (-1, -999),
    "missing_value": (-1, None),
    "flag_values": ([0, 1], [1, 0]),
    "flag_meanings": ("wet dry", "dry wet"),
    "valid_range": ([0, 1], [0, 2]),
    "sampling_rate": (16000, 32000),
    "SampleRate": (16000, None),
    "fs": (100, 200),
    "time_units": ("days since 1970-01-01", "days since 2000-01-01"),
    "quantization": ('{"scale": 2}', '{"scale": 3}'),
    "zero_point": (0, 128),
    "classes": (["cat", "dog"], ["dog", "cat"]),
    "label_names": (["cat"], None),
    "categories": ("a,b", "a,c,d"),
    "id2label": ('{"0": "a", "1": "b"}', '{"1": "c", "0": "a"}'),
}


def test_what_decides_the_meaning_of_values_must_agree(files: Files) -> None:
    """The error names input, column, attribute and both values; its remedy takes the first, whatever comes first."""
    first = [*WRITERS].index(files.suffix)
    for name, values in islice(CONTRADICTIONS.items(), first, None, 2):
        sides = [{} if value is None else {name: value} for value in values]
        for says in (sides, sides[::-1]):
            paths = files.make(*says)
            with pytest.raises(InputError) as caught:
                files.shuffle(*paths)
            message = str(caught.value)
            assert message.startswith(f"{paths[1]}: ")
            assert re.search(
                rf"'label', (attribute|key) {name!r}: is .* here and .* in {paths[0]}; ", message
            )
        with pytest.warns(RecshufWarning, match=name):
            assert files.shuffle(*paths, first_metadata=True) == files.read(paths[0])


def test_verify_sees_what_a_run_refuses(files: Files) -> None:
    paths = files.make({"units": "m"}, {"units": "km"})
    with pytest.warns(RecshufWarning, match="'units'"):
        files.shuffle(*paths, first_metadata=True)
    with pytest.raises(InputError, match="'units'"):
        recshuf.verify(paths, files.output)
    with pytest.warns(RecshufWarning, match="'units'"):
        assert recshuf.verify(paths, files.output, first_metadata=True)
    with pytest.warns(RecshufWarning, match="'units'"):
        found = recshuf.verify(paths[::-1], files.output, first_metadata=True)
    assert any('\'units\', is "km" by the inputs and "m" in the output' in one for one in found.differences)


def test_all_that_contradicts_is_named_at_once(files: Files) -> None:
    paths = files.make({"units": "m", "fs": 1}, {"units": "km", "fs": 2})
    with pytest.raises(InputError, match=r"'units': is \"km\" here and \"m\" in .*'fs', is 2 here and 1 in "):
        files.shuffle(*paths)


def test_what_a_third_input_says_is_compared_with_the_longest_list(files: Files) -> None:
    paths = files.make({"classes": ["a"]}, {"classes": ["a", "b"]}, {"classes": ["a", "c"]})
    with pytest.raises(InputError, match=rf"{paths[2]}: .* here and \[\"a\", \"b\"\] in {paths[1]}; "):
        files.shuffle(*paths)


LISTS = {
    "list": ({"classes": ["a", "b"]}, {"classes": ["a", "b", "c"]}),
    "one": ({"classes": ["a, b"]}, {"classes": ["a, b", "c"]}),
    "texts": ({"label_names": "a,b"}, {"label_names": "a,b,c"}),
    "json": ({"vocab": '{"a": 0}'}, {"vocab": '{"b": 1, "a": 0}'}),
    "flags": (
        {"flag_values": [0, 1], "flag_meanings": "a b"},
        {"flag_values": [0, 1, 2], "flag_meanings": "a b c"},
    ),
}


@pytest.mark.parametrize(
    ("files", "kind"),
    [(".h5", "list"), (".parquet", "one"), (".h5", "texts"), (".parquet", "json"), (".h5", "flags")],
    indirect=["files"],
)
def test_of_lists_of_labels_the_longer_one_is_taken(files: Files, kind: str) -> None:
    """In whatever order the inputs come, and through a store; nothing is said, as nothing is lost."""
    shorter, longer = LISTS[kind]
    for says in ([shorter, longer], [longer, shorter], [shorter, longer, shorter]):
        paths = files.make(*says)
        expected = files.read(paths[says.index(longer)])
        assert files.shuffle(*paths) == expected
        assert not files.warnings
    recshuf.scatter(paths, files.folder / "store")
    recshuf.gather(files.folder / "store", files.output, overwrite=True, verify=True)
    assert files.read(files.output) == expected


def test_what_readers_take_for_granted_is_no_difference(files: Files) -> None:
    paths = files.make(
        {"scale_factor": 1, "add_offset": 0.0, "calendar": "gregorian"}, {"calendar": "standard"}
    )
    assert files.shuffle(*paths)["scale_factor"] == 1
    assert files.shuffle(*paths[::-1]) == {"calendar": "standard"}
    assert not files.warnings


def test_other_differences_are_said_once_and_natural_ones_never(files: Files) -> None:
    paths = files.make(
        {"comment": "first", "place": "A", "history": "x", "date_created": "1", "title": "t", "n_rows": 4},
        {"comment": "other", "history": "y", "date_created": "2", "title": "u", "n_rows": 5},
        {"comment": "third", "place": "A", "history": "z", "date_created": "3", "n_rows": 6},
    )
    said = files.shuffle(*paths)
    assert (said["comment"], said["place"]) == ("first", "A")
    (message,) = files.warnings
    assert f'\'comment\', is "first", in {paths[1]} and 1 more "other"' in message
    assert f"'place', is \"A\", in {paths[1]} absent" in message
    assert not re.search("history|date_created|title|n_rows", message)


def test_an_input_without_records_has_no_say(files: Files) -> None:
    first = files.make({"units": "m"})
    empty = files.write(files.folder / f"empty{files.suffix}", {"units": "km"}, 0)
    assert files.shuffle(*first, empty) == {"units": "m"}
    assert not files.warnings


def test_a_conversion_mixes_values_of_inputs_too(files: Files) -> None:
    to = ".jsonl" if files.suffix == ".h5" else ".h5"
    paths = files.make({"classes": ["a", "b"]}, {"classes": ["b", "a"]})
    with pytest.raises(InputError, match="'classes'"):
        recshuf.shuffle(paths, files.folder / f"converted{to}")
    with pytest.warns(RecshufWarning, match="'classes'"):
        recshuf.shuffle(paths, files.folder / f"converted{to}", first_metadata=True, verify=True)


@pytest.mark.parametrize(
    ("before", "shards"),
    [
        ({"units": "m"}, [{"units": "km"}] * 2),
        ({"units": "m"}, [{"units": "m"}, {"units": "km"}]),
        ({"classes": ["a", "b"]}, [{}] * 2),
        ({}, [{"scale_factor": 2}] * 2),
        ({"comment": "x"}, [{"comment": "y"}] * 2),
    ],
    ids=["other", "one of two", "absent", "more", "no meaning"],
)
def test_verify_names_what_an_output_says_otherwise(files: Files, before: Says, shards: list[Says]) -> None:
    (path,) = files.make(before)
    folder = files.folder / "shards"
    folder.mkdir()
    for name, says in zip("ab", shards, strict=True):
        files.write(folder / f"{name}{files.suffix}", says)
    found = recshuf.verify([path, path], folder)
    assert (found.missing, found.extra) == (0, 0)
    assert any(repr(next(iter(before | shards[1]))) in one for one in found.differences)


def test_a_window_takes_what_reads_like_the_store(files: Files) -> None:
    says = [{"classes": classes} for classes in (["a", "b"], ["a"], ["a", "b", "c"], ["b", "a"])]
    first, shorter, longer, other = files.make(*says)
    recshuf.scatter(first, files.folder / "store")

    def append(path: Path, **options: Any) -> None:
        with recshuf.PileStore(files.folder / "store").update() as update:
            update.append(path, **options)

    append(shorter)
    for path, words in ((longer, "begin a new store"), (other, "'classes': is .* in .*store; so")):
        with pytest.raises(InputError, match=words):
            append(path)
        append(path, first_metadata=True)
    recshuf.gather(files.folder / "store", files.output, verify=True)
    assert files.read(files.output) == says[0]


def test_the_order_of_records_does_not_depend_on_metadata(files: Files) -> None:
    paths = files.make({"units": "m"}, {"units": "km"}, rows=1000)
    recshuf.shuffle(paths[:1], files.output, seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not recshuf.check(paths, column="id")
        assert recshuf.check(files.output, against=paths[:1])
        assert recshuf.picture(paths, column="id")
