"""Inputs whose datasets differ in type: one type for a conversion, `--widen` for HDF5, and refusals that say how."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from h5py import h5d, h5s, h5t

import recshuf
from recshuf.errors import InputError, UsageError
from tests.support.formats.hdf5_tools import store

TEXT = h5py.string_dtype()
PAIR = np.dtype([("name", "S2"), ("value", "<f4"), ("at", ">i2", (2,))])
LONG_PAIR = np.dtype([("name", "S7"), ("value", "<f8"), ("at", "<i4", (2,))])


def lists(kind: str, *values: list[float]) -> np.ndarray:
    made = np.empty(len(values), h5py.vlen_dtype(kind))
    for index, each in enumerate(values):
        made[index] = np.array(each, kind)
    return made


def padded(text: list[bytes], width: int, padding: int) -> tuple[h5t.TypeID, np.ndarray]:
    tid = h5t.C_S1.copy()
    tid.set_size(width)
    tid.set_strpad(padding)
    fill = b" " if padding == h5t.STR_SPACEPAD else b"\0"
    return tid, np.frombuffer(b"".join(each.ljust(width, fill) for each in text), np.uint8)


def write(path: Path, values: Any) -> Path:
    if not isinstance(values, tuple):
        return store(path, {"v": values})
    tid, raw = values
    with h5py.File(path, "w") as file:
        dataset = h5d.create(file.id, b"v", tid, h5s.create_simple((raw.size // tid.get_size(),)))
        dataset.write(h5s.ALL, h5s.ALL, raw, tid)
    return path


CASES: dict[str, tuple[list[Any], str, list[Any]]] = {
    "text": ([np.array([b"a.jpg", b""]), np.array([b"long.jpg"])], "|S8", ["a.jpg", "", "long.jpg"]),
    "text, variable": (
        [np.array([b"ab", b""]), np.array(["\xe4\xf6", "long"], TEXT)],
        "object",
        ["ab", "", "\xe4\xf6", "long"],
    ),
    "text, UTF-8": (
        [np.array([b"ab"]), np.array(["\xe4".encode()], h5py.string_dtype("utf-8", 2))],
        "|S2",
        ["ab", "\xe4"],
    ),
    "text, padded": (
        [
            padded([b"ab", b"c d"], 4, h5t.STR_SPACEPAD),
            padded([b"full"], 4, h5t.STR_NULLTERM),
            np.array([b"longer"]),
        ],
        "|S6",
        ["ab", "c d", "full", "longer"],
    ),
    "floats": ([np.array([1.5, 0.1], "f4"), np.array([0.1])], "float64", [1.5, float(np.float32(0.1)), 0.1]),
    "half floats": ([np.array([1.5], "f2"), np.array([0.1], ">f4")], "float32", [1.5, 0.1]),
    "byte orders": ([np.array([1, -2], ">i4"), np.array([3], "<i4")], "int32", [1, -2, 3]),
    "big-endian": ([np.array([1, -2], ">i4"), np.array([3], ">i8")], ">i8", [1, -2, 3]),
    "signs": ([np.array([255], "u1"), np.array([-128], "i1")], "int16", [255, -128]),
    "wide signs": (
        [np.array([2**32 - 1], ">u4"), np.array([-1], "i2"), np.array([9], "u1")],
        "int64",
        [2**32 - 1, -1, 9],
    ),
    "integers and floats": ([np.array([7], "i2"), np.array([0.5], "f4")], "float32", [7.0, 0.5]),
    "wide integers and floats": (
        [np.array([2**31 - 1], "i4"), np.array([0.5], "f4")],
        "float64",
        [2.0**31 - 1, 0.5],
    ),
    "rows": ([np.ones((2, 3), "f4"), np.zeros((1, 3))], "float64", [[1.0] * 3] * 2 + [[0.0] * 3]),
    "lists": ([lists("f4", [1, 2], []), lists("f8", [0.1])], "object", [[1.0, 2.0], [], [0.1]]),
    "complex": (
        [np.array([1 + 2j], "c8"), np.array([0.1j])],
        "complex128",
        [{"real": 1.0, "imag": 2.0}, {"real": 0.0, "imag": 0.1}],
    ),
    "members": (
        [np.array([("ab", 0.5, (1, 2))], PAIR), np.array([("longer", 0.1, (3, 70_000))], LONG_PAIR)],
        str(np.dtype([("name", "S7"), ("value", "<f8"), ("at", "<i4", (2,))])),
        [{"name": "ab", "value": 0.5, "at": [1, 2]}, {"name": "longer", "value": 0.1, "at": [3, 70_000]}],
    ),
}


def read_lines(given: list[Path], out: Path) -> list[Any]:
    recshuf.shuffle(given, out, seed=1, verify=True)
    return sorted((json.loads(line)["v"] for line in out.read_text().splitlines()), key=repr)


@pytest.mark.parametrize("name", CASES)
def test_types_that_differ_become_one_that_holds_all(tmp_path: Path, name: str) -> None:
    inputs, kind, expected = CASES[name]
    given = [write(tmp_path / f"{index}.h5", each) for index, each in enumerate(inputs)]
    assert read_lines(given, tmp_path / "out.jsonl") == sorted(expected, key=repr)
    for order in (given[::-1], given):
        with pytest.raises(
            InputError, match=r"dataset 'v': .*, but .* in .*\.h5; give widen=True to make both"
        ):
            recshuf.shuffle(order, tmp_path / "new.h5", seed=1)
        recshuf.shuffle(order, tmp_path / "out.h5", seed=1, widen=True, verify=True, overwrite=True)
        with h5py.File(tmp_path / "out.h5") as file:
            assert str(file["v"].dtype) == kind
    assert read_lines([tmp_path / "out.h5"], tmp_path / "again.jsonl") == sorted(expected, key=repr)


REFUSED: dict[str, tuple[list[Any], dict[str, Any], str]] = {
    "long": ([np.array([3], "u8"), np.array([-1], "i8")], {}, "give widen=True to make both int64"),
    "too long": (
        [np.array([3, 2**63], "u8"), np.array([-1], "i8")],
        {"widen": True},
        "row 1 of dataset 'v': int64 does not hold 9223372036854775808 exactly",
    ),
    "inexact": (
        [np.array([1], "i8"), np.array([0.5])],
        {},
        "float64, but int64 in .*give widen=True to make both float64",
    ),
    "value": (
        [np.array([1, 2**53 + 1], "i8"), np.array([0.5])],
        {"widen": True},
        "row 1 of dataset 'v': float64 does not hold 9007199254740993 exactly; shuffle the files apart",
    ),
    "largest": (
        [np.array([[1, 2], [3, 2**63 - 1]], "i8"), np.ones((1, 2))],
        {"widen": True},
        "row 1 of dataset 'v': float64 does not hold 9223372036854775807 exactly",
    ),
    "NUL": (
        [np.array([b"ab", b"a\0b"]), np.array(["text"], TEXT)],
        {},
        "row 1 of dataset 'v': a NUL inside the text would end it",
    ),
    "text and numbers": (
        [np.array([b"1"]), np.array([1])],
        {"widen": True},
        "int64, but ASCII text of 1 bytes",
    ),
    "compounds of text": (
        [np.array([("x", 1)], [("a", TEXT), ("b", kind)]) for kind in ("f4", "f8")],
        {"widen": True},
        "write it with one type, or shuffle the files apart",
    ),
    "names": (
        [np.zeros(1, [("a", "f4")]), np.zeros(1, [("b", "f8")])],
        {"widen": True},
        "write it with one type, or shuffle the files apart",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_type_holds_is_refused(tmp_path: Path, name: str) -> None:
    inputs, options, said = REFUSED[name]
    given = [write(tmp_path / f"{index}.h5", each) for index, each in enumerate(inputs)]
    with pytest.raises(InputError, match=said):
        recshuf.shuffle(given, tmp_path / "out.jsonl", seed=1, **options)
    assert not (tmp_path / "out.jsonl").exists()


def test_exact_integers_are_widened(tmp_path: Path) -> None:
    given = [
        write(tmp_path / "0.h5", np.array([2**53, -3])),
        write(tmp_path / "1.h5", np.array([0.5], ">f8")),
    ]
    recshuf.shuffle(given, tmp_path / "out.h5", widen=True, verify=True)
    with h5py.File(tmp_path / "out.h5") as file:
        assert sorted(file["v"][:].tolist()) == [-3.0, 0.5, 2.0**53]


def test_files_that_list_their_datasets_in_another_order_keep_their_records(tmp_path: Path) -> None:
    names = ["a", "b", "c"]
    for index, order in enumerate((names, names[::-1], ["b", "c", "a"])):
        with h5py.File(tmp_path / f"{index}.h5", "w", track_order=True) as file:
            for name in order:
                file[name] = 1000 * names.index(name) + np.arange(50 * index, 50 * index + 50)
    recshuf.shuffle([tmp_path / f"{index}.h5" for index in range(3)], tmp_path / "out.h5", seed=1)
    with h5py.File(tmp_path / "out.h5") as file:
        assert sorted(file["a"][:].tolist()) == list(range(150))
        for one, other in pairwise(names):
            assert np.array_equal(file[one][:] + 1000, file[other][:])


@pytest.mark.parametrize("sets", [("ascii", "utf-8"), ("utf-8", "ascii"), ("ascii", "ascii")], ids=str)
def test_strings_of_ascii_and_utf8_become_utf8(tmp_path: Path, sets: tuple[str, str]) -> None:
    texts = [["a", "b"] if each == "ascii" else ["é", "c"] for each in sets]
    paths = [tmp_path / f"{number}.h5" for number in range(2)]
    for path, each, values in zip(paths, sets, texts, strict=True):
        with h5py.File(path, "w") as file:
            file.create_dataset("x", data=values, dtype=h5py.string_dtype(each))
    recshuf.shuffle(paths, tmp_path / "out.h5", seed=1, verify=True)
    with h5py.File(tmp_path / "out.h5") as file:
        assert h5py.check_string_dtype(file["x"].dtype).encoding == max(sets)
        assert sorted(file["x"].asstr()[:]) == sorted([*texts[0], *texts[1]])
    recshuf.scatter(paths[0], tmp_path / "store", seed=1)
    if sets[0] < sets[1]:
        with pytest.raises(UsageError, match=r"1\.h5: .*UTF-8 text of any length, and ASCII text of any"):
            recshuf.window(tmp_path / "store", append=paths[1])
    else:
        recshuf.window(tmp_path / "store", append=paths[1])


def test_strings_in_compounds_of_ascii_and_utf8_become_utf8(tmp_path: Path) -> None:
    """Only those that some input has in UTF-8."""
    texts = {"ascii": "plain", "utf-8": "caf\xe9"}
    paths = []
    for number, sets in enumerate((("ascii", "ascii", "utf-8"), ("ascii", "utf-8", "ascii"))):
        kinds = [h5py.string_dtype(each) for each in sets]
        inner = np.dtype([("n", "<i4"), ("deep", kinds[2])])
        kind = np.dtype([("row", "<i4"), ("same", kinds[0]), ("flat", kinds[1]), ("in", inner)])
        same, flat, deep = (texts[each].encode() for each in sets)
        values = np.array([(2 * number + row, same, flat, (7, deep)) for row in range(2)], kind)
        paths.append(store(tmp_path / f"{number}.h5", {"v": values, "w": np.ones(2, f"i{4 + 4 * number}")}))
    recshuf.shuffle(paths, tmp_path / "out.h5", seed=1, widen=True, verify=True)
    with h5py.File(tmp_path / "out.h5") as file:
        found = file["v"].dtype
        kinds = [found["same"], found["flat"], found["in"]["deep"]]
        assert [h5py.check_string_dtype(each).encoding for each in kinds] == ["ascii", "utf-8", "utf-8"]
        rows = sorted(file["v"][:].tolist())
    assert [row[2].decode() for row in rows] == ["plain", "plain", "caf\xe9", "caf\xe9"]
    assert [row[3][1].decode() for row in rows] == ["caf\xe9", "caf\xe9", "plain", "plain"]
    recshuf.scatter(paths[0], tmp_path / "store")
    with pytest.raises(UsageError, match=r"flat: UTF-8 text of any length.* flat: ASCII text of any"):
        recshuf.window(tmp_path / "store", append=paths[1])


def test_texts_that_differ_in_padding_are_told_apart(tmp_path: Path) -> None:
    ends = {h5t.STR_NULLTERM: " ended by NUL", h5t.STR_NULLPAD: "", h5t.STR_SPACEPAD: " padded with spaces"}
    for padding in ends:
        write(tmp_path / f"{padding}.h5", padded([b"ab"], 4, padding))
    for one, other in pairwise([*ends, next(iter(ends))]):
        expected = f"ASCII text of 4 bytes{ends[other]}, but ASCII text of 4 bytes{ends[one]} in "
        with pytest.raises(InputError, match=expected):
            recshuf.shuffle([tmp_path / f"{each}.h5" for each in (one, other)], tmp_path / "out.h5")
    other = tmp_path / "damaged.h5"
    other.write_bytes((tmp_path / f"{h5t.STR_NULLPAD}.h5").read_bytes().replace(b"\x13\1\0\0", b"\x13\7\0\0"))
    with pytest.raises(InputError, match="ASCII text of 4 bytes padded by no known rule, but ASCII text of "):
        recshuf.shuffle([tmp_path / f"{h5t.STR_NULLTERM}.h5", other], tmp_path / "out.h5")
