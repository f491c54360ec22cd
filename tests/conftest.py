"""Fixtures shared by all tests."""

import functools
import gc
import io
import os
import shutil
import signal
import stat
import subprocess
import sys
import uuid
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import hypothesis
import pytest

# An eighth of the time of the tests would go into collections of garbage; each module has one of its own.
gc.set_threshold(100_000, 20, 20)

PROJECT = Path(__file__).resolve().parent.parent

IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ

# `tests.*` and `benchmarks.*` come from the checkout; recshuf itself from wherever it is installed.
if str(PROJECT) not in sys.path:
    sys.path.append(str(PROJECT))

pytest.register_assert_rewrite("tests.support")

from recshuf.storage import s3_session  # noqa: E402
from recshuf.system import memory  # noqa: E402
from tests.support.effort import TRIES_ALL, examples  # noqa: E402
from tests.support.objects.object_server import CREDENTIALS, Bucket, FaultProxy, ObjectServer  # noqa: E402
from tests.support.objects.other_buckets import (  # noqa: E402  # noqa: E402
    ACCOUNT,
    ACCOUNT_KEY,
    AzureTestBucket,
    GcsTestBucket,
    find_azurite,
    serve_azure,
    serve_gcs,
)
from tests.support.objects.s3_server import S3Server  # noqa: E402

# Under nohup or in the background of a script the tests start with signals ignored, and so would their children.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)


def _sync_devices(file: Any, sync: Callable[[Any], None] = os.fsync) -> None:
    """Wait for no disk; tests of what outlasts a loss of power look at the calls of other processes."""
    mode = os.fstat(file if isinstance(file, int) else file.fileno()).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        sync(file)


if not TRIES_ALL:
    os.fsync = _sync_devices

# A sixth of the time of a small run goes into files of the kernel that say how much memory the process may take.
memory._cgroup_headrooms = functools.cache(memory._cgroup_headrooms)

# The servers of tests are local: credentials of the user are not for them, nor are they behind a proxy of the user.
_OF_USERS = ("AWS_", "AZURE_", "GOOGLE_", "HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE")
for _name in [name for name in os.environ if name.startswith(_OF_USERS)]:
    del os.environ[_name]
for _name in ("no_proxy", "NO_PROXY"):
    os.environ[_name] = ",".join(filter(None, [os.environ.get(_name), "localhost,127.0.0.1"]))

MEMORY_FOLDER = Path("/dev/shm")
MEMORY_FOLDER_BYTES = 4 << 30
"""Space that the files of the tests need at once, and some more."""


def pytest_configure() -> None:
    """Keep the files of the tests in memory if it has a folder that is large enough."""
    if os.access(MEMORY_FOLDER, os.W_OK) and shutil.disk_usage(MEMORY_FOLDER).free > MEMORY_FOLDER_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY_FOLDER))


