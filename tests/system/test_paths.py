"""Where large temporary files go, and errors in writing: what failed, what room there is, and what the user can do."""

import errno
import os
import tempfile
from pathlib import Path

import pytest

import recshuf.system.paths as paths
from recshuf.errors import DiskFullError, OutputError
from recshuf.system.paths import choose_temp_dir, write_error


def fail_with(code: int) -> OSError:
    return OSError(code, os.strerror(code))


@pytest.mark.parametrize(
    ("code", "free", "needed", "room"),
    [
        (errno.ENOSPC, 5_000_000, 7_000_000, " (about 7 MB needed in all, 5 MB free)"),
        (errno.EDQUOT, 5_000_000, 0, " (5 MB free)"),
        (errno.ENOSPC, None, 7_000_000, " (about 7 MB needed in all)"),
        (errno.EDQUOT, None, None, ""),
    ],
)
def test_a_full_disk_says_what_is_needed_and_free(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    free: int | None,
    needed: int | None,
    room: str,
):
    monkeypatch.setattr(paths, "free_bytes", lambda _: free)
    error = write_error(fail_with(code), "out", tmp_path, needed)
    assert isinstance(error, DiskFullError)
    assert str(error) == f"out: no space left for the output{room}; free some, or choose another"


def test_other_errors_are_told_by_their_kind():
    too_large = write_error(fail_with(errno.EFBIG), "out")
    assert isinstance(too_large, DiskFullError)
    assert str(too_large).endswith("; raise ulimit -f, or start anew with more shards")
    other = write_error(fail_with(errno.EIO), "out")
    assert not isinstance(other, DiskFullError)
    assert str(other) == "out: cannot be written: Input/output error"
    own = OutputError("said already")
    assert write_error(own, "out") is own


@pytest.fixture
def writable(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The only folders that may be written to."""
    folders: set[str] = set()
    monkeypatch.setattr(os, "access", lambda path, _: str(path) in folders)
    return folders


def test_a_folder_asked_for_comes_before_that_of_the_output_and_of_the_system(
    tmp_path: Path, writable: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = tmp_path / "beside"
    assert choose_temp_dir(tmp_path, beside) == tmp_path
    assert choose_temp_dir(None, beside) == beside
    monkeypatch.delenv("TMPDIR", raising=False)
    assert choose_temp_dir(None) == Path(tempfile.gettempdir())
    writable.add("/var/tmp")
    assert choose_temp_dir(None) == Path("/var/tmp")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert choose_temp_dir(None) == tmp_path


@pytest.mark.parametrize("asks", [True, False], ids=["--temp-dir", "TMPDIR"])
def test_the_folder_that_is_used_must_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asks: bool
) -> None:
    (tmp_path / "file").touch()
    option, none = "--temp-dir" if asks else "TMPDIR", "no such directory; create it, or"
    for name, problem in (
        ("gone", f"gone: {none}"),
        ("x" * 300, f"xxx: {none}"),
        *(
            (given, "/file: is a file, not a directory;")
            for given in ("file", "file/below", "file/far/below")
        ),
    ):
        monkeypatch.setenv("TMPDIR", str(tmp_path if asks else tmp_path / name))
        assert choose_temp_dir(tmp_path) == choose_temp_dir(None, tmp_path) == tmp_path
        with pytest.raises(OutputError, match=rf"{problem} choose another {option}$"):
            choose_temp_dir(tmp_path / name if asks else None)
