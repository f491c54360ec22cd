"""The library that makes system calls fail: how it is built, and how a process that has loaded it arms it."""

import ctypes
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("faults.c")
MODES = ("once", "from", "short", "kill", "term")
"""Fail one call; fail it and all after it; move fewer bytes than asked; before it, kill the process or ask it to end."""


@dataclass(frozen=True)
class Strike:
    """What is to happen to which call."""

    call: int
    """Number of the call, from 1; 0 strikes none, and only counts."""
    mode: str = "once"
    error: int = 0
    """The errno of a call that fails."""

    def __str__(self) -> str:
        error = os.strerror(self.error) if self.error else "no error"
        return f"call {self.call}, {self.mode}, {error}"


def find_compiler() -> str | None:
    """Return a C compiler; None where there is none."""
    return next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)


def build_faults(folder: Path) -> Path:
    """Compile the library into a folder, and return its path."""
    library = folder / "faults.so"
    compiler = find_compiler()
    assert compiler is not None, "there is no C compiler"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
    return library


class Faults:
    """The library as this process has loaded it, by ``LD_PRELOAD``."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        self._library.faults_struck.restype = ctypes.c_char_p
        self._library.faults_fired.restype = self._library.faults_disarm.restype = ctypes.c_long

    def arm(self, folder: str, strike: Strike) -> None:
        """Begin to count the calls that concern files under a folder, from now on."""
        mode = MODES.index(strike.mode)
        self._library.faults_arm(os.fsencode(folder), ctypes.c_long(strike.call), mode, strike.error)

    def disarm(self) -> int:
        """Stop, and return the number of calls."""
        return int(self._library.faults_disarm())

    def struck(self) -> tuple[int, str]:
        """Return how many calls were struck, and which was the first."""
        return int(self._library.faults_fired()), os.fsdecode(self._library.faults_struck())
