"""The short form of every attack, and that the instruments of the attacks see what they are meant to see."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes.command_server import PROJECT, Ended, Server
from tests.support.processes.faults import build_faults, find_compiler
from tests.support.tally import Tally, format_table
from tests.torture.campaign import KINDS, attack
from tests.torture.jobs import SMALL, Choice, Stage, is_clean, judge

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_no_attack_succeeds(kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tallies = attack(kind, tmp_path, Choice())
    if not tallies:
        pytest.skip(capfd.readouterr().err.strip())
    failures = [failure for tally in tallies for failure in tally.failures]
    assert not failures, "\n".join(failures)
    assert all(tally.is_clean for tally in tallies), format_table(tallies)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_faults(tmp_path_factory.mktemp("faults"))


STRIKES = {
    "the chosen call fails and no other": (
        f"""
arm(folder, Strike(3, "once", {errno.ENOSPC}))
file = os.open(folder + "/a", os.O_RDWR | os.O_CREAT)
os.write(file, b"x")
try:
    os.fsync(file)
except OSError as error:
    print(error.errno)
os.fsync(file)
os.close(file)
print(faults.disarm(), *faults.struck())
""",
        f"{errno.ENOSPC} 5 1 fsync FOLDER/a",
    ),
    "all calls fail from there on": (
        f"""
arm(folder, Strike(2, "from", {errno.EIO}))
for name in "abc":
    try:
        os.mkdir(folder + "/" + name)
    except OSError as error:
        print(name, error.errno)
""",
        f"b {errno.EIO} c {errno.EIO}",
    ),
    "fewer bytes are moved": (
        """
file = os.open(folder + "/a", os.O_RDWR | os.O_CREAT)
arm(folder, Strike(1, "short"))
print(os.write(file, bytes(10)), os.write(file, bytes(10)))
""",
        "5 10",
    ),
    "the process dies before the call": (
        """
arm(folder, Strike(2, "kill"))
os.mkdir(folder + "/a")
print("a", flush=True)
os.mkdir(folder + "/b")
print("b", flush=True)
""",
        "a",
    ),
    "calls elsewhere are not counted, and all ways to open a file are": (
        """
import h5py
os.mkdir(folder + "/in")
arm(folder + "/in", Strike(0))
os.mkdir(folder + "/inner")
os.chdir(folder)
os.close(os.open("b", os.O_WRONLY | os.O_CREAT))
counts = [faults.disarm()]
arm(folder, Strike(0))
os.close(os.open(folder, os.O_RDWR | os.O_TMPFILE))
os.close(os.open("a", os.O_RDWR | os.O_CREAT))
counts += [faults.disarm()]
arm(folder, Strike(0))
h5py.File(folder + "/a.h5", "w").close()
print(*counts, faults.disarm() > 2)
""",
        "0 4 True",
    ),
}


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("name", STRIKES)
def test_strikes_hit_what_they_should(library: Path, tmp_path: Path, name: str) -> None:
    code, said = STRIKES[name]
    start = (
        "from tests.support.processes.faults import *; import os; faults = Faults(); arm = faults.arm\n"
        f"folder = {str(tmp_path)!r}\n"
    )
    environment = os.environ | {"LD_PRELOAD": str(library)}
    done = subprocess.run(
        [sys.executable, "-c", start + code], cwd=PROJECT, env=environment, capture_output=True, text=True
    )
    assert done.stdout.split() == said.replace("FOLDER", str(tmp_path)).split()
    assert not (tmp_path / "b").exists() or name.startswith("calls")


@pytest.mark.slow
def test_a_run_of_the_server_ends_as_the_command_line_does(tmp_path: Path) -> None:
    with Server() as server:
        right = server.run(["--version"], tmp_path)
        wrong = server.run([f"{tmp_path}/missing", "-o", f"{tmp_path}/out"], tmp_path)
    assert (right.status, wrong.status) == (0, 1)
    assert right.stderr.startswith("recshuf ")
    assert is_clean(wrong.stderr)


@pytest.mark.slow
def test_small_jobs_go_out_of_core_where_they_should(tmp_path: Path) -> None:
    with Server() as server:
        for number, recipe in enumerate(SMALL):
            facts = Stage(tmp_path / f"stage-{number}", recipe, server).run(flip=number).facts
            assert facts["spilled_files"] == (recipe.files if recipe.numbers else 0)


JUDGED: list[tuple[int, str, str]] = [
    (0, "", "silent"),
    (-11, "recshuf: error: no", "crashed"),
    (1, "Traceback (most recent call last):\nrecshuf: error: no", "crashed"),
    (1, "recshuf: internal error: KeyError: 1", "crashed"),
    (1, "", "crashed"),
    (1, "recshuf: error: one\nrecshuf: error: two", "crashed"),
    (1, "recshuf: error: no", "detected"),
]
"""Exit codes and messages of a run that has left nothing."""


def test_outcomes_are_told_apart_and_no_attempt_is_no_success(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "stage", SMALL[0], Server())
    stage.after = {"a": "1", stage.manifest.name: "2"}
    for code, message, outcome in JUDGED:
        assert judge(stage, Ended(code, message))[0] == outcome, message
    stage.output.mkdir()
    assert judge(stage, Ended(1, "recshuf: error: no"))[0] == "silent", "half an output"
    stage.output.rmdir()
    next(stage.inputs.iterdir()).write_bytes(b"")
    assert judge(stage, Ended(1, "recshuf: error: no"))[0] == "silent", "a changed input"
    assert not Tally("none").is_clean
