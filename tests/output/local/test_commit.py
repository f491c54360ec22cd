"""The commit: all or nothing, and the manifest last."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import recshuf
from recshuf.errors import OutputError
from tests.support.numbered_files import make_inputs
from tests.support.processes.killed_runs import Killed, die, run, strike_renames
from tests.support.processes.task_runs import HARMS
from tests.support.small_runs import read_files


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    """Return inputs, whose output of a seed is in `whole`."""
    inputs = make_inputs(tmp_path / "in", "text", (60, 40))
    run(inputs, tmp_path / "whole")
    return inputs


def test_a_link_keeps_pointing_to_the_file_it_names(tmp_path: Path, inputs: list[Path]):
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to("real.txt")
    recshuf.shuffle(inputs, tmp_path / "link.txt", overwrite=True)
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_bytes().count(b"\n") == 100


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_directory_that_is_replaced_keeps_its_permissions(
    tmp_path: Path, inputs: list[Path], is_empty: bool
):
    if is_empty:
        (tmp_path / "out").mkdir()
    else:
        run(inputs, tmp_path / "out", shards=5, compression="gzip")
    (tmp_path / "out").chmod(0o751)
    run(inputs, tmp_path / "out", overwrite=not is_empty)
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o751
    assert read_files(tmp_path / "out") == read_files(tmp_path / "whole")


def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path: Path, inputs: list[Path]):
    output = tmp_path / "out.txt"
    output.touch(0o600)
    recshuf.shuffle(inputs, output, overwrite=True)
    assert output.stat().st_mode & 0o777 == 0o600
    assert output.read_bytes().count(b"\n") == 100


# Every step of it fails, is interrupted, or is the last


def fail() -> None:
    raise OSError(errno.EIO, "Input/output error")


def end() -> None:
    os._exit(7)


@pytest.mark.parametrize(
    ("exchanges", "step", "strike", "late"),
    [
        # Both folders and the manifest
        (True, 0, fail, False),
        (True, 0, end, True),
        (True, 1, die, True),
        # The old folder, the new one, and the manifest
        (False, 0, die, True),
        (False, 1, fail, False),
        (False, 2, die, True),
        (False, 2, end, False),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                *((True, 1, end, False), (True, 0, end, False), (False, 0, die, False)),
                *((False, 0, end, True), (False, 1, end, True)),
            )
        ),
    ],
)
def test_a_commit_that_does_not_end_leaves_a_whole_folder_and_is_completed(
    tmp_path: Path, inputs: list[Path], exchanges: bool, step: int, strike: Callable[[], None], late: bool
):
    run(inputs, tmp_path / "out", shards=5, compression="gzip")
    before, whole = read_files(tmp_path / "out"), read_files(tmp_path / "whole")

    def commit() -> None:
        with pytest.MonkeyPatch.context() as patch:
            strike_renames(patch, step, strike, late=late, exchanges=exchanges)
            run(inputs, tmp_path / "out", overwrite=True)

    if strike is end:
        child = os.fork()
        if not child:
            commit()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    else:
        with pytest.raises(OutputError if strike is fail else Killed):
            commit()
    if (exchanges, step, late) != (False, 0, True):  # the old folder has just been moved
        assert read_files(tmp_path / "out") in (before, whole)
    run(inputs, tmp_path / "out", overwrite=True, resume=True)
    assert read_files(tmp_path / "out") == whole
    assert (tmp_path / ".out.recshuf.json").read_bytes() == (tmp_path / ".whole.recshuf.json").read_bytes()
    assert sorted(os.listdir(tmp_path)) == [".out.recshuf.json", ".whole.recshuf.json", "in", "out", "whole"]


@pytest.mark.parametrize("harm", [None, *HARMS])
def test_what_is_in_place_after_a_commit_is_complete_unless_a_shard_has_changed_since(
    tmp_path: Path, inputs: list[Path], harm: str | None
):
    """The run was killed when everything was in place."""
    with pytest.MonkeyPatch.context() as patch:
        strike_renames(patch, 1, die, late=True)
        with pytest.raises(Killed):
            run(inputs, tmp_path / "out")
    shard = tmp_path / "out" / "shard-00001.txt"
    before = shard.stat().st_ino
    if harm is None:
        run(inputs, tmp_path / "out", resume=True)
        assert shard.stat().st_ino == before
        assert read_files(tmp_path / "out") == read_files(tmp_path / "whole")
    else:
        HARMS[harm](shard)
        said = r"out: is complete, but shard-00001\.txt has changed since; delete .*recshuf"
        with pytest.raises(OutputError, match=said):
            run(inputs, tmp_path / "out", resume=True)
    assert (tmp_path / ".out.recshuf").exists() == (harm is not None)
