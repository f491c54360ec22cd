"""HDF5 files that are refused, each by name, or left out of shards, and disks that are full."""

import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from h5py import h5d, h5p, h5s, h5t

import recshuf
from recshuf.errors import InputError, UsageError
from recshuf.formats.hdf5 import FORMAT
from recshuf.interfaces import WriteOptions
from tests.support.formats.hdf5_tools import copy_through, open_source, store

Add = "Callable[[h5py.Group], None]"


def add_virtual_dataset(group: h5py.Group) -> None:
    layout = h5py.VirtualLayout((3,), "i4")
    layout[:] = h5py.VirtualSource("other.h5", "x", (3,))
    group.create_virtual_dataset("outside", layout)


def add_reference_attribute(group: h5py.Group) -> None:
    group.file["x"].attrs["outside"] = group.ref


def add_unknown_filter(group: h5py.Group) -> None:
    plist = h5p.create(h5p.DATASET_CREATE)
    plist.set_chunk((3,))
    plist.set_filter(305, 1, ())
    h5d.create(group.id, b"outside", h5t.NATIVE_INT8, h5s.create_simple((3,)), plist)


def add_scalar_elsewhere(group: h5py.Group) -> None:
    plist = h5p.create(h5p.DATASET_CREATE)
    plist.set_external(b"/etc/passwd", 0, 1)
    h5d.create(group.id, b"outside", h5t.NATIVE_UINT8, h5s.create(h5s.SCALAR), plist)


def adding(*shape: int, dtype: Any, **options: Any) -> Add:
    return lambda group: group.create_dataset("outside", shape, dtype, **options) and None


def setting(make: Callable[[h5py.File], Any]) -> Add:
    return lambda group: group.__setitem__("outside", make(group.file))


ADDITIONS: dict[str, tuple[Add, str]] = {
    "external storage": (adding(3, dtype="u1", external=[("/etc/passwd", 0, 3)]), "external storage"),
    "external scalar": (add_scalar_elsewhere, "external storage"),
    "external link": (setting(lambda _: h5py.ExternalLink("other.h5", "/x")), "external link"),
    "virtual dataset": (add_virtual_dataset, "virtual"),
    "references": (setting(lambda file: np.array([file.ref] * 3, h5py.ref_dtype)), "references"),
    "region references": (
        setting(lambda file: np.array([file["x"].regionref[:2]] * 3, h5py.regionref_dtype)),
        "references",
    ),
    "null dataspace": (setting(lambda _: h5py.Empty("f8")), "null dataspace"),
    "scalar reference": (adding(dtype=h5py.ref_dtype), "references"),
    "reference attribute": (add_reference_attribute, "references"),
    "nested strings": (
        adding(3, dtype=[("a", h5py.string_dtype(), (2,))]),
        "arrays of variable-length values",
    ),
    "nested arrays": (
        adding(3, dtype=h5py.vlen_dtype(h5py.vlen_dtype("i4"))),
        "variable-length values inside",
    ),
    "rows of strings": (adding(3, 2, dtype=h5py.string_dtype()), "variable-length values of shape"),
    "compound references": (adding(3, dtype=[("a", h5py.ref_dtype)]), "references"),
    "unknown filter": (add_unknown_filter, r"lzo.*recshuf\[hdf5plugin\]"),
}


def write_file(path: Path, name: str | None = None) -> Path:
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(3)
        group = file.create_group("group")
        if name is not None:
            ADDITIONS[name][0](group)
    return path


@pytest.mark.parametrize("name", ADDITIONS)
def test_what_cannot_be_moved_is_refused_by_name_or_left_out(tmp_path: Path, name: str) -> None:
    path = write_file(tmp_path / "in.h5", name)
    with pytest.raises(InputError, match=ADDITIONS[name][1]) as caught:
        open_source(path)
    assert "outside" in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    with h5py.File(copy_through(path, tmp_path / "out.h5", datasets=("x",))) as after:
        assert after["x"][:].tolist() == [0, 1, 2]
        assert "group/outside" not in after
        assert "outside" not in after["x"].attrs


