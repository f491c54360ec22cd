"""Help, version and completion name every option and command, and import nothing heavy; so do the list of formats and the demo."""

import errno
import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recshuf.api import checks
from recshuf.cli import audit_commands
from recshuf.cli.commands import commands
from recshuf.formats import OWN_FORMATS
from recshuf.records.keys import MAX_PILES
from recshuf.version import __version__
from tests.conftest import Run
from tests.support import options_page
from tests.support.other_packages import ROWS_FORMAT, forget_formats, install, use
from tests.support.processes.command_line import assert_one_line


class TestHelp:
    def test_headings_and_examples(self, call: Run) -> None:
        text = call("--help").stdout.decode()
        places = [text.index(f"\n{name}:\n") for name in ("Input", "Output", "Order", "Resources", "General")]
        assert places == sorted(places)
        assert text.startswith("Usage: recshuf [OPTIONS] INPUT... -o OUTPUT\n")
        assert text.count("\n  recshuf ") + text.count("| recshuf ") >= 2
        assert "_RECSHUF_COMPLETE=bash_source recshuf" in text
        assert " -h, --help " in text

    def test_version_and_help_import_nothing_heavy(self) -> None:
        code = (
            "import sys; from recshuf.cli import main;"
            "sys.argv = ['recshuf', '--version']; main(); sys.argv = ['recshuf', '--help']; main();"
            "print(*{'numpy', 'pyarrow', 'rich', 'psutil', 'h5py'} & set(sys.modules), file=sys.stderr)"
        )
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
        assert result.stdout.startswith(f"recshuf {__version__}\nUsage: recshuf ".encode())
        assert result.stderr.split() == []

    def test_completion(self, run: Run) -> None:
        result = run(env=os.environ | {"_RECSHUF_COMPLETE": "zsh_source"})
        assert result.returncode == 0
        assert b"_RECSHUF_COMPLETE=zsh_complete" in result.stdout
        asked = {"_RECSHUF_COMPLETE": "bash_complete", "COMP_WORDS": "recshuf --shard-r", "COMP_CWORD": "1"}
        assert run(env=os.environ | asked).stdout.split() == [b"plain,--shard-records"]


def test_help_names_every_command_and_says_in_words_what_an_option_takes(call: Run) -> None:
    shown = call("--help").stdout.decode()
    assert all(f"recshuf {name} " in shown for name in commands.commands)
    for words in ((), ("scatter",)):
        text = " ".join(call(*words, "--help").stdout.decode().split())
        assert f"Number of piles, 1 to {MAX_PILES:,}" in text
    for words in ((), *((name,) for name in sorted(commands.commands))):
        shown = call(*words, "--help").stdout.decode()
        assert "Usage: recshuf" in shown
        assert call(*words, "-h").stdout.decode() == shown
        assert not [line for line in shown.splitlines() if line.endswith("]") and "  [" in line]


def test_help_is_whole_without_docstrings(call: Run, run: Run) -> None:
    for words in (("store",), ("store", "compact")):
        shown = run(*words, "--help", env=os.environ | {"PYTHONOPTIMIZE": "2"}).stdout
        assert shown == call(*words, "--help").stdout


def test_commands_that_write_no_shards_promise_nothing_of_shards(call: Run) -> None:
    for command in ("scatter", "window", "check", "picture", "verify"):
        text = " ".join(call(command, "--help").stdout.decode().split())
        for words in ("at the top of each shard", "CSV that is made", "HDF5 to HDF5", "Print details"):
            assert words not in text
        assert ("for a conversion" in text) == (command == "verify")
    assert "at the top of each shard" in " ".join(call("--help").stdout.decode().split())


def test_the_page_of_options_is_that_of_the_declarations() -> None:
    assert options_page.PATH.read_text(encoding="utf-8") == options_page.make_page(), (
        "run python -m tests.support.options_page --write"
    )


# `recshuf formats` lists what there is, and names packages that do not work


@pytest.mark.parametrize("is_broken", [False, True])
def test_formats_are_listed_with_their_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Run, is_broken: bool
):
    gone = {"gone": "no_such_module:FORMAT"} if is_broken else {}
    use(install(tmp_path / "site", "recshuf-rows", rows=ROWS_FORMAT, **gone), monkeypatch)
    try:
        listed, shown = call("formats", "--json"), call("formats")
    finally:
        monkeypatch.undo()
        forget_formats()
    found = {one["name"]: one for one in json.loads(listed.stdout)}
    assert [*found] == [*OWN_FORMATS, "rows"]
    assert found["rows"]["package"] == {"name": "recshuf-rows", "version": "1.0"}
    assert found["hdf5"] | {"compressions": []} == {
        "name": "hdf5",
        "suffixes": [".h5", ".hdf5", ".hdf", ".he5", ".h5ad"],
        "companions": [],
        "compressions": [],
        "options": ["--datasets", "--keep-others", "--widen", "--first-metadata"],
        "libraries": {"h5py": version("h5py"), "deflate": version("deflate")},
        "package": None,
    }
    rows = {line.split()[0]: line for line in shown.stdout.decode().splitlines()}
    assert [*rows] == ["FORMAT", *found]
    assert "recshuf-rows 1.0" in rows["rows"]
    assert rows["text"].endswith(
        "--header --separator --zero-terminated --record-lines --record-start --schema"
    )
    assert rows["megatron"].split()[1] == ".bin+.idx"
    assert f" h5py {version('h5py')} deflate " in rows["hdf5"]
    assert (listed.returncode, shown.returncode) == (2, 2) if is_broken else (0, 0)
    problem = "the format 'gone' of the package recshuf-rows cannot be imported"
    assert (problem in shown.stderr.decode()) == is_broken


