"""Object stores that inputs are read from, and requests: tried again when they fail, counted, and explained for good."""

from __future__ import annotations

import random
import re
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from recshuf.dataclass import dataclass
from recshuf.errors import (
    ForbiddenInputError,
    InputError,
    MissingInputError,
    OutputError,
    RecshufError,
    UnavailableInputError,
)
from recshuf.system.threads import NoAnswerError, Pool, call_while_stopping
from recshuf.system.units import count_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from _typeshed import ReadableBuffer

    from recshuf.interfaces import Stamp

    Warn = Callable[[str], None]
    Translate = Callable[[Exception], Exception]
    """Returns what an error of a library says, or the error."""


T = TypeVar("T")
Item = TypeVar("Item")
ATTEMPTS = 8
"""Of each request."""
FIRST_PAUSE_SECONDS = 0.2
"""Pause after the first failure; it doubles, and is up to half longer or shorter."""
_SAID_ATTEMPT = 1
"""The attempt, numbered from 0, after whose failure the wait is said: about 0.2 s after the first one."""
_WAITS = f"waits, and tries again up to {ATTEMPTS} times"
_STEP_SECONDS = 0.1
_AT_ONCE = 16
"""Requests at once that wait for the store, and not for data."""
HURRIED_SECONDS = (5, 10)
"""Limits for a connection and for a reply where a store that does not answer is told soon."""
SILENCE_SECONDS = 30.0
"""So long after the begin of a request the wait is said where outputs are written, whose stores may be busy for a moment."""
PATIENCE_SECONDS = 11.0
"""So long after its begin a request that got no answer is tried again there."""
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z0-9.]+)</Code>")
_PASSING_STATUS = (408, 425, 429)
_PASSING_CODES = ("RequestTimeout", "SlowDown", "Throttling", "RequestLimitExceeded")
"""Of answers whose status is final."""
_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "RequestExpired", "InvalidToken", "TokenRefreshRequired")
_FORBIDDEN = ("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "AllAccessDisabled")
NO_BUCKET = {"NoSuchBucket": "bucket", "ContainerNotFound": "container"}
"""What is missing, by codes."""
OTHER_REGION = ("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException")
_SKEWED = "RequestTimeTooSkewed"
UNREACHED_REMEDY = "check the endpoint URL and the network, or run again later"
_PLACES = {"hf": "the endpoint URL, HF_ENDPOINT", "http": "the URL", "https": "the URL"}
"""What to check in place of the endpoint URL, by schemes."""
REDIRECTS = (301, 302, 307)
_NO_LOCATION = "redirect without LOCATION"
"""What obstore says of a redirect that names no other server."""
_NOT_IMPLEMENTED = 501
_FINAL_STATUS = (*REDIRECTS, *range(400, 500), _NOT_IMPLEMENTED)
CHANGED = "changed while it was read"
REMEDY = "run again when nobody writes to it"


class Entry(NamedTuple):
    """An object in a listing."""

    key: str
    stamp: Stamp


def is_strong(etag: str) -> bool:
    """Tell whether a request can demand this ETag: it is known, and not weak."""
    return bool(etag) and not etag.startswith("W/")


def compare_weakly(now: Stamp, before: Stamp) -> str | None:
    """Describe the difference from an earlier stamp; of weak ETags that are equal, times may say more.

    >>> from recshuf.interfaces import Stamp
    >>> [compare_weakly(Stamp(1, 2, etag=etag), Stamp(1, 3, etag=etag)) is None for etag in ('"a"', 'W/"a"')]
    [True, False]
    """
    is_weak = not (is_strong(now.etag) and is_strong(before.etag))
    if is_weak and now.etag.removeprefix("W/") == before.etag.removeprefix("W/"):
        now = now._replace(etag="")
    return now.find_change(before)


class Finding(Exception):  # noqa: N818 - no failure of its own
    """What an answer says about an object, so that no other attempt is made. Never reaches the user."""


class ChangedObject(Finding):
    """An object has another ETag than it had."""


class MissingObject(Finding):
    """There is no object at a key."""


class Answer(Exception):  # noqa: N818 - becomes an error of a user
    """An answer that is an error; the code is what the store calls it, if it says so. Never reaches the user."""

    def __init__(self, status: int, text: str, code: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.code = code


class ShortBody(Exception):  # noqa: N818 - no failure of its own
    """A reply has fewer bytes than were asked for. Never reaches the user."""


class Store(Protocol):
    """A bucket, or all of a scheme. Many threads may use it.

    Every method raises an `InputError` that names the object when a request fails for good.
    """

    requests: Requests
    is_bound: bool
    """Whether `get` compares strong ETags."""

    def find(self, key: str) -> Stamp | None:
        """Return the stamp of an object; None if there is none."""
        ...

    def list(self, prefix: str) -> list[Entry]:
        """Return all objects below a prefix, which is empty or ends with a slash."""
        ...

    def get(self, key: str, begin: int, end: int, stamp: Stamp) -> ReadableBuffer:
        """Return bytes ``begin:end`` of an object.

        `ChangedObject` says that it has another stamp, as far as the store can tell; `MissingObject`, that it is gone.
        """
        ...


@dataclass(frozen=True, slots=True)
class Failure:
    """What a store answered, as far as the message of its library tells."""

    status: int | None
    code: str
    text: str

    @classmethod
    def of(cls, error: Exception) -> Failure:
        text = str(error).partition("\n\nDebug source")[0]
        status, code = _STATUS.search(text), _CODE.search(str(error))
        # Libraries give the status, or the response that has it.
        known = getattr(error, "status", getattr(getattr(error, "response", None), "status_code", None))
        named = error.code if isinstance(error, Answer) else ""
        if _NO_LOCATION in text:
            known = REDIRECTS[0]
        return cls(int(status[1]) if status else known, code[1] if code else named, " ".join(text.split()))

    @property
    def may_pass(self) -> bool:
        """Whether the request may succeed if it is tried again."""
        if self.status in _PASSING_STATUS or self.code in _PASSING_CODES:
            return True
        return self.status is None or self.status not in _FINAL_STATUS

    def explain(self, name: str, attempts: str = f"{ATTEMPTS} attempts") -> InputError:
        """Return the error for a user; the request was made so often if its failure may pass."""
        said = f"({self.code or self.status})"
        kind: type[InputError] = UnavailableInputError
        if self.code in _EXPIRED:
            problem, remedy = f"the credentials have expired {said}", "renew them, and run again"
        elif self.code in OTHER_REGION or self.status in REDIRECTS:
            problem = f"the bucket is in another region {said}"
            remedy = "set AWS_REGION, or check the endpoint URL"
        elif self.code == _SKEWED:
            problem = f"the clock of this machine is wrong, says the store {said}"
            remedy = "set the clock of this machine"
        elif self.status == _NOT_IMPLEMENTED:
            problem, remedy = f"the store does not support this request {said}", "check the endpoint URL"
        elif self.code in _FORBIDDEN or self.status in (401, 403):
            kind = ForbiddenInputError
            problem, remedy = f"access is denied {said}", "check the credentials and the policy of the bucket"
        elif self.code in NO_BUCKET:
            kind, name = MissingInputError, "/".join(name.split("/")[:3])
            problem, remedy = f"there is no such {NO_BUCKET[self.code]}", "check the name"
        elif self.status is None:
            problem = f"the store cannot be reached: {self.text[:300]}, after {attempts}"
            place = _PLACES.get(name.partition(":")[0], "the endpoint URL")
            remedy = UNREACHED_REMEDY.replace("the endpoint URL", place)
        elif self.may_pass:
            problem, remedy = f"the store is busy {said}, after {attempts}", "run again later"
        else:
            problem = f"the store answers {said[1:-1]}: {self.text[:300]}"
            place = "the URL" if name.startswith("http") else "the URL, the endpoint URL and the credentials"
            remedy = f"check {place}, or run again later"
        return kind(name, problem, remedy=remedy)


class Requests:
    """Counts requests, and tries failed ones again. Many threads may use it."""

    def __init__(self) -> None:
        self.count = 0
        """Requests made, with `retries`."""
        self.retries = 0
        self.read_sizes: list[int] = []
        """Bytes of each reply that holds data."""
        self.patience = float("inf")
        """So many seconds after its begin a request that got no answer is tried again."""
        self.warn: Warn | None = None
        """Gets a line, once, when a request has failed twice."""
        self.warn_late: Warn | None = None
        """Gets a line, once, when a store has not given its first answer for `SILENCE_SECONDS`, or a request failed as long."""
        self._is_heard = False
        self._lock = threading.Lock()

    def call(self, name: str, request: Callable[[], T], translate: Translate | None = None) -> T:
        """Return the result of a request about an object called `name`; a run that a signal has stopped waits briefly.

        It raises an `InputError` when it fails for good, and a `Finding` as `request` raises it, or `translate` makes it of an
        error of a library.
        """
        try:
            with self._watching(name):
                return call_while_stopping(lambda: self._try(name, request, translate))
        except NoAnswerError as error:
            raise UnavailableInputError(name, str(error)) from error

    @contextmanager
    def _watching(self, name: str) -> Iterator[None]:
        """Say it if the store gives no first answer for long: attempts may wait for minutes each."""
        if self._is_heard or self.warn_late is None:
            yield
            return
        silent = f"{name}: the store has not answered for {SILENCE_SECONDS:.0f} seconds"
        timer = threading.Timer(SILENCE_SECONDS, self._say_late, [silent])
        timer.daemon = True
        timer.start()
        try:
            yield
            self._is_heard = True
        finally:
            timer.cancel()

    def _try(self, name: str, request: Callable[[], T], translate: Translate | None) -> T:
        begun = time.monotonic()
        for attempt in range(ATTEMPTS):
            with self._lock:
                self.count += 1
                self.retries += attempt > 0
            try:
                return request()
            except (RecshufError, Finding):
                raise
            except Exception as error:
                told = error if translate is None else translate(error)
                if isinstance(told, RecshufError | Finding):
                    raise told from error
                failure = Failure.of(told)
                self._is_heard |= failure.status is not None
                is_late = failure.status is None and time.monotonic() - begun > self.patience
                if not failure.may_pass or attempt == ATTEMPTS - 1 or is_late:
                    raise failure.explain(name, f"{attempt + 1} attempts") from error
                if attempt == _SAID_ATTEMPT:
                    self._say_waiting(name, failure)
                if time.monotonic() - begun > SILENCE_SECONDS:
                    self._say_late(failure.explain(name, count_of(attempt + 1, "attempt")).reason)
            pause(attempt)
        raise RuntimeError("unreachable")

    def _say_waiting(self, name: str, failure: Failure) -> None:
        with self._lock:
            warn, self.warn = self.warn, None
        if warn is not None:
            reason = failure.explain(name, f"{_SAID_ATTEMPT + 1} attempts").reason
            warn(f"{reason}; {_WAITS}")

    def _say_late(self, reason: str) -> None:
        with self._lock:
            warn, self.warn_late = self.warn_late, None
        if warn is not None:
            warn(f"{reason}; {_WAITS}")

    def call_for_output(self, name: str, request: Callable[[], T], translate: Translate | None = None) -> T:
        """Do what `call` does, and raise an `OutputError` in place of an `InputError`."""
        try:
            return self.call(name, request, translate)
        except InputError as error:
            raise OutputError(str(error)) from error


def ask_at_once(ask: Callable[[Item], T], items: Iterable[Item]) -> list[T]:
    """Return what the requests about some items give, many of which are made at once."""
    with Pool(_AT_ONCE, "ask") as pool:
        return list(pool.map(ask, items))


def pause(attempt: int) -> None:
    """Wait after an attempt, numbered from 0, that has failed; a thread that outlives the main one fails in place of it."""
    seconds = FIRST_PAUSE_SECONDS * 2**attempt * (0.5 + random.random())  # noqa: S311 - no secret
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if not threading.main_thread().is_alive():
            raise RuntimeError("the process ends")
        time.sleep(min(left, _STEP_SECONDS))
