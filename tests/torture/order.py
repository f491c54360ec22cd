"""In which order a run syncs and renames, from a trace of its system calls.

A crash of the machine loses what was not synced, and keeps renames in any order that syncs do not forbid. So what
comes to lie under the output's name must be synced before it is renamed, the folder it stands in as well, the folder
that got the name after that, and the manifest comes last.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recshuf.output.manifest import manifest_path
from tests.support.processes.command_server import PROJECT, Ended, Server
from tests.support.tally import Tally
from tests.torture.jobs import MIDDLE, CannotAttackError, Choice, Stage, make_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

TRACED = (
    "open,openat,creat,mkdir,mkdirat,write,pwrite64,writev,pwritev,pwritev2,ftruncate,fallocate,sendfile,"
    "fsync,fdatasync,rename,renameat,renameat2,link,linkat"
)

_LINE = re.compile(r"^(?:\d+ +)?(\w+)\((.*)\) += (-?\d+)(?:<([^>]*)>)?")
_DESCRIPTOR = re.compile(r"^\d+<(.*?)>(?:\(deleted\))?(?:,|$)")
_UNFINISHED = re.compile(r"^(\d+) +(.*) <unfinished \.\.\.>$")
_RESUMED = re.compile(r"^(\d+) +<\.\.\. \w+ resumed>(.*)$")


@dataclass(frozen=True)
class Call:
    """One system call that succeeded."""

    name: str
    paths: tuple[str, ...]
    """What it is about: one path, or for a rename the old and the new one."""
    exchanges: bool = False


def parse_trace(lines: list[str]) -> Iterator[Call]:
    """Yield the calls of a trace made with ``-f -y``, in the order in which they returned."""
    unfinished: dict[str, str] = {}
    for line in lines:
        if begun := _UNFINISHED.match(line):
            unfinished[begun[1]] = begun[2]
            continue
        if rest := _RESUMED.match(line):
            line = f"{rest[1]} {unfinished.pop(rest[1])}{rest[2]}"
        found = _LINE.match(line)
        if found is None or int(found[3]) < 0:
            continue
        name, arguments = found[1], found[2]
        if name.startswith(("rename", "link")):
            yield Call(name.rstrip("at2"), tuple(_find_names(arguments)), "RENAME_EXCHANGE" in arguments)
        elif name.startswith("mkdir"):
            yield Call("create", tuple(_find_names(arguments)))
        elif "O_CREAT" in arguments:
            yield Call("create", (found[4] or "",))
        elif descriptor := _DESCRIPTOR.match(arguments):
            yield Call("fsync" if name in ("fsync", "fdatasync") else "write", (descriptor[1],))


def _find_names(arguments: str) -> Iterator[str]:
    """Yield the paths among the arguments of a call on names, each with the folder it is relative to."""
    at = r'(?:(?:AT_FDCWD|\d+)(?:<([^>]*)>)?, )?"((?:[^"\\]|\\.)*)"'
    for base, name in re.findall(at, arguments):
        yield os.path.normpath(Path(base or "/") / name)


class Checker:
    """Follows a trace, and notes what could be lost."""

    def __init__(self, output: Path) -> None:
        self.output = str(output)
        self._manifest = str(manifest_path(output))
        self.faults: list[str] = []
        self._written: set[str] = set()
        """Files with bytes that are not synced."""
        self._changed: set[str] = set()
        """Folders with names that are not synced."""
        self._arrived: list[str] = []
        """What has got a name at or in the output."""

    def follow(self, call: Call) -> None:
        """Take the next call."""
        if call.name == "fsync":
            self._written.discard(call.paths[0])
            self._changed.discard(call.paths[0])
        elif call.name == "create":
            self._changed.add(str(Path(call.paths[0]).parent))
        elif call.name in ("rename", "link"):
            self._rename(*call.paths, exchanges=call.exchanges)
        else:
            self._written.add(call.paths[0])

    def _rename(self, old: str, new: str, *, exchanges: bool) -> None:
        if _is_in(new, self.output) or new == self._manifest:
            self._arrive(old, new)
        if not exchanges:
            self._written = {_move(path, old, new) for path in self._written}
            self._changed = {_move(path, old, new) for path in self._changed}
        self._changed |= {str(Path(new).parent), str(Path(old).parent)}

    def _arrive(self, old: str, new: str) -> None:
        for unsynced, what in ((self._written, "bytes"), (self._changed, "names")):
            late = sorted(path for path in unsynced if _is_in(path, old))
            self.faults += [f"{path} comes to {new}, its {what} not synced" for path in late]
        if self._arrived and self._arrived[-1] == self._manifest:
            self.faults.append(f"{new} comes after the manifest")
        self._arrived.append(new)

    def finish(self) -> list[str]:
        """Return all faults, at the end of the run."""
        if not self._arrived:
            self.faults.append("nothing was renamed to the output")
        folders = {self.output, str(Path(self.output).parent)} & self._changed
        return self.faults + [
            f"folder {path} is not synced after the last rename" for path in sorted(folders)
        ]


def _move(path: str, old: str, new: str) -> str:
    return new + path.removeprefix(old) if _is_in(path, old) else path


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")


class _TracedStage(Stage):
    """Runs the command in a process of its own, perhaps within a tracer."""

    def run(self, arguments: tuple[str, ...] | None = None, *_: Any, wrapper: Any = (), **__: Any) -> Ended:
        given = self.arguments() if arguments is None else arguments
        command = [*wrapper, sys.executable, "-m", "recshuf", *given]
        done = subprocess.run(command, cwd=PROJECT, capture_output=True)
        return Ended(done.returncode, done.stderr.decode(errors="replace"))


def attack_order(folder: Path, choice: Choice) -> list[Tally]:
    """Return a tally: a run for each format, new and over an old output, is right if its trace is."""
    if shutil.which("strace") is None:
        raise CannotAttackError("there is no strace")
    done = subprocess.run(["strace", "-o", os.devnull, "true"], capture_output=True)
    if done.returncode:
        raise CannotAttackError(f"strace may not trace: {done.stderr.decode()[:200]}")
    tally = Tally("sync order")
    recipes = MIDDLE if choice.is_long else (MIDDLE[0], MIDDLE[-1])
    for index, recipe in enumerate(recipes):
        # A command line of its own: no numbers can be overruled.
        small = replace(recipe, rows=1_000, numbers={})
        stage = _TracedStage(make_folder(folder / f"order-{index}") / "stage", small, Server())
        stage.prepare()
        for overwrites in (False, True):
            stage.reset(overwrites=overwrites)
            name = f"{recipe.name}, {'over an old output' if overwrites else 'new'}"
            if not choice.wants(f"{tally.name}: {name}"):
                continue
            faults = trace_run(stage, stage.folder.parent / "trace")
            tally.add("silent" if faults else "right", f"{name}: {'; '.join(faults[:4])}")
    return [tally]


def trace_run(stage: Stage, trace: Path) -> list[str]:
    """Run a job under strace, and return what is wrong with the order of its calls."""
    options = ("-f", "-y", "-s", "0", "-e", f"trace={TRACED}", "-e", "signal=none", "-o", str(trace))
    ended = stage.run(wrapper=("strace", *options))
    if ended.status or stage.state() != stage.after:
        return [f"the run failed: {ended.stderr}"]
    checker = Checker(stage.output)
    for call in parse_trace(trace.read_text(errors="surrogateescape").splitlines()):
        checker.follow(call)
    return checker.finish()
