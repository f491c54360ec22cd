"""HDF5 files that are refused, each by name, and disks that are full."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from typing import TYPE_CHECKING

import h5py
import numpy as np
import pytest
from h5py import h5d, h5p, h5s, h5t

from recshuf.errors import InputError, UsageError
from recshuf.formats.hdf5 import FORMAT
from recshuf.formats.hdf5.writers import ShardFile
from recshuf.interfaces import InputFile, ReadOptions, WriteOptions
from tests.support.formats.hdf5_tools import copy_through, open_source, read_all, write_shard

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def add_external_storage(file: h5py.File) -> None:
    file.create_dataset("group/outside", (3,), "u1", external=[("/etc/passwd", 0, 3)])


def add_external_link(file: h5py.File) -> None:
    file["group/outside"] = h5py.ExternalLink("other.h5", "/x")


def add_virtual_dataset(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((3,), "i4")
    layout[:] = h5py.VirtualSource("other.h5", "x", (3,))
    file.create_virtual_dataset("group/outside", layout)


def add_references(file: h5py.File) -> None:
    file["group/outside"] = np.array([file.ref] * 3, h5py.ref_dtype)


def add_region_references(file: h5py.File) -> None:
    file["group/outside"] = np.array([file["x"].regionref[:2]] * 3, h5py.regionref_dtype)


def add_null_dataspace(file: h5py.File) -> None:
    file["group/outside"] = h5py.Empty("f8")


def add_scalar_reference(file: h5py.File) -> None:
    file.create_dataset("group/outside", data=file.ref, dtype=h5py.ref_dtype)


def add_reference_attribute(file: h5py.File) -> None:
    file["x"].attrs["group/outside"] = file.ref


def add_nested_strings(file: h5py.File) -> None:
    file.create_dataset("group/outside", (3,), [("a", h5py.string_dtype())])


def add_nested_arrays(file: h5py.File) -> None:
    file.create_dataset("group/outside", (3,), h5py.vlen_dtype(h5py.vlen_dtype("i4")))


def add_rows_of_strings(file: h5py.File) -> None:
    file.create_dataset("group/outside", (3, 2), h5py.string_dtype())


def add_compound_references(file: h5py.File) -> None:
    file.create_dataset("group/outside", (3,), [("a", h5py.ref_dtype)])


def add_shape_bomb(file: h5py.File) -> None:
    file.create_dataset("group/outside", (3, (1 << 31) - 1), "u1", chunks=(1, 1 << 20))


def add_unknown_filter(file: h5py.File) -> None:
    plist = h5p.create(h5p.DATASET_CREATE)
    plist.set_chunk((3,))
    plist.set_filter(305, 1, ())
    h5d.create(file["group"].id, b"outside", h5t.NATIVE_INT8, h5s.create_simple((3,)), plist)


ADDITIONS: dict[Callable[[h5py.File], None], str] = {
    add_external_storage: "external storage",
    add_external_link: "external link",
    add_virtual_dataset: "virtual",
    add_references: "references",
    add_region_references: "references",
    add_null_dataspace: "null dataspace",
    add_scalar_reference: "references",
    add_reference_attribute: "references",
    add_nested_strings: "variable-length values inside",
    add_nested_arrays: "variable-length values inside",
    add_rows_of_strings: "variable-length values of shape",
    add_compound_references: "references",
    add_shape_bomb: "declares",
    add_unknown_filter: r"lzo.*recshuf\[hdf5plugin\]",
}


def write_file(path: Path, add: Callable[[h5py.File], None]) -> Path:
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(3)
        file.create_group("group")
        add(file)
    return path


@pytest.mark.parametrize("add", ADDITIONS)
def test_what_cannot_be_moved_is_refused_by_name(tmp_path: Path, add: Callable[[h5py.File], None]) -> None:
    path = write_file(tmp_path / "in.h5", add)
    with pytest.raises(InputError, match=ADDITIONS[add]) as caught:
        open_source(path)
    assert "outside" in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("add", ADDITIONS)
def test_what_is_not_chosen_is_left_alone(tmp_path: Path, add: Callable[[h5py.File], None]) -> None:
    path = write_file(tmp_path / "in.h5", add)
    copy_through(path, tmp_path / "out.h5", datasets=("x",))
    with h5py.File(tmp_path / "out.h5") as after:
        assert after["x"][:].tolist() == [0, 1, 2]
        assert "group/outside" not in after
        assert "group/outside" not in after["x"].attrs


CHOOSABLE = [add_external_storage, add_external_link, add_virtual_dataset, add_null_dataspace, add_references]


@pytest.mark.parametrize("add", CHOOSABLE)
@pytest.mark.parametrize("chosen", ["group/outside", "link", "link to group/outside"])
def test_choosing_it_does_not_help(tmp_path: Path, add: Callable[[h5py.File], None], chosen: str) -> None:
    path = write_file(tmp_path / "in.h5", add)
    with h5py.File(path, "a") as file:
        file["link"] = h5py.SoftLink("/group/outside")
        file["link to group"] = h5py.SoftLink("/group")
    with pytest.raises(InputError, match=r"outside|link"):
        open_source(path, datasets=("x", chosen))


def create_outside_scalar(file: h5py.File, secret: Path) -> None:
    plist = h5p.create(h5p.DATASET_CREATE)
    plist.set_external(bytes(secret), 0, 1)
    h5d.create(file.id, b"scalar", h5t.NATIVE_UINT8, h5s.create(h5s.SCALAR), plist)


def test_bytes_of_other_files_never_come_in(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"abc")
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file.create_dataset("x", (3,), "u1", external=[(str(secret), 0, 3)])
        create_outside_scalar(file, secret)
        file["y"] = np.zeros(3)
    copy_through(tmp_path / "in.h5", tmp_path / "out.h5", datasets=("y",))
    with h5py.File(tmp_path / "out.h5") as after:
        assert sorted(after) == ["y"]


@pytest.mark.parametrize("where", ["/", "x"])
@pytest.mark.parametrize("count", [32_760, 50_000])
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


def test_a_scalar_in_external_storage_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        create_outside_scalar(file, tmp_path / "secret")
        file["y"] = np.zeros(3)
    with pytest.raises(InputError, match=r"'scalar'.*external storage"):
        open_source(tmp_path / "in.h5")


def test_soft_links_in_a_circle_end(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["x"] = [1]
        file["a"], file["b"] = h5py.SoftLink("b"), h5py.SoftLink("a")
    open_source(tmp_path / "in.h5")
    with pytest.raises(InputError, match="there are: x"):
        open_source(tmp_path / "in.h5", datasets=("a",))


def test_lengths_that_differ_are_listed(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["x"], file["g/y"] = np.zeros((3, 2)), np.zeros(4)
    with pytest.raises(InputError, match=r"g/y \(4,\), x \(3, 2\).*--datasets"):
        open_source(tmp_path / "in.h5")


def test_datasets_that_do_not_exist_are_named_beside_those_that_do(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["x"], file["g/y"], file["one"] = np.zeros(3), np.zeros(3), 1
    for missing in ("z", "g", "one", "x/y", "g/z", ""):
        with pytest.raises(InputError, match=f"'{missing}'.*g/y, x"):
            open_source(tmp_path / "in.h5", datasets=("x", missing))
    with pytest.raises(UsageError):
        open_source(tmp_path / "in.h5", datasets=())


def test_a_file_without_records_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["one"] = 1
    with pytest.raises(InputError, match="no records"):
        open_source(tmp_path / "in.h5")


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"x": np.zeros((2, 3), "f8")}, r"no dataset 'y'"),
        ({"x": np.zeros((2, 3), "f8"), "y": [1, 2], "z": [1, 2]}, r"no dataset 'z'"),
        ({"x": np.zeros((2, 3), "f4"), "y": [1, 2]}, r"float32 .*float64"),
        ({"x": np.zeros((2, 3), ">f8"), "y": [1, 2]}, r">f8 .*float64"),
        ({"x": np.zeros((2, 4), "f8"), "y": [1, 2]}, r"\(4,\).*\(3,\)"),
        ({"x": np.zeros((2, 3), "f8"), "y": ["a", "b"]}, r"variable-length string .*int64"),
    ],
)
def test_files_that_differ_are_both_named(tmp_path: Path, other: dict[str, object], said: str) -> None:
    for name, datasets in (("one.h5", {"x": np.zeros((5, 3), "f8"), "y": range(5)}), ("two.h5", other)):
        with h5py.File(tmp_path / name, "w") as file:
            for path, data in datasets.items():
                file[path] = data
    for names in (("one.h5", "two.h5"), ("two.h5", "one.h5")):
        with pytest.raises(InputError, match=r"one\.h5.*two\.h5|two\.h5.*one\.h5") as caught:
            open_source(*(tmp_path / name for name in names))
        if names[0] == "one.h5":
            assert caught.match(said)


def test_a_shape_bomb_is_refused_by_its_row_count_too(tmp_path: Path) -> None:
    for shape in ((1 << 43,), (1 << 43, 0), (1 << 33, 1 << 10)):
        with h5py.File(tmp_path / "in.h5", "w") as file:
            file.create_dataset(
                "x", shape, "u1", chunks=(1 << 20,) + (1,) * (len(shape) - 1), maxshape=(None,) * len(shape)
            )
        assert (tmp_path / "in.h5").stat().st_size < 4096
        with pytest.raises(InputError, match=r"'x'.*declares \d+ bytes but stores 0"):
            open_source(tmp_path / "in.h5")


def test_many_small_bombs_are_one(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        for index in range(8):
            file.create_dataset(f"x{index}", (1 << 30,), "u1", chunks=(1 << 20,))
    with pytest.raises(InputError, match=r"all datasets.*declares"):
        open_source(tmp_path / "in.h5")


def test_data_that_compresses_well_is_no_bomb(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file.create_dataset("x", (1 << 30,), "u1", chunks=(1 << 20,))  # never written: all fill value
    assert open_source(tmp_path / "in.h5").inputs[0].record_count == 1 << 30


def test_rows_too_wide_for_arrow_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file.create_dataset("x", (1, 1 << 31), "u1", chunks=(1, 1 << 20))
    with pytest.raises(InputError, match=r"'x'.*2147483648 bytes"):
        open_source(tmp_path / "in.h5")


def test_a_chunk_that_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file.create_dataset("x", data=np.zeros(10, "u1"), chunks=(1 << 26,), maxshape=(None,), compression=9)
    source = open_source(tmp_path / "in.h5")
    assert source.reading_bytes(1000) >= 1 << 26
    with pytest.raises(InputError, match=r"'x'.*67108864 bytes.*1000000 .*--memory"):
        next(source.fragments(0, 1000, 1_000_000))


def test_a_string_that_does_not_fit_is_refused_by_row(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["s"] = ["short"] * 100 + ["x" * 1001]
    source = open_source(tmp_path / "in.h5")
    with pytest.raises(InputError, match=r"row 100 of dataset 's': 1001 bytes .* 1000 .*--memory"):
        [list(fragment.batches()) for fragment in source.fragments(0, 300, 1000)]


def test_no_hdf5_at_all(tmp_path: Path) -> None:
    (tmp_path / "text.h5").write_text("no HDF5")
    with pytest.raises(InputError, match=r"text\.h5: is not an HDF5 file"):
        open_source(tmp_path / "text.h5")
    with pytest.raises(InputError, match="directory"):
        open_source(tmp_path)
    with pytest.raises(InputError, match="standard input"):
        FORMAT.open_source([InputFile("standard input", None)], ReadOptions())


def test_names_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        h5d.create(file.id, b"bad \xff name", h5t.NATIVE_INT8, h5s.create_simple((3,)))
    with pytest.raises(InputError, match="not UTF-8"):
        open_source(tmp_path / "in.h5")


def test_a_damaged_chunk_is_named(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file.create_dataset("g/x", data=np.arange(5000), chunks=(1000,), fletcher32=True)
        offset = file["g/x"].id.get_chunk_info(3).byte_offset
    content = bytearray((tmp_path / "in.h5").read_bytes())
    content[offset + 50] ^= 1
    (tmp_path / "in.h5").write_bytes(content)
    with pytest.raises(InputError, match=r"in\.h5: rows 3000 to 4000 of dataset 'g/x'"):
        read_all(open_source(tmp_path / "in.h5"), 8000)


def test_random_damage_gives_input_errors_only(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "whole.h5", "w") as file:
        file.create_dataset("x", data=np.arange(300), chunks=(100,), fletcher32=True, compression=1)
        file.create_dataset("g/s", data=["string"] * 300)
        file.attrs["a"] = "attribute"
    content = (tmp_path / "whole.h5").read_bytes()
    rng = np.random.default_rng(5)
    refused = 0
    for _ in range(150):
        damaged = bytearray(content)
        for place in rng.integers(0, 4000, 3):
            damaged[place] ^= 1 << int(rng.integers(8))
        (tmp_path / "in.h5").write_bytes(damaged)
        try:
            read_all(open_source(tmp_path / "in.h5"))
        except InputError:
            refused += 1
    assert refused > 0


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "snappy"},
        {"compression": "gzip", "compression_level": 10},
        {"compression": "lzf", "compression_level": 1},
    ],
)
def test_compressions_that_do_not_fit_are_refused(tmp_path: Path, options: dict[str, object]) -> None:
    source = open_source(write_file(tmp_path / "in.h5", lambda _: None))
    with pytest.raises(UsageError, match="--compression"):
        FORMAT.open_target(source.schema, source.layout, WriteOptions(**options))


@pytest.mark.skipif(find_spec("hdf5plugin") is None, reason="needs hdf5plugin")
def test_filters_of_hdf5plugin_are_found_when_needed(tmp_path: Path) -> None:
    script = """
        import sys, h5py, hdf5plugin
        with h5py.File(sys.argv[1], "w") as file:
            file.create_dataset("x", data=list(range(1000)), **hdf5plugin.Blosc(cname="zstd"))
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "in.h5")]
    subprocess.run(command, check=True)
    copy_through(tmp_path / "in.h5", tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5") as after:
        assert after["x"][:].tolist() == list(range(1000))
        assert after["x"].id.get_create_plist().get_filter(0)[0] == 32001


class FailingShard(ShardFile):
    """A file of which one write fails."""

    writes_left = 0

    def write(self, buffer: bytes) -> int:
        FailingShard.writes_left -= 1
        if FailingShard.writes_left == 0:
            self._fail(OSError(28, "No space left on device"))
        return super().write(buffer)


def test_whichever_write_fails_it_is_an_ordinary_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file.create_dataset("x", data=np.arange(20_000), chunks=(500,), compression=1)
        file.create_dataset("s", data=["text"] * 20_000, chunks=(500,))
    source = open_source(tmp_path / "in.h5")
    batches = read_all(source, 20_000)
    monkeypatch.setattr("recshuf.formats.hdf5.sink.ShardFile", FailingShard)
    for attempt in range(1, 1000):
        FailingShard.writes_left = attempt
        path = tmp_path / f"{attempt}.h5"
        try:
            write_shard(source, path, batches)
        except OSError as error:
            assert (error.errno, error.filename) == (28, str(path))
        else:
            break
    assert attempt > 20
    with h5py.File(path) as after:
        assert np.array_equal(after["x"][:], np.arange(20_000))


def test_a_full_disk_leaves_no_noise_at_exit(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file.create_dataset("x", data=np.random.default_rng(6).integers(0, 255, (4000, 1000), np.uint8))
    script = """
        import resource, sys
        from pathlib import Path
        from tests.support.formats.hdf5_tools import open_source, read_all, write_shard
        source = open_source(Path(sys.argv[1]))
        batches = read_all(source)
        for limit in (100, 10_000, 300_000, 2_000_000, 3_999_999):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            try:
                write_shard(source, Path(sys.argv[2]) / str(limit), batches)
            except OSError as error:
                print(error.errno)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "in.h5"), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, check=False, env=environment, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["27"] * 5
