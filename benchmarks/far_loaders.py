"""Measures loaders that read from a bucket behind a slow link: each request waits 50 ms, and all share 200 MB/s.

    python -m benchmarks.far_loaders [FOLDER] [--rows 160000] [--seconds 15] [--loader NAME]...

makes missing data in FOLDER: images of 3 KB. Each loader is a process that reads an epoch in batches of 256. Others than
recshuf's stop after so many seconds; those that are not installed are left out, aloud.

- link: bytes that came, over those that the link could have brought from the call to the last batch. The floor is a plain
  download of the same objects, in ranges of 4 MB, eight at a time.
- fetched: bytes that came for each byte of the regions; for a rank of two, of its half. Of others: for each byte of the images.
- first batch: the time until then, in that of a request; how many requests came one after the other up to the first data, and
  the requests and MB that were asked for and came before that batch.
- peak: memory above what the process held before it opened the store.

Beside them: epochs of a store from the cache and from the disk, in turn in one process: the median ratio of CPU seconds.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click

import recshuf
from benchmarks.loader_costs import read_status
from benchmarks.loaders import count_rows, make_data
from benchmarks.loading import BATCH, SEED, lance_files, lit_data, mosaicml, tar_files
from benchmarks.loading.far_server import LATENCY, LINK, find_seen, serve
from benchmarks.markdown import format_table
from benchmarks.object_stores import CREDENTIALS
from benchmarks.object_stores import serve as serve_bucket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

FLOOR = "plain download"
STORE = "bucket/store"
"""Where the objects of the store lie in the folder of the data."""
ROW_BYTES = 3072
PART_BYTES, PARTS = 4 << 20, 8
EPOCHS = 5


@dataclass(frozen=True, slots=True)
class Far:
    """Where a loader reads from."""

    endpoint: str
    folder: Path
    """The data, which is the bucket."""
    scratch: Path
    """An empty folder of this machine."""

    def url(self, name: str) -> str:
        return f"s3://{self.folder.name}/{name}"


@dataclass(frozen=True, slots=True)
class Loader:
    """A loader, what it reads, the module it needs, and the part of its data that it reads."""

    load: Callable[[Far], Iterable[Any]]
    folder: str = STORE
    module: str = ""
    share: float = 1.0
    bars: tuple[str, ...] = ()


def write_store(folder: Path) -> None:
    """Scatter the rows to a bucket of another server, as it would be done to any, and keep the objects."""
    import boto3

    with serve_bucket() as endpoint:
        client = boto3.client("s3", endpoint_url=endpoint)
        client.create_bucket(Bucket="rows")
        inputs = sorted((folder / "parquet").iterdir())
        recshuf.scatter(inputs, "s3://rows/store", seed=SEED, endpoint_url=endpoint)
        for page in client.get_paginator("list_objects_v2").paginate(Bucket="rows"):
            for one in page["Contents"]:
                path = folder / "bucket" / one["Key"]
                path.parent.mkdir(parents=True, exist_ok=True)
                client.download_file("rows", one["Key"], str(path))


def open_piles(far: Far, **options: Any) -> recshuf.PileLoader:
    """Return the loader of the store in the bucket."""
    return recshuf.PileLoader(far.url(STORE), BATCH, **options)


def download(far: Far) -> Iterable[Any]:
    """Fetch the objects of the store."""
    import obstore
    from obstore.store import S3Store

    bucket = S3Store(far.folder.name, endpoint=far.endpoint, client_options={"allow_http": True})
    parts = [
        (one["path"], begin, min(begin + PART_BYTES, one["size"]))
        for page in obstore.list(bucket, f"{STORE}/sets/")
        for one in page
        for begin in range(0, one["size"], PART_BYTES)
    ]

    def fetch(part: tuple[str, int, int]) -> dict[str, Any]:
        path, begin, end = part
        obstore.get_range(bucket, path, start=begin, end=end)
        return {"id": 0}

    with ThreadPoolExecutor(PARTS) as pool:
        yield from pool.map(fetch, parts)


LOADERS = {
    FLOOR: Loader(download, module="obstore"),
    "PileLoader": Loader(open_piles, bars=("link", "fetched", "first")),
    "PileLoader, rank 0 of 2, 2 lanes": Loader(
        lambda far: open_piles(far, lanes=2, world_size=2), share=0.5, bars=("fetched",)
    ),
    "PileLoader, empty cache": Loader(
        lambda far: open_piles(far, cache=far.scratch), bars=("link", "fetched")
    ),
    "MosaicML Streaming, py1e": Loader(
        lambda far: mosaicml.load_far(far.url("mosaicml"), far.endpoint, far.scratch), "mosaicml", "streaming"
    ),
    "LitData": Loader(
        lambda far: lit_data.load_far(far.url("litdata"), far.endpoint, far.scratch), "litdata", "litdata"
    ),
    "WebDataset, buffer of 10,000": Loader(
        lambda far: tar_files.load_far(
            far.folder / "webdataset", f"{far.endpoint}/{far.folder.name}/webdataset"
        ),
        "webdataset",
        "webdataset",
    ),
    "Lance, random rows": Loader(
        lambda far: lance_files.load_far(far.url("lance"), far.endpoint), "lance", "lance"
    ),
}
BARS = {"link": ("at least", 0.9), "fetched": ("at most", 1.02), "first": ("at most", 5.0)}


def run(name: str, far: Far, seconds: float) -> dict[str, float]:
    """Load an epoch, or a part of it, in this process, and return its figures."""
    loader = LOADERS[name]
    if loader.module:
        importlib.import_module(loader.module)
    is_ours = loader.folder == STORE
    if is_ours:
        next(iter(recshuf.PileLoader(far.folder / STORE, BATCH)))  # imports, and what is made on first use
        recshuf.PileStore(far.url(STORE)).piles().close()
    Path("/proc/self/clear_refs").write_text("5")
    held, rows, first, begun = read_status("VmRSS"), 0, 0.0, find_seen(far.endpoint)
    seen = begun
    start, cpu = time.perf_counter(), time.process_time()
    for batch in loader.load(far):
        rows += count_rows(batch)
        passed = time.perf_counter() - start
        if not first:
            first, seen = passed, find_seen(far.endpoint)
            start += time.perf_counter() - start - passed  # what the question took
        if not is_ours and passed > seconds:
            break
    passed = time.perf_counter() - start
    byte_count = find_seen(far.endpoint).byte_count - begun.byte_count
    wanted = count_bytes(far) * loader.share if is_ours else rows * ROW_BYTES
    return {
        "link": byte_count / passed / LINK,
        "fetched": byte_count / wanted,
        "first": first / LATENCY,
        "depth": seen.count_depth(len(begun.spans)),
        "requests": seen.requests - begun.requests,
        "bytes": (seen.byte_count - begun.byte_count) / 1e6,
        "rows": rows / passed,
        "cpu": time.process_time() - cpu,
        "peak": (read_status("VmHWM") - held) / 1e6,
    }


def count_bytes(far: Far) -> int:
    """Return the bytes of all regions of the store."""
    with contextlib.closing(recshuf.PileStore(far.folder / STORE).piles()) as piles:
        return int(piles.byte_counts.sum())


def compare_cache(far: Far) -> str:
    """Return how epochs from a full cache compare with those from the disk."""
    near = recshuf.PileLoader(far.folder / STORE, BATCH)
    cached = open_piles(far, cache=far.scratch)
    for loader in (near, cached):
        count_seconds(loader, 0)
    before = find_seen(far.endpoint)
    pairs = [(count_seconds(near, epoch), count_seconds(cached, epoch)) for epoch in range(1, EPOCHS + 1)]
    asked = find_seen(far.endpoint).requests - before.requests
    ratio, (disk, cache) = median(two / one for one, two in pairs), map(median, zip(*pairs, strict=True))
    peaks = [measure_peak(loader) / 1e6 for loader in (near, cached)]
    return (
        f"from the cache over from the disk: {ratio:.2f} x CPU (at most 1.1), {cache:.3f} s and {disk:.3f} s; "
        f"{asked} requests; peaks {peaks[1]:.0f} and {peaks[0]:.0f} MB"
    )


def count_seconds(loader: recshuf.PileLoader, epoch: int) -> float:
    """Return the CPU seconds of an epoch."""
    loader.set_epoch(epoch)
    start = time.process_time()
    for _ in loader:
        pass
    return time.process_time() - start


def measure_peak(loader: recshuf.PileLoader) -> int:
    """Return the peak memory of an epoch above what was held before."""
    Path("/proc/self/clear_refs").write_text("5")
    held = read_status("VmRSS")
    for _ in loader:
        pass
    return read_status("VmHWM") - held


def format_figures(found: dict[str, dict[str, float]]) -> str:
    """Return a table of all loaders; a figure that misses its bar is marked."""
    lines = []
    for name, one in found.items():
        shown = {key: f"{one[key]:.2f}" for key in BARS}
        for key in LOADERS[name].bars:
            kind, bar = BARS[key]
            is_met = one[key] >= bar if kind == "at least" else one[key] <= bar
            shown[key] += f" ({kind} {bar:g}{'' if is_met else ': MISSED'})"
        lines.append(
            [
                name,
                *shown.values(),
                f"{one['depth']:.0f}",
                f"{one['requests']:.0f}",
                f"{one['bytes']:.0f}",
                "" if name == FLOOR else f"{one['rows']:,.0f}",
                f"{one['cpu']:.1f}",
                f"{one['peak']:.0f}",
            ]
        )
    heads = [
        "loader",
        "link",
        "fetched",
        "first batch",
        "in a row",
        "requests",
        "MB",
        "rows per second",
        "CPU s",
        "peak MB",
    ]
    return format_table(heads, lines)


def run_apart(folder: Path, name: str, seconds: float) -> Any:
    """Return what a loader, or the comparison of the cache, has found in a process of its own, with a server of its own."""
    with serve(folder.parent) as endpoint, tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        command = [sys.executable, "-m", "benchmarks.far_loaders", str(folder), "--run", name]
        command += ["--endpoint", endpoint, "--scratch", scratch, "--seconds", str(seconds)]
        environment = os.environ | {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true"}
        done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, env=environment)
        return json.loads(done.stdout.splitlines()[-1]) if not done.returncode else None


def has_module(name: str) -> bool:
    """Tell whether a loader is installed, aloud if not."""
    module = LOADERS[name].module
    if not module or importlib.util.find_spec(module):
        return True
    click.echo(f"{name}: left out, no module {module}", err=True)
    return False


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.argument("folder", type=click.Path(path_type=Path), default=Path("build/loaders"))
@click.option("--rows", default=160_000, show_default=True, help="Images of 3 KB.")
@click.option("--seconds", default=15.0, show_default=True, help="After which others than recshuf's stop.")
@click.option("--loader", "names", type=click.Choice(list(LOADERS)), multiple=True, help="Default: all.")
@click.option("--run", "one", hidden=True)
@click.option("--endpoint", hidden=True)
@click.option("--scratch", type=click.Path(path_type=Path), hidden=True)
def main(
    folder: Path,
    rows: int,
    seconds: float,
    names: tuple[str, ...],
    one: str | None,
    endpoint: str,
    scratch: Path,
) -> None:
    """Run the loaders one by one, and print a table."""
    if one is not None:
        far = Far(endpoint, folder, scratch)
        click.echo(json.dumps(run(one, far, seconds) if one in LOADERS else compare_cache(far)))
        return
    chosen = [name for name in names or LOADERS if has_module(name)]
    data = folder / f"image-{rows}"
    make_data(data, "image", rows, {LOADERS[name].folder for name in chosen} - {STORE})
    os.environ.update(CREDENTIALS)
    if not (data / STORE).exists():
        write_store(data)
    click.echo(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores\n")
    found = {name: run_apart(data, name, seconds) for name in chosen}
    for name in [name for name, figures in found.items() if figures is None]:
        click.echo(f"{name}: failed, see above", err=True)
        del found[name]
    click.echo(format_figures(found))
    if not names:
        click.echo(f"\n{run_apart(data, 'cache', seconds)}\nload {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