# A slow machine is no failure; and CI tries the same examples each time.
hypothesis.settings.register_profile(
    "recshuf", max_examples=examples(200), deadline=None, derandomize="CI" in os.environ
)
hypothesis.settings.load_profile("recshuf")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep one tenth of the tests, of those that are chosen otherwise, if RECSHUF_TENTH names it: 0 to 9."""
    tenth = os.environ.get("RECSHUF_TENTH")
    if tenth is None:
        return
    other = [item for item in items if zlib.crc32(item.nodeid.encode()) % 10 != int(tenth)]
    config.hook.pytest_deselected(items=other)
    items[:] = [item for item in items if item not in set(other)]


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Iterator[None]:
    """Make no slow items in a process of several only to leave them out: half of all, and a third of the collection."""
    yield
    if IS_WORKER and metafunc.config.option.markexpr == "not slow":
        quick = [call for call in metafunc._calls if all(mark.name != "slow" for mark in call.marks)]
        metafunc._calls[:] = quick or metafunc._calls


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return one more than there are cores: an eighth of their time the tests wait for servers and processes."""
    return int(os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS", len(os.sched_getaffinity(0)) + 1))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Import tests from the last to the first in every other process: each compiles what the other has not yet compiled."""
    is_whole = [Path(argument).name for argument in session.config.args] == ["tests"]
    if is_whole and IS_WORKER and int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw")) % 2:
        for path in sorted(PROJECT.glob("tests/**/test_*.py"), reverse=True):
            with suppress(Exception, pytest.skip.Exception):  # told again when it is collected
                import_module(".".join(path.relative_to(PROJECT).with_suffix("").parts))


@pytest.fixture(scope="module", autouse=True)
def _new_objects() -> None:
    """Let collections of garbage look through the objects of one module: all imported ones take a tenth of a second."""
    gc.collect()
    gc.freeze()


Result = subprocess.CompletedProcess[bytes]


class Run(Protocol):
    """Runs the command line and returns exit code, stdout and stderr as bytes."""

    def __call__(self, *arguments: str | Path, stdin: bytes = b"", **options: Any) -> Result: ...


@pytest.fixture(scope="session")
def run() -> Run:
    """Return a function that runs `python -m recshuf` in a child; options are those of `subprocess.run`."""

    def run_child(*arguments: str | Path, stdin: bytes = b"", **options: Any) -> Result:
        command = [sys.executable, "-m", "recshuf", *map(str, arguments)]
        return subprocess.run(command, input=stdin, **{"capture_output": True, "timeout": 120} | options)

    return run_child


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Return a function that runs the command line's entry point in this process: faster, and easy to patch."""

    def call_main(*arguments: str | Path, stdin: bytes = b"", **options: Any) -> Result:
        from recshuf.cli import main

        assert not options, "only a child process has options"
        monkeypatch.setattr(sys, "argv", ["recshuf", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            code = main()
        except SystemExit as stop:
            code = stop.code
        captured = capfdbinary.readouterr()
        return Result(sys.argv, code or 0, captured.out, captured.err)

    return call_main


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try failed requests to object stores again at once."""
    monkeypatch.setattr("recshuf.storage.requests.FIRST_PAUSE_SECONDS", 0)


@pytest.fixture(scope="session")
def s3_server() -> S3Server:
    """Return a server that speaks the protocol of S3."""
    return S3Server()


@pytest.fixture
def bucket(s3_bucket: Bucket) -> Bucket:
    """Return a new bucket of S3; modules that test other stores, too, have a fixture of this name."""
    return s3_bucket


def _share_clients(patch: pytest.MonkeyPatch) -> None:
    """Let the runs of a test that have the same settings share a client: a third of their time goes into making it."""
    make, clients = s3_session.make_client, {}

    def find_client(session: Any, endpoint_url: str | None, *, is_hurried: bool = False) -> Any:
        settings = sorted(item for item in os.environ.items() if item[0].startswith("AWS_"))
        credentials = session.get_credentials()
        known = credentials and credentials.get_frozen_credentials()
        key = (os.getpid(), known, session.region_name, endpoint_url, str(settings), is_hurried)
        if key not in clients:
            clients[key] = make(session, endpoint_url, is_hurried=is_hurried)
        return clients[key]

    for module in ("s3_session", "writing.s3"):
        patch.setattr(f"recshuf.storage.{module}.make_client", find_client)


@pytest.fixture
def s3_bucket(s3_server: S3Server, no_pauses: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """Return a new bucket; the environment has its endpoint, which is a proxy, and credentials."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    proxy = FaultProxy(s3_server.answer)
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
    _share_clients(monkeypatch)
    name = f"test-{uuid.uuid4()}"
    s3_server.store.create_bucket(name, CREDENTIALS["AWS_DEFAULT_REGION"])
    yield Bucket(name, proxy, s3_server)
    proxy.close()


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[ObjectServer]:
    """Return an emulator of Google Cloud Storage."""
    server = ObjectServer(serve_gcs)
    yield server
    server.close()


@pytest.fixture
def gcs_bucket(gcs_server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsTestBucket]:
    """Return a new bucket; the environment has its endpoint, which is a proxy."""
    import requests

    proxy = FaultProxy(gcs_server.answer)
    monkeypatch.setenv("GOOGLE_BASE_URL", proxy.url)
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
    with requests.Session() as session:
        bucket = GcsTestBucket(f"test-{uuid.uuid4()}", proxy, session, gcs_server.url)
        bucket.make()
        yield bucket
    proxy.close()


@pytest.fixture(scope="session")
def azure_server() -> Iterator[ObjectServer]:
    """Return an emulator of Azure Blob Storage."""
    if find_azurite() is None:
        pytest.skip("no azurite-blob on PATH, and RECSHUF_AZURITE does not name it (npm install azurite)")
    server = ObjectServer(serve_azure)
    yield server
    server.close()


@pytest.fixture
def azure_bucket(azure_server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[AzureTestBucket]:
    """Return a new container; the environment has its endpoint, which is a proxy, and the key."""
    from azure.storage.blob import ContainerClient

    proxy = FaultProxy(azure_server.answer)
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"{proxy.url}/{ACCOUNT}")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", ACCOUNT_KEY)
    name, credential = f"test-{uuid.uuid4()}", {"account_name": ACCOUNT, "account_key": ACCOUNT_KEY}
    with ContainerClient(f"{azure_server.url}/{ACCOUNT}", name, credential=credential) as client:
        client.create_container()
        yield AzureTestBucket(name, proxy, client)
    proxy.close()


@pytest.fixture(scope="session")
def corpora() -> Path:
    """Return the folder of real inputs, named by RECSHUF_CORPORA."""
    folder = Path(os.environ.get("RECSHUF_CORPORA", PROJECT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real inputs: {folder} does not exist; RECSHUF_CORPORA names another folder")
    return folder
