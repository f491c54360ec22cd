"""Runs one command and prints what it took, as JSON; `benchmarks.measure` starts it.

It is a small process of its own, since the kernel counts the memory of the process that starts a command as that
command's: no peak is below this one's, about 15 MB. Children that outlive the command come to this process, which
adds their share and ends them.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PR_SET_CHILD_SUBREAPER = 36
SECONDS_TO_END = 5
"""What the children of a command may still take when it has ended."""


def main() -> None:
    """Run the command that the only argument tells of."""
    given = json.loads(sys.argv[1])
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGALRM, stop_waiting)
    if given["cores"]:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: given["cores"]])
    before = read_io()
    figures = run(given)
    end_children(0 if figures["code"] is None else SECONDS_TO_END)
    after = read_io()
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    figures["cpu_seconds"] = usage.ru_utime + usage.ru_stime
    figures["peak_bytes"] = usage.ru_maxrss * 1024
    for figure, name in [
        ("read_bytes", "rchar"),
        ("written_bytes", "wchar"),
        ("disk_read_bytes", "read_bytes"),
        ("disk_written_bytes", "write_bytes"),
    ]:
        figures[figure] = after[name] - before[name]
    print(json.dumps(figures))


def stop_waiting(*_: Any) -> None:
    """End a wait that took too long."""
    raise TimeoutError


def run(given: dict[str, Any]) -> dict[str, Any]:
    """Return wall seconds and exit code, which is None where the limit was passed."""
    with contextlib.ExitStack() as stack:
        stdin, stdout, stderr = (
            stack.enter_context(Path(given[name]).open(mode)) if given[name] else subprocess.DEVNULL
            for name, mode in [("stdin", "rb"), ("stdout", "wb"), ("stderr", "wb")]
        )
        environment = os.environ | given["environment"]
        group = given["group"] and Path(given["group"], "cgroup.procs")
        started = time.perf_counter()
        process = subprocess.Popen(
            given["command"],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=environment,
            start_new_session=True,
            preexec_fn=(lambda: group.write_text("0"))
            if group
            else None,  # its memory alone counts, not this one's
        )
        try:
            code = wait(process, given["limit_seconds"])
        finally:
            seconds = time.perf_counter() - started
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return {"seconds": seconds, "code": code}


def wait(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Return the exit code of a process, or None where it is still running."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return process.wait()  # its own time limit would look again and again, up to 50 ms late
    except TimeoutError:
        return None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def end_children(seconds: float) -> None:
    """Wait for all children, and end those that take longer."""
    last = time.monotonic() + seconds
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid:
                continue
            if time.monotonic() > last:
                for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
                    os.kill(int(child), signal.SIGKILL)
            time.sleep(0.01)


def read_io() -> dict[str, int]:
    """Return the bytes that this process and its ended children have read and written."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return {name: int(count) for name, count in (line.split(": ") for line in lines)}


if __name__ == "__main__":
    main()
