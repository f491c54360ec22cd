"""Measures a shuffle from one prefix of an object store to another, beside a plain copy of the same objects.

    python -m benchmarks.object_stores [FOLDER] [--size 400MB] [--rounds 3] [--endpoint-url URL]

The copy fetches each object in ranges of 16 MiB, four at once, and puts it back with obstore, as its multipart uploads
do it by default. Both are processes of their own, and take turns. Default: moto's server on loopback, which computes
with one thread and so bounds both; give the URL of another one to measure that. The data is made in FOLDER.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import boto3
import click
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.option_types import SIZE
from recshuf.system.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

FILES = 4
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
COPY = """
import sys
from concurrent.futures import ThreadPoolExecutor
import obstore
from obstore.store import S3Store
bucket, endpoint = sys.argv[1:]
store = S3Store(bucket, endpoint=endpoint, client_options={"allow_http": True, "timeout": "180s"})
part = 16 << 20
with ThreadPoolExecutor(4) as pool:
    for one in [one for page in obstore.list(store, "in") for one in page]:
        begins = range(0, one["size"], part)
        def fetch(begin):
            end = min(begin + part, one["size"])
            return obstore.get(store, one["path"], options={"range": (begin, end), "if_match": one["e_tag"]}).bytes()
        obstore.put(store, one["path"].replace("in/", "copy/"), pool.map(fetch, begins))
"""


@contextlib.contextmanager
def serve() -> Iterator[str]:
    """Yield the URL of moto's server."""
    with contextlib.closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while child.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        child.terminate()
        child.wait()


def write_lines(path: Path, size: int, chance: np.random.Generator) -> None:
    """Write lines of 200 random digits."""
    digits = chance.integers(48, 58, (size // 201, 201), dtype=np.uint8)
    digits[:, -1] = ord("\n")
    digits.tofile(path)


def write_parquet(path: Path, size: int, chance: np.random.Generator) -> None:
    """Write eight columns of random numbers, in row groups of some 32 MB."""
    columns = {f"c{index}": chance.integers(0, 1 << 62, size // 64) for index in range(8)}
    pq.write_table(pa.table(columns), path, row_group_size=500_000)


def write_hdf5(path: Path, size: int, chance: np.random.Generator) -> None:
    """Write images of 3,072 random bytes and their labels, in chunks of 64 images."""
    rows = size // 3072
    with h5py.File(path, "w") as file:
        images = chance.integers(0, 256, (rows, 3072), dtype=np.uint8)
        file.create_dataset("image", data=images, chunks=(64, 3072))
        file["label"] = np.arange(rows)


WRITERS = {".txt": write_lines, ".parquet": write_parquet, ".h5": write_hdf5}


def measure(command: list[str]) -> float:
    """Return the wall seconds of a process."""
    begin = time.perf_counter()
    subprocess.run(command, check=True)
    return time.perf_counter() - begin


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.argument("folder", type=click.Path(path_type=Path), default=Path("build/benchmarks/object_stores"))
@click.option("--size", type=SIZE, default="400MB", show_default=True, help="Data of each format.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Rounds of each format.")
@click.option("--endpoint-url", help="A server that speaks the protocol of S3. Default: moto's.")
def main(folder: Path, size: int, rounds: int, endpoint_url: str | None) -> None:
    """Measure each format."""
    folder.mkdir(parents=True, exist_ok=True)
    if endpoint_url is None:
        os.environ.update(CREDENTIALS)
    for suffix, write in WRITERS.items():
        path = folder / f"data{suffix}"
        write(path, size // FILES, np.random.default_rng(1))
        # Each format has a server of its own, since moto keeps all objects in memory.
        with serve() if endpoint_url is None else contextlib.nullcontext(endpoint_url) as url:
            print(compare(path, url, rounds))
        path.unlink()


def compare(path: Path, endpoint_url: str, rounds: int) -> str:
    """Return a line about one format."""
    client, bucket = boto3.client("s3", endpoint_url=endpoint_url), f"recshuf-{uuid.uuid4()}"
    client.create_bucket(Bucket=bucket)
    for index in range(FILES):
        client.upload_file(str(path), bucket, f"in/{index}{path.suffix}")
    ours = [sys.executable, "-m", "recshuf", f"s3://{bucket}/in/", "-o", f"s3://{bucket}/out/", "-q"]
    ours += ["--seed", "1", "--overwrite", "--endpoint-url", endpoint_url, "--memory", "2GB"]
    copy = [sys.executable, "-c", COPY, bucket, endpoint_url]
    pairs = [(measure(ours), measure(copy)) for _ in range(rounds)]
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        for one in page["Contents"]:
            client.delete_object(Bucket=bucket, Key=one["Key"])
    client.delete_bucket(Bucket=bucket)
    seconds, copied = (median(side) for side in zip(*pairs, strict=True))
    ratio = median(one / other for one, other in pairs)
    size = format_size(FILES * path.stat().st_size)
    return f"{path.suffix[1:]:8} {size:>8}: shuffle {seconds:.2f} s, copy {copied:.2f} s, ratio {ratio:.2f}"


if __name__ == "__main__":
    main()