@pytest.mark.parametrize(
    "name", ["external storage", "external link", "virtual dataset", "null dataspace", "references"]
)
def test_choosing_it_does_not_help(tmp_path: Path, name: str) -> None:
    path = write_file(tmp_path / "in.h5", name)
    with h5py.File(path, "a") as file:
        file["link"] = h5py.SoftLink("/group/./outside")
        file["link to group"] = h5py.SoftLink("group")
        file["group/second"] = h5py.SoftLink("/link")
        file["group/up"] = h5py.SoftLink("../link")  # HDF5 knows no parent folder
    for chosen in ("group/outside", "link", "link to group/outside", "group/second", "group/up"):
        with pytest.raises(InputError, match=r"outside|link|up"):
            open_source(path, datasets=("x", chosen))
    if name == "external link":
        with pytest.raises(
            InputError, match=r"links are not followed; .* datasets, without keep_others=True$"
        ):
            recshuf.shuffle(path, tmp_path / "new.h5", datasets="x", keep_others=True)
    with h5py.File(copy_through(path, tmp_path / "out.h5", datasets=("x",))) as after:
        assert sorted(after) == ["group", "x"]
        assert sorted(after["group"]) == []


@pytest.mark.parametrize(("where", "count"), [("/", 32_760), ("x", 50_000)])
def test_an_attribute_that_shards_cannot_hold_is_named_with_a_remedy(
    tmp_path: Path, where: str, count: int
) -> None:
    with h5py.File(tmp_path / "in.h5", "w", libver="latest") as file:
        file["x"] = np.arange(3)
        file[where].attrs["large"] = np.zeros(count, "u2")
    with pytest.raises(
        InputError, match=r"attribute 'large' of '/x?': is larger than .* 64 KB; .* --keep-others"
    ):
        open_source(tmp_path / "in.h5")


def test_soft_links_in_circles_and_long_chains_end(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["link0"] = np.arange(3)
        for index in range(200):
            file[f"link{index + 1}"] = h5py.SoftLink(f"link{index}")
        file["a"], file["b"] = h5py.SoftLink("b"), h5py.SoftLink("a")
    assert open_source(tmp_path / "in.h5", datasets=("link50",)).inputs[0].record_count == 3
    for name in ("link200", "a"):
        with pytest.raises(InputError, match=f"has no dataset '{name}'.*there are: link0"):
            open_source(tmp_path / "in.h5", datasets=(name,))


def test_datasets_that_do_not_exist_are_named_beside_those_that_do(tmp_path: Path) -> None:
    path = store(tmp_path / "in.h5", {"x": np.zeros(3), "g/y": np.zeros(3), "one": 1})
    for missing in ("z", "g", "one", "x/y", "g/z", ""):
        with pytest.raises(InputError, match=f"'{missing}'.*g/y, x"):
            open_source(path, datasets=("x", missing))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"x": np.zeros((2, 3), "f8")}, r"no dataset 'y'"),
        ({"x": np.zeros((2, 3), "f8"), "y": [1, 2], "z": [1, 2]}, r"no dataset 'z'"),
        ({"x": np.zeros((2, 3), "f4"), "y": [1, 2]}, r"float32 rows of shape .*float64"),
        ({"x": np.zeros((2, 3), ">f8"), "y": [1, 2]}, r">f8 .*float64"),
        ({"x": np.zeros((2, 4), "f8"), "y": [1, 2]}, r"\(4,\).*\(3,\)"),
        ({"x": np.zeros((2, 3), "f8"), "y": ["a", "b"]}, r"UTF-8 text of any length, but int64"),
    ],
)
def test_files_that_differ_are_both_named(tmp_path: Path, other: dict[str, object], said: str) -> None:
    store(tmp_path / "one.h5", {"x": np.zeros((5, 3), "f8"), "y": range(5)})
    store(tmp_path / "two.h5", other)
    for names in (("one.h5", "two.h5"), ("two.h5", "one.h5")):
        with pytest.raises(InputError, match=r"one\.h5.*two\.h5|two\.h5.*one\.h5") as caught:
            _ = open_source(*(tmp_path / name for name in names)).layout
        if names[0] == "one.h5":
            assert caught.match(said)


