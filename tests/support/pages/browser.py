"""A headless Chromium, spoken to over a pipe in the protocol of its developer tools."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
PATIENCE_S = 60
CLOSING_S = 10
FLAGS = (
    "--headless",
    "--no-sandbox",  # which does not work for root, nor in many containers
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)

Message = dict[str, Any]


class BrowserError(Exception):
    """The browser is not there, does not start, does not answer, or refuses what it is asked for."""


def find_browser() -> str:
    """Return the path of a Chromium."""
    for program in PROGRAMS:
        if found := shutil.which(program):
            return found
    raise BrowserError(f"no browser: none of {', '.join(PROGRAMS)} is on PATH")


class Browser:
    """One browser with one tab; leaving the context ends it and removes what it wrote."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="recshuf-browser-")
        self._log = Path(self.folder, "log")
        self._number = 0
        self._pending = b""
        self._session = ""
        self.events: list[Message] = []
        try:
            self._process = self._start()
            try:
                self._open_tab()
            except BaseException as error:
                self._end()
                said = self._log.read_text(errors="replace")[-500:]
                raise BrowserError(f"the browser does not start: {error}; it said: {said}") from error
        except BaseException:
            self._forget()
            raise

    def _start(self) -> subprocess.Popen[bytes]:
        # The protocol is on the descriptors 3 and 4, which the shell makes of its own input and output.
        command = ["/bin/sh", "-c", 'exec "$0" "$@" 3<&0 4>&1 </dev/null >&2', find_browser(), *FLAGS]
        command += [f"--user-data-dir={self.folder}/profile", "about:blank"]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
        with self._log.open("wb") as log:
            return subprocess.Popen(command, stderr=log, env=os.environ | {"HOME": self.folder}, **pipes)

    def _open_tab(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime", "Accessibility"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._forget()

    def _end(self) -> None:
        with suppress(BrowserError):
            self._session = ""
            self.call("Browser.close")  # which takes its own processes along
        try:
            self._process.wait(CLOSING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _forget(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def call(self, method: str, **parameters: Any) -> Message:
        """Return the browser's answer; what it tells meanwhile is added to `events`."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\0")
        except OSError as error:
            raise BrowserError(f"the browser has ended: {error}") from error
        while (answer := self._read()).get("id") != self._number:
            self.events.append(answer)
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']}")
        result: Message = answer["result"]
        return result

    def wait_for(self, method: str) -> None:
        """Return when an event of that name has come."""
        while not self.find_events(method):
            message = self._read()
            assert "id" not in message
            self.events.append(message)

    def find_events(self, method: str) -> list[Message]:
        """Return the parameters of the events of that name since the page was opened."""
        return [event["params"] for event in self.events if event["method"] == method]

    def _read(self) -> Message:
        assert self._process.stdout is not None
        end = time.monotonic() + PATIENCE_S
        while b"\0" not in self._pending:
            if not select.select([self._process.stdout], [], [], max(0, end - time.monotonic()))[0]:
                raise BrowserError(f"the browser does not answer for {PATIENCE_S} s")
            if not (read := os.read(self._process.stdout.fileno(), 1 << 20)):
                raise BrowserError("the browser has ended")
            self._pending += read
        first, _, self._pending = self._pending.partition(b"\0")
        message: Message = json.loads(first)
        return message

    def show(self, width: int, *, is_dark: bool = False, media: str = "screen") -> None:
        """Make the window so wide, like a phone where it is narrow, on paper or on a screen, dark or light."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=800,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])

    def open(self, path: Path) -> None:
        """Load a file; events of the page before are forgotten."""
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        self.wait_for("Page.loadEventFired")

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript, or what it promises, on the page."""
        done = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            raise BrowserError(str(done["exceptionDetails"]))
        return done["result"].get("value")

    def draw(self) -> bytes:
        """Return a PNG of the whole page."""
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"])