# The demo does what it says, and says so in few lines


@pytest.mark.parametrize("has_pillow", [True, False])
def test_every_step_is_told_and_its_files_are_there(
    tmp_path: Path, call: Run, monkeypatch: pytest.MonkeyPatch, has_pillow: bool
):
    monkeypatch.setattr(audit_commands, "ROWS_PER_LABEL", 1000)
    if not has_pillow:
        monkeypatch.setattr(audit_commands, "find_spec", lambda _: None)
    folder = tmp_path / ("demo" if has_pillow else os.fsdecode(b"demo\xff"))
    lines = os.fsdecode(call("demo", "-o", folder).stdout).splitlines()
    steps = [line for line in lines if line[0].isdigit()]
    shown = str(folder).encode("utf-8", "replace").decode()
    assert [line.split(".")[0] for line in steps] == ["1", "2", "3", "4", "5"]
    assert f"equal: {shown}/shuffled holds 2,000 records of 2 inputs" in steps[2]
    assert f"{shown}/shuffled looks uniformly random" in lines[-2]
    assert ("install recshuf[report]" in lines[-1]) != (folder / "picture.png").exists()
    assert (folder / "picture.png").exists() <= has_pillow
    for name, kinds in (("sorted", 1), ("shuffled", 2)):
        tables = [pq.read_table(pa.OSFile(os.fsencode(path))) for path in (folder / name).glob("*.parquet")]
        assert sum(table.num_rows for table in tables) == 2000
        assert all(len(table["label"].unique()) == kinds for table in tables)
        assert sorted(number for table in tables for number in table["id"].to_pylist()) == [*range(2000)]


@pytest.mark.parametrize("given", [("-o", "demo"), ()])
def test_a_demo_that_fails_names_its_folder_and_leaves_none(
    folder: Path, call: Run, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...]
):
    def fill_disk(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(audit_commands, "ROWS_PER_LABEL", 10)
    monkeypatch.setattr(checks, "verify", fill_disk)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    done = call("demo", *given)
    assert done.returncode == 1
    assert_one_line(done.stderr, "demo", ": no space left for the output; free some, or choose another")
    assert os.listdir() == []


# What a run does not use is not imported: it would be most of the time of a small one


SHUFFLE = """
import sys
from recshuf.cli import main
sys.argv = ["recshuf", *sys.argv[1:], "-q"]
main()
print(*sys.modules)
slow = [
    kind.__qualname__
    for name in sys.modules if name.startswith("recshuf.")
    for kind in vars(sys.modules[name]).values() if isinstance(kind, type) and "__slots__" in vars(kind)
    if "__dataclass_params__" in vars(kind) and kind.__dataclass_params__.frozen
]
print(*(slow if sys.version_info < (3, 13) else ()))
"""
UNUSED = (
    "psutil", "pyarrow.compute", "recshuf.audit.order", "recshuf.audit.verify", "recshuf.formats.arrays", "recshuf.formats.csv",
    "recshuf.formats.hdf5", "recshuf.formats.text.", "recshuf.formats.tfrecord",
    "recshuf.formats.webdataset", "recshuf.loader", "recshuf.output.objects", "recshuf.output.quarantine",
    "recshuf.piles.kept", "recshuf.run.stores", "recshuf.run.engines",
    "recshuf.piles.object_sets", "recshuf.run.verify", "recshuf.storage.writing", "recshuf.torch", "recshuf.train",
    "azure", "boto3", "botocore", "fsspec", "google", "obstore", "requests",
)  # fmt: skip
OTHER = {"jsonl": "recshuf.formats.parquet", "parquet": "recshuf.formats.jsonl"}


@pytest.mark.parametrize(("suffix", "memory"), [("jsonl", "64MB"), ("parquet", "1GB")])
def test_a_simple_run_imports_what_it_uses(tmp_path: Path, suffix: str, memory: str) -> None:
    source, output = tmp_path / f"a.{suffix}", tmp_path / f"b.{suffix}"
    if suffix == "jsonl":
        source.write_text('{"a": 1}\n' * 9)
    else:
        pq.write_table(pa.table({"a": range(9), "b": [[1, 2]] * 9}), source)
    command = [sys.executable, "-c", SHUFFLE, source, "-o", output, "--memory", memory]
    names, slow = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n", 1)
    assert "recshuf.run.driver" in names
    assert output.exists()
    assert [name for name in names.split() if name.startswith((*UNUSED, OTHER[suffix]))] == []
    assert slow.split() == [], "use recshuf.dataclass"