# Sizes


@pytest.mark.parametrize(
    ("count", "shape", "said"),
    [
        (1, (1 << 43,), r"'x0'.*declares \d+ bytes but stores 0"),
        (1, (1 << 43, 0), r"'x0'.*declares \d+ bytes but stores 0"),
        (1, (1 << 33, 1 << 10), r"'x0'.*declares \d+ bytes but stores 0"),
        (8, (1 << 30,), r"all datasets.*declares"),
        (1, (1, 1 << 31), r"'x0'.*2147483648 bytes"),
    ],
)
def test_a_shape_bomb_is_refused(tmp_path: Path, count: int, shape: tuple[int, ...], said: str) -> None:
    """By bytes or rows, alone or with others, and for rows too wide for Arrow."""
    chunks = (min(shape[0], 1 << 20), *(min(width, 1 << 20) or 1 for width in shape[1:]))
    with h5py.File(tmp_path / "in.h5", "w") as file:
        for index in range(count):
            file.create_dataset(f"x{index}", shape, "u1", chunks=chunks, maxshape=(None,) * len(shape))
    assert (tmp_path / "in.h5").stat().st_size < 1 << 14
    with pytest.raises(InputError, match=said):
        open_source(tmp_path / "in.h5")
    if count > 1:
        assert open_source(tmp_path / "in.h5", datasets=("x3",)).inputs[0].record_count == 1 << 30


def test_a_chunk_that_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file.create_dataset("x", data=np.zeros(10, "u1"), chunks=(1 << 26,), maxshape=(None,), compression=1)
    source = open_source(tmp_path / "in.h5")
    assert source.reading_bytes(1000) >= 1 << 26
    with pytest.raises(InputError, match=r"'x'.*67108864 bytes.*1000000 .*--memory"):
        next(source.fragments(0, 1000, 1_000_000))


@pytest.mark.parametrize(
    ("kind", "options"),
    [(h5py.string_dtype(), {}), (h5py.vlen_dtype("i4"), {"chunks": (30,), "compression": 1})],
)
def test_a_value_that_does_not_fit_is_refused_by_row(tmp_path: Path, kind: Any, options: Any) -> None:
    is_text = h5py.check_string_dtype(kind) is not None
    with h5py.File(tmp_path / "in.h5", "w") as file:
        made = file.create_dataset("s", (120,), kind, **options)
        made[100] = "x" * 992 if is_text else np.zeros(248, "i4")  # with 8 bytes for its place
    read_limited(tmp_path / "in.h5")
    with h5py.File(tmp_path / "in.h5", "a") as file:
        file["s"][100] = "x" * 1001 if is_text else np.zeros(251, "i4")
    with pytest.raises(InputError, match=r"row 100 of dataset 's': 100[14] bytes .* 1000 .*--memory"):
        read_limited(tmp_path / "in.h5")


def read_limited(path: Path) -> None:
    for fragment in open_source(path).fragments(0, 300, 1000):
        list(fragment.batches())


# What is no HDF5 file of records


def test_no_hdf5_at_all(tmp_path: Path) -> None:
    (tmp_path / "text.h5").write_text("no HDF5")
    with pytest.raises(InputError, match=r"text\.h5: is not an HDF5 file"):
        open_source(tmp_path / "text.h5")
    with pytest.raises(InputError, match="directory"):
        open_source(tmp_path)
    with pytest.raises(InputError, match="no records"):
        open_source(store(tmp_path / "in.h5", {"one": 1}))
    with h5py.File(tmp_path / "in.h5", "w") as file:
        h5d.create(file.id, b"bad \xff name", h5t.NATIVE_INT8, h5s.create_simple((3,)))
    with pytest.raises(InputError, match="not UTF-8"):
        open_source(tmp_path / "in.h5")


