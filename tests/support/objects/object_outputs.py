"""Shuffles into a bucket, and what they must give."""

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

import recshuf
from recshuf.errors import OutputError
from recshuf.output.objects import Remains
from recshuf.storage import StorageOptions, Url
from tests.support.objects.object_server import Bucket, FaultProxy, ProxiedRequest
from tests.support.objects.other_buckets import AzureTestBucket, GcsTestBucket
from tests.support.processes.deaths import fork, join

AnyBucket = Bucket | GcsTestBucket | AzureTestBucket
Contents = dict[str, bytes]
"""Contents of objects by their keys."""

STORES = ("s3_bucket", "gcs_bucket", "azure_bucket")
"""Fixtures that return a bucket of each store that outputs go to."""
in_each_store = pytest.mark.parametrize("bucket", STORES, indirect=True)
"""Mark of what the quick tests try in each store."""
SEED = 5
SHARDS = 4


def write_lines(path: Path, count: int = 1000) -> Path:
    path.write_text("".join(f"line {number}\n" for number in range(count)))
    return path


def shuffle(inputs: Path | Sequence[Path], output: str | Path, **options: Any) -> recshuf.ShuffleReport:
    given = {"seed": SEED, "shards": SHARDS, "workers": 1} | options
    return recshuf.shuffle(
        inputs, output, **{name: value for name, value in given.items() if value is not None}
    )


def shuffle_locally(inputs: Path | Sequence[Path], folder: Path, **options: Any) -> dict[str, bytes]:
    """Return what a bucket must hold under ``data/`` after the same run to ``data/out/``."""
    folder.mkdir()
    shuffle(inputs, f"{folder}/out/", **options)
    return {
        f"data/{path.relative_to(folder)}": path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def check_whole(bucket: AnyBucket, expected: dict[str, bytes], *, is_lossy: bool = False) -> None:
    """Check that the bucket holds a whole output and nothing else.

    Parameters
    ----------
    is_lossy
        Whether the journal was lost before its uploads were completed or aborted; a store that does not list uploads keeps
        them open then.
    """
    assert bucket.read_all() == expected
    assert (is_lossy and not bucket.lists_uploads) or bucket.list_uploads() == []


def put_files(bucket: AnyBucket, folder: Path, prefix: str = "in/") -> None:
    """Put every file of a folder in the bucket, below a prefix."""
    for path in folder.rglob("*"):
        if path.is_file():
            bucket.put(f"{prefix}{path.relative_to(folder)}", path.read_bytes())


def clean(url: str) -> None:
    """Do what `recshuf clean --yes` does, in any thread."""
    remains = Remains(Url.parse(url), StorageOptions())
    if remains.find():
        remains.remove()


def kill_at(
    proxy: FaultProxy, number: int, job: Callable[[], object], request: str = "", *, is_late: bool = False
) -> int:
    """Do a job in a child that is killed before, or right after, one of its requests; return its exit code."""
    children: list[tuple[int, int]] = []

    def kill(one: ProxiedRequest) -> bool:
        if is_late:
            one.forward(loses_reply=True)
        os.kill(children[0][0], signal.SIGKILL)
        return is_late or one.drop()

    proxy.clear()
    proxy.call(request, lambda: None, number)
    proxy.add(request, kill, 1)
    # Requests of other threads of the child may be under way.
    children.append(fork(job))
    code = join(children[0])
    proxy.clear()
    return code


def read_visible(bucket: AnyBucket) -> dict[str, bytes]:
    """Return what a reader sees who looks for data."""
    return {key: bucket.read(key) for key in bucket.list_keys() if ".recshuf/" not in key}


@dataclass
class Output:
    """The prefix ``data/out/`` of a bucket, into which a file is shuffled."""

    bucket: AnyBucket
    source: Path

    @property
    def url(self) -> str:
        return f"{self.bucket.url}/data/out/"

    @cached_property
    def expected(self) -> dict[str, bytes]:
        """What the bucket must hold after a shuffle."""
        return shuffle_locally(self.source, self.source.parent / "local")

    def shuffle(self, **options: Any) -> recshuf.ShuffleReport:
        return shuffle(self.source, self.url, **options)

    def check(self, *, is_lossy: bool = False) -> None:
        check_whole(self.bucket, self.expected, is_lossy=is_lossy)

    def put_old(self) -> None:
        """Put a set of more shards there, as an earlier run would, in fewer requests."""
        for key, content in shuffle_locally(
            self.source, self.source.parent / "old", seed=1, shards=9
        ).items():
            self.bucket.put(key, content)
        self.bucket.proxy.clear()

    def refuse(self, names: str, after: int = 0) -> None:
        """Have the store refuse requests of some kinds, but the first ones."""
        pattern = "|".join(self.bucket.requests[name] for name in names.split())
        self.bucket.proxy.add(pattern, lambda _: False, after)
        self.bucket.proxy.answer(pattern, *self.bucket.refusal[:2], times=10**6)

    def fail(self, names: str, after: int = 0, **options: Any) -> OutputError:
        """Return the error of a run of which the store refuses some requests; it refuses nothing afterwards."""
        self.refuse(names, after)
        with pytest.raises(OutputError, match=self.bucket.refusal[2]) as caught:
            self.shuffle(**options)
        self.bucket.proxy.clear()
        return caught.value
