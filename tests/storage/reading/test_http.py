"""Inputs on servers of HTTP: the bytes of one version of a file, or one clear error."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest

import recshuf
from recshuf.errors import (
    DirectoryInputError,
    ForbiddenInputError,
    InputError,
    MissingInputError,
    UnavailableInputError,
)
from recshuf.storage.requests import ATTEMPTS
from tests.support.numbered_files import SUFFIXES, make_inputs
from tests.support.objects.object_outputs import shuffle
from tests.support.objects.object_server import Bucket, FaultProxy, ProxiedRequest

pytestmark = pytest.mark.usefixtures("no_pauses")

CONTENT = b"".join(b"%0999d\n" % number for number in range(4000))
"""More than a small file that is fetched whole."""
ASK = "(HEAD|GET) .*"


@pytest.fixture
def public(bucket: Bucket) -> Bucket:
    """Return a bucket whose object ``in.txt`` anybody may read."""
    put(bucket, "in.txt", CONTENT)
    return bucket


def put(bucket: Bucket, key: str, content: bytes) -> None:
    bucket.put(key, content, {"x-amz-acl": "public-read"})


def url_of(bucket: Bucket, key: str = "in.txt") -> str:
    return f"{bucket.proxy.url}/{bucket.name}/{key}"


def read(url: str, tmp_path: Path) -> recshuf.ShuffleReport:
    return shuffle(url, tmp_path / "out.txt", shards=None)


@pytest.mark.parametrize("name", ["text", "parquet"])
def test_a_file_of_a_server_is_read_as_a_local_one_and_needs_no_ranges_if_it_is_small(
    tmp_path: Path, bucket: Bucket, name: str
):
    (source,) = make_inputs(tmp_path / "in", name, (12_000,))
    assert source.stat().st_size <= 512 << 10
    put(bucket, source.name, source.read_bytes())
    local, remote = (tmp_path / f"{place}{SUFFIXES[name]}" for place in ("local", "remote"))
    shuffle(source, local, shards=None)
    for takes_ranges in (True, False):
        if not takes_ranges:
            bucket.proxy.add("GET .*", lambda one: one.forward(left_out=("Range",)), 100)
        shuffle(url_of(bucket, source.name), remote, shards=None, overwrite=True)
        assert local.read_bytes() == remote.read_bytes()
        assert recshuf.verify(url_of(bucket, source.name), remote)


def test_failures_are_tried_again(tmp_path: Path, public: Bucket):
    public.proxy.answer(ASK, 500, "Busy", times=4)  # a HEAD that fails is followed by a GET
    public.proxy.answer("GET .*", 503, "SlowDown", times=2)
    public.proxy.cut_body("GET .*", times=2)
    public.proxy.cut_body("GET .*", times=1, cuts="stated")
    report = read(url_of(public), tmp_path)
    assert sorted((tmp_path / "out.txt").read_bytes().splitlines(keepends=True)) == sorted(
        CONTENT.splitlines(keepends=True)
    )
    assert report.downloads is not None
    assert report.downloads.retries == 2 + 5


def test_a_server_that_does_not_answer_is_named(tmp_path: Path):
    with pytest.raises(InputError, match=r"reached: .*, after 8 attempts; check the URL and the network, or"):
        read("http://127.0.0.1:9/in.txt", tmp_path)


Strike = Callable[[ProxiedRequest], bool]


def answer(status: int) -> Strike:
    return lambda request: request.answer(status, "Code")


def redirect(location: str) -> Strike:
    return lambda request: request.reply(302, {"Location": location})


def send_begin(request: ProxiedRequest) -> bool:
    first, last = map(int, re.findall(r"\d+", request.headers["Range"]))
    content = CONTENT[: min(last, len(CONTENT) - 1) - first + 1]
    span = f"bytes 0-{len(content) - 1}/{len(CONTENT)}"
    return request.reply(206, {"Content-Range": span}, content)


def tell_no_size(request: ProxiedRequest) -> bool:
    request.send_response_only(200)
    request.end_headers()
    request.close_connection = True
    return True


Answer = tuple[str, Strike, type[InputError], str]
UNKNOWN = (answer(418), UnavailableInputError, "the store answers 418: .*; check the URL, or run again later")
BUSY = r"the store is busy \(503\), after 8 attempts; run again later"
NOTHING = (MissingInputError, "there is nothing at this URL; check it")
ELSEWHERE = (UnavailableInputError, "the server redirects to where nothing can be read; check the URL")
WHOLE = "the server takes no ranges; download the file"
OTHERS = "the server sends other bytes than asked for; download the file"
ANSWERS: dict[str, Answer] = {
    "busy": (ASK, answer(503), UnavailableInputError, BUSY),
    "not found": (ASK, answer(404), *NOTHING),
    "gone": (ASK, answer(410), *NOTHING),
    "denied": (ASK, answer(403), ForbiddenInputError, r"access is denied \(403\); check the cred.*"),
    "unknown": (ASK, *UNKNOWN),
    "unknown, to bytes": ("GET .*", *UNKNOWN),
    "redirect to a file": ("GET .*", redirect("file:///etc/passwd"), *ELSEWHERE),
    "redirect to FTP": (ASK, redirect("ftp://host/in.txt"), *ELSEWHERE),
    "redirect to no URL": ("GET .*", redirect("http://[bad"), *ELSEWHERE),
    "no size": (ASK, tell_no_size, InputError, "the server does not tell the size; download the file"),
    "circle": (ASK, redirect("/again.txt"), *ELSEWHERE),
    "whole file": ("GET .*", lambda one: one.forward(left_out=("Range",)), InputError, WHOLE),
    "other bytes": ("GET .*", send_begin, InputError, OTHERS),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_what_a_server_answers_is_told_with_a_remedy_and_asked_again_only_if_it_may_pass(
    tmp_path: Path, public: Bucket, case: str
):
    asked, strike, kind, said = ANSWERS[case]
    public.proxy.add(asked, strike, 10**6)
    with pytest.raises(InputError, match=rf"^http:.*in\.txt: {said}$") as caught:
        read(url_of(public), tmp_path)
    assert type(caught.value) is kind
    assert (public.proxy.count(r".*/in\.txt") >= ATTEMPTS) == (case == "busy")
    if case == "denied":
        assert [one.split()[0] for one in public.proxy.requests] == ["HEAD", "GET"]


@pytest.mark.parametrize("path", ["", "/dir/", "/a/dir//"])
def test_a_folder_of_a_server_is_refused(tmp_path: Path, public: Bucket, path: str):
    url = f"{public.proxy.url}{path}"
    said = f"^{url}: is a folder, which HTTP does not list; name a file in it$"
    with pytest.raises(DirectoryInputError, match=said):
        read(url, tmp_path)
    assert public.proxy.requests == []


@pytest.mark.parametrize("date", ["soon", "Mon, 99 Jan 2024 00:00:00 GMT"])
def test_a_date_that_cannot_be_read_counts_as_none(tmp_path: Path, public: Bucket, date: str):
    headers = {"Content-Length": str(len(CONTENT)), "Last-Modified": date}
    public.proxy.add("HEAD .*", lambda one: one.reply(200, headers), 100)
    assert read(url_of(public), tmp_path).records == 4000


def test_bytes_are_asked_for_as_they_are(tmp_path: Path, public: Bucket):
    """Ranges of a compressed reply would be others, and have another ETag."""
    encodings = set()
    public.proxy.add(ASK, lambda one: bool(encodings.add(one.headers["Accept-Encoding"])), 10**6)
    read(url_of(public), tmp_path)
    assert encodings == {"identity"}


# Files that are replaced while they are read


def test_a_file_that_changes_is_an_error(tmp_path: Path, public: Bucket):
    seen = iter(range(1000))
    public.proxy.call("GET .*", lambda: next(seen) == 1 and put(public, "in.txt", CONTENT[::-1]), times=1000)
    with pytest.raises(InputError, match=r"in.txt: changed while it was read"):
        read(url_of(public), tmp_path)
    assert not (tmp_path / "out.txt").exists()


NEW = {"other": CONTENT.replace(b"0", b"1"), "shorter": CONTENT[: len(CONTENT) // 2], "longer": CONTENT * 2}


class Version(NamedTuple):
    """What a server sends after some requests for content, and what it says of it."""

    after: int
    content: bytes
    etag: str
    """``strong``, ``weak``, ``head`` if only a HEAD tells it, or empty."""
    has_date: bool
    has_total: bool


@contextmanager
def serve(version: Version) -> Iterator[str]:
    """Serve a file that is replaced; conditions are ignored."""
    asked: list[str] = []

    def answer(
        method: str, _: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        is_new = len(asked) >= version.after
        asked.extend([method] * (method == "GET"))
        content, told = version.content if is_new else CONTENT, []
        if version.etag and (version.etag != "head" or method == "HEAD"):
            told.append(("ETag", f'{"W/" if version.etag == "weak" else ""}"{is_new}"'))
        if version.has_date:
            told.append(("Last-Modified", f"Mon, 01 Jan 2024 00:00:0{int(is_new)} GMT"))
        if "Range" not in headers:
            return 200, told, content
        begin, last = map(int, re.findall(r"\d+", headers["Range"]))
        total = len(content) if version.has_total else "*"
        told.append(("Content-Range", f"bytes {begin}-{min(last, len(content) - 1)}/{total}"))
        return 206 if begin < len(content) else 416, told, content[begin : last + 1]

    with closing(FaultProxy(answer)) as proxy:
        yield f"{proxy.url}/in.txt"


KINDS = [one for one in product(["strong", "weak", "head", ""], [True, False]) if any(one)]


@pytest.mark.parametrize(("etag", "has_date"), KINDS)
def test_versions_are_never_mixed(tmp_path: Path, etag: str, has_date: bool):
    for new, has_total in product(NEW, (True, False)):
        with (
            serve(Version(1, NEW[new], etag, has_date, has_total)) as url,
            pytest.raises(InputError, match=r"/in\.txt: (has )?changed while it was read"),
        ):
            read(url, tmp_path)
        assert not (tmp_path / "out.txt").exists()


def test_a_file_that_is_replaced_after_it_was_read_is_no_input(tmp_path: Path):
    """As many requests as a read makes are too few for a replaced file, whatever tells that it is another one."""

    def count_requests(etag: str, has_date: bool) -> int:
        for count in range(1, 20):
            with serve(Version(count, NEW["other"], etag, has_date, True)) as url, suppress(InputError):
                read(url, tmp_path)
                (tmp_path / "out.txt").unlink()
                return count
        raise AssertionError("it is always another one")

    assert count_requests("weak", has_date=False) == count_requests("", has_date=True) > 1


@pytest.mark.parametrize("etag", ["strong", "weak", "head", ""])
def test_a_file_that_stays_is_read(tmp_path: Path, etag: str):
    with serve(Version(10**6, b"", etag, has_date=False, has_total=True)) as url:
        for name in ("in.txt", "?file=in.txt", "in.txt?from=/"):
            assert read(url.replace("in.txt", name), tmp_path).records == 4000
            (tmp_path / "out.txt").unlink()
