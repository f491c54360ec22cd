"""The short form of every attack, and that the instruments of the attacks see what they are meant to see."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.processes.faults import Strike, build_faults, find_compiler
from tests.support.tally import Tally, format_table
from tests.torture.campaign import KINDS
from tests.torture.hooks import Damage
from tests.torture.jobs import SMALL, Choice, Recipe, Stage, is_clean, judge
from tests.torture.order import Checker, parse_trace
from tests.torture.server import PROJECT, Ending, Request, Server

if TYPE_CHECKING:
    from collections.abc import Iterator

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_no_attack_succeeds(kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tallies = KINDS[kind](tmp_path, Choice())
    if not tallies:
        pytest.skip(capfd.readouterr().err.strip())
    failures = [failure for tally in tallies for failure in tally.failures]
    assert not failures, "\n".join(failures)
    assert all(tally.is_clean for tally in tallies), format_table(tallies)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_faults(tmp_path_factory.mktemp("faults"))


def attack(library: Path, folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run Python code with the library loaded; `arm` arms it for a folder."""
    start = f"from tests.support.processes.faults import *; import os; faults = Faults(); folder = {str(folder)!r}; arm = faults.arm\n"
    environment = os.environ | {"LD_PRELOAD": str(library)}
    command = [sys.executable, "-c", start + code]
    return subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True)


@needs_compiler
class TestFaults:
    def test_the_chosen_call_fails_and_no_other(self, library: Path, tmp_path: Path) -> None:
        code = f"""
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
"""
        done = attack(library, tmp_path, code)
        assert done.stdout.split() == [str(errno.ENOSPC), "5", "1", "fsync", f"{tmp_path}/a"]

    def test_all_calls_fail_from_there_on(self, library: Path, tmp_path: Path) -> None:
        code = f"""
arm(folder, Strike(2, "from", {errno.EIO}))
for name in "abc":
    try:
        os.mkdir(folder + "/" + name)
    except OSError as error:
        print(name, error.errno)
"""
        assert attack(library, tmp_path, code).stdout.split() == ["b", str(errno.EIO), "c", str(errno.EIO)]

    def test_fewer_bytes_are_moved(self, library: Path, tmp_path: Path) -> None:
        code = """
file = os.open(folder + "/a", os.O_RDWR | os.O_CREAT)
arm(folder, Strike(1, "short"))
print(os.write(file, bytes(10)), os.write(file, bytes(10)))
"""
        assert attack(library, tmp_path, code).stdout.split() == ["5", "10"]

    def test_the_process_dies_before_the_call(self, library: Path, tmp_path: Path) -> None:
        code = """
arm(folder, Strike(2, "kill"))
os.mkdir(folder + "/a")
os.mkdir(folder + "/b")
"""
        assert attack(library, tmp_path, code).returncode == -signal.SIGKILL
        assert os.listdir(tmp_path) == ["a"]

    def test_a_signal_comes_with_the_call_which_succeeds(self, library: Path, tmp_path: Path) -> None:
        code = """
import signal
signal.signal(signal.SIGTERM, lambda *_: print("asked"))
arm(folder, Strike(2, "term"))
os.mkdir(folder + "/a")
os.mkdir(folder + "/b")
"""
        assert attack(library, tmp_path, code).stdout.split() == ["asked"]
        assert sorted(os.listdir(tmp_path)) == ["a", "b"]

    def test_calls_elsewhere_are_not_counted(self, library: Path, tmp_path: Path) -> None:
        (tmp_path / "in").mkdir()
        code = """
arm(folder + "/in", Strike(1, "from", 5))
os.mkdir(folder + "/inner")
os.chdir(folder)
os.close(os.open("b", os.O_WRONLY | os.O_CREAT))
print(faults.disarm())
"""
        assert attack(library, tmp_path, code).stdout.split() == ["0"]

    def test_a_file_without_a_name_and_a_relative_one_are_found(self, library: Path, tmp_path: Path) -> None:
        code = """
os.chdir(folder)
arm(folder, Strike(0))
os.close(os.open(folder, os.O_RDWR | os.O_TMPFILE))
os.close(os.open("a", os.O_RDWR | os.O_CREAT))
print(faults.disarm())
"""
        assert attack(library, tmp_path, code).stdout.split() == ["4"]

    def test_what_the_libraries_open_is_counted(self, library: Path, tmp_path: Path) -> None:
        code = """
import h5py, pyarrow, pyarrow.parquet
arm(folder, Strike(0))
h5py.File(folder + "/a.h5", "w").close()
first = faults.disarm()
arm(folder, Strike(0))
pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), folder + "/a.parquet")
print(first > 2, faults.disarm() > 2)
"""
        assert attack(library, tmp_path, code).stdout.split() == ["True", "True"]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