def test_compressions_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    source = open_source(write_file(tmp_path / "in.h5"))
    for options in (("snappy", None), ("gzip", 10), ("lzf", 1)):
        for layout in (source.layout, None):
            with pytest.raises(UsageError, match=f"--compression {options[0]}"):
                FORMAT.open_target(source.schema, layout, WriteOptions(*options))


# Disks that are full

LIMITS = (100, 10_000, 300_000, 3_999_999)


def test_a_full_disk_is_an_ordinary_error_and_leaves_no_noise_at_exit(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        values = np.random.default_rng(6).integers(0, 255, (4000, 1000), np.uint8)
        file.create_dataset("x", data=values)
        file.create_dataset("s", data=["text"] * 4000, chunks=(500,))
    script = """
        import resource, sys
        from pathlib import Path
        from tests.support.formats.hdf5_tools import open_source, read_all, write_shard
        source = open_source(Path(sys.argv[1]))
        batches = read_all(source)
        for limit in map(int, sys.argv[3:]):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            path = Path(sys.argv[2]) / str(limit)
            try:
                write_shard(source, path, batches)
            except OSError as error:
                print(error.errno, error.filename == str(path))
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "in.h5"), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([*command, *map(str, LIMITS)], capture_output=True, env=environment, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["27 True"] * len(LIMITS)


# Datasets that differ in length: what is proposed


def write(path: Path, **lengths: int | tuple[int, ...]) -> Path:
    return store(path, {name: np.zeros(shape, "u1") for name, shape in lengths.items()})


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


H5AD = {
    "X": (30, 4),
    "obs/_index": 30,
    "obs/cell_type/codes": 30,
    "obs/cell_type/categories": 3,
    "var/_index": 4,
}
PROPOSALS = {
    "most datasets": (H5AD, ("X", "obs/_index", "obs/cell_type/codes")),
    "most bytes": ({"a": 9, "b": (2, 50), "c": 0, "d": 0}, ("b",)),
    "most bytes first": ({"a": (9, 50), "b": 2}, ("a",)),
    "more than one row": ({"a": 1, "b": 1, "c": 9, "d": 0, "e": 0}, ("c",)),
    "one row and indexes": ({"_i_t/v/a": 0, "_i_t/v/b": 0, "_i_t/v/c": 0, "t": 1, "u": 1}, ("t", "u")),
    "names for the shell": ({"it's 1": 2, "$x": 2, "y": 3}, ("$x", "it's 1")),
    "many": ({"a": 1, "b": 2, "c": 2, "d": 2, "e": 2, "f": 2}, ("b", "c", "d", "e", "f")),
}


def test_the_commonest_length_is_proposed(tmp_path: Path) -> None:
    for name, (lengths, expected) in PROPOSALS.items():
        path = write(tmp_path / "in.h5", **lengths)
        assert (name, proposed(path)) == (name, expected)
    assert "a (1,), b (2,) and 4 more;" in refusal(path)


@pytest.mark.parametrize("name", ["a,b", "a\nb"])
def test_names_that_the_command_line_cannot_give_are_not_proposed(tmp_path: Path, name: str) -> None:
    assert re.search("with --datasets$", refusal(write(tmp_path / "in.h5", **{name: (3, 9), "y": 2})))


def test_a_record_is_as_long_as_its_values_together(tmp_path: Path) -> None:
    path = tmp_path / "in.h5"
    with h5py.File(path, "w") as file:
        file["a"], file["b"], file["c"] = (
            ["1", "2" * 500, "3"],
            ["4" * 600, "5" * 700, "6"],
            np.zeros((3, 100), "u1"),
        )
    said = (
        "in.h5: row 1: a record of 1,316 bytes is longer than the 1,200 bytes allowed; raise max_record_bytes"
    )
    with pytest.raises(InputError, match=said):
        recshuf.shuffle(path, tmp_path / "out.h5", max_record_bytes=1200)
    assert recshuf.shuffle(path, tmp_path / "out.h5", max_record_bytes=1316).records == 3
