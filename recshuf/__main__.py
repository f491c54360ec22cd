"""Where a process of the command line begins: a signal ends it in one line while recshuf is imported, too."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn


def run() -> NoReturn:
    """Run the command line of this process, and end it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _stop)
    # Most of the time until a command begins goes into this.
    from recshuf.cli import run as run_command

    run_command()


def _stop(number: int, _: FrameType | None) -> NoReturn:
    """End the process. `main` has handlers of its own while there is something to clean up."""
    with suppress(OSError):
        os.write(2, f"recshuf: stopped by {signal.Signals(number).name}\n".encode())
    os._exit(128 + number)


def _is_nested() -> bool:
    """Tell whether a program runs this as a module, by `runpy` or `%run -m` in a notebook, and goes on after it."""
    try:
        sys._getframe(4)  # noqa: SLF001 - below `python -m` there are this function, the module and two frames of runpy
    except ValueError:
        return False
    return True


if __name__ == "__main__":
    if _is_nested():
        from recshuf.cli import main

        sys.exit(main())
    run()