class TestServer:
    def test_a_run_ends_as_the_command_line_does(self, server: Server, tmp_path: Path) -> None:
        right = server.run(Request(("--version",)))
        wrong = server.run(Request((f"{tmp_path}/missing", "-o", f"{tmp_path}/out")))
        assert (right.code, wrong.code) == (0, 1)
        assert right.text.startswith("recshuf ")
        assert is_clean(wrong.text)

    @pytest.mark.parametrize("recipe", SMALL, ids=lambda recipe: recipe.name)
    def test_small_jobs_go_out_of_core_where_they_should(
        self, recipe: Recipe, server: Server, tmp_path: Path
    ) -> None:
        stage = Stage(tmp_path / "stage", recipe)
        ending = server.run(Request(stage.arguments(), recipe.numbers, damage=Damage("look")))
        files = {number for number, _ in ending.edges}
        assert len(files) == (recipe.files if recipe.numbers else 0)
        assert len(ending.edges) >= 6 * len(files)

    def test_damage_is_done_between_the_passes(self, server: Server, tmp_path: Path) -> None:
        stage = Stage(tmp_path / "stage", SMALL[1])
        ending = server.run(
            Request(stage.arguments(), stage.recipe.numbers, damage=Damage("cut", edge=(1, 10)))
        )
        assert ending.damaged.startswith("file 1 cut from")
        assert judge(stage, ending)[0] == "detected"


class TestJudge:
    @pytest.fixture
    def stage(self, tmp_path: Path) -> Stage:
        stage = Stage(tmp_path / "stage", SMALL[0])
        stage.after = {"a": "1", stage.manifest.name: "2"}
        return stage

    def test_success_without_output_is_silent(self, stage: Stage) -> None:
        assert judge(stage, Ending(0, ""))[0] == "silent"

    def test_half_an_output_is_silent(self, stage: Stage) -> None:
        stage.output.mkdir()
        assert judge(stage, Ending(1, "recshuf: error: no"))[0] == "silent"

    def test_changed_inputs_are_silent(self, stage: Stage) -> None:
        next(stage.inputs.iterdir()).write_bytes(b"")
        assert judge(stage, Ending(1, "recshuf: error: no"))[0] == "silent"

    @pytest.mark.parametrize(
        "text",
        [
            "Traceback (most recent call last):\nrecshuf: error: no",
            "recshuf: internal error: KeyError: 1",
            "",
            "recshuf: error: one\nrecshuf: error: two",
        ],
    )
    def test_no_clean_message_is_a_crash(self, stage: Stage, text: str) -> None:
        assert judge(stage, Ending(1, text))[0] == "crashed"

    def test_a_signal_is_a_crash(self, stage: Stage) -> None:
        assert judge(stage, Ending(-11, "recshuf: error: no"))[0] == "crashed"

    def test_a_clean_error_is_detected(self, stage: Stage) -> None:
        assert judge(stage, Ending(1, "recshuf: error: no"))[0] == "detected"


FOLDER = "/p/.out.recshuf/shards"
MANIFEST = f"{FOLDER}.recshuf.json"
GOOD = [
    f'7 openat(AT_FDCWD</w>, "{FOLDER}/a", O_WRONLY|O_CREAT, 0666) = 4<{FOLDER}/a>',
    f"8 write(4<{FOLDER}/a>, ..., 10) = 10",
    f"8 fsync(4<{FOLDER}/a> <unfinished ...>",
    f'7 openat(AT_FDCWD</w>, "{MANIFEST}", O_WRONLY|O_CREAT, 0666) = 5<{MANIFEST}>',
    f"7 write(5<{MANIFEST}>, ..., 10) = 10",
    f"7 fsync(5<{MANIFEST}>) = 0",
    "8 <... fsync resumed>) = 0",
    f"7 fsync(6<{FOLDER}>) = 0",
    f'7 renameat2(AT_FDCWD</w>, "{FOLDER}", AT_FDCWD</w>, "/p/out", RENAME_EXCHANGE) = 0',
    f'7 rename("{MANIFEST}", "/p/out.recshuf.json") = 0',
    "7 fsync(6</p>) = 0",
]


def find_faults(lines: list[str]) -> list[str]:
    checker = Checker(Path("/p/out"))
    for call in parse_trace(lines):
        checker.follow(call)
    return checker.finish()


class TestOrder:
    def test_everything_synced_in_time_is_right(self) -> None:
        assert find_faults(GOOD) == []

    @pytest.mark.parametrize("missing", ["fsync(4", "fsync(5", "fsync(6</p/.out", "fsync(6</p>"])
    def test_a_missing_sync_is_found(self, missing: str) -> None:
        lines = [line for line in GOOD if missing not in line and "resumed" not in line]
        if missing != "fsync(4":
            lines = [line for line in GOOD if missing not in line]
        assert find_faults(lines)

    def test_a_sync_that_comes_late_is_found(self) -> None:
        assert find_faults([*GOOD[:7], *GOOD[8:], GOOD[7]])

    def test_a_write_after_the_sync_is_found(self) -> None:
        assert find_faults([*GOOD[:7], GOOD[4], *GOOD[7:]])

    def test_a_sync_that_failed_is_none(self) -> None:
        failed = GOOD[5].replace("= 0", "= -1 EIO (Input/output error)")
        assert find_faults([*GOOD[:5], failed, *GOOD[6:]])

    def test_shards_after_the_manifest_are_found(self) -> None:
        assert find_faults([*GOOD[:8], GOOD[9], GOOD[8], GOOD[10]])

    def test_a_run_that_renames_nothing_is_found(self) -> None:
        assert find_faults([])


def test_no_attempt_is_no_success() -> None:
    assert not Tally("none").is_clean


@needs_compiler
def test_a_strike_says_what_it_does() -> None:
    assert str(Strike(3, "from", errno.EIO)) == "call 3, from, Input/output error"
