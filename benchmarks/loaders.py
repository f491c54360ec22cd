"""Measures loaders for training over the same rows: rows per CPU second and per second, and their ratios to recshuf's.

    python -m benchmarks.loaders [FOLDER] [--rows 400000] [--rounds 3] [--data text]... [--loader NAME]...

makes missing data in FOLDER. Loaders run one by one, each in a process of its own, in rounds; figures are medians over
one epoch of batches of 256 records, page cache warm, with the start of worker processes. `pip install -e '.[torch,bench]'
webdataset` installs the rivals; those that are not installed are left out, aloud.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import pyarrow as pa

from benchmarks.markdown import format_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

BATCH = 256
FILES = 16
SEED = 7
KINDS = ("text", "image")
_POOL = 1 << 20


def make_table(kind: str, first: int, count: int) -> pa.Table:
    """Return rows of 64 floats and about 500 bytes of text, or of images of 3 KB."""
    random = np.random.default_rng((SEED, first))
    ids = pa.array(np.arange(first, first + count))
    if kind == "image":
        pixels = pa.array(random.integers(0, 256, count * 3072, dtype=np.uint8))
        images = pa.FixedSizeListArray.from_arrays(pixels, 3072)
        return pa.table({"id": ids, "image": images, "label": pa.array(random.integers(0, 10, count))})
    vectors = pa.array(random.standard_normal(count * 64, dtype=np.float32))
    offsets = np.zeros(count + 1, np.int32)
    offsets[1:] = np.cumsum(random.integers(400, 601, count))
    letters = random.integers(97, 123, int(offsets[-1]), dtype=np.uint8)
    texts = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(letters)])
    return pa.table({"id": ids, "vector": pa.FixedSizeListArray.from_arrays(vectors, 64), "text": texts})


def make_data(folder: Path, kind: str, rows: int) -> None:
    """Write the rows as Parquet, as an Arrow stream, and as each rival wants them."""
    import pyarrow.parquet as pq

    import recshuf

    if (folder / "store").exists():
        return
    (folder / "parquet").mkdir(parents=True, exist_ok=True)
    bounds = np.linspace(0, rows, FILES + 1).astype(int).tolist()
    tables = [make_table(kind, a, b - a) for a, b in pairwise(bounds)]
    path = str(folder / "ordered.arrow")
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, tables[0].schema) as stream:
        for number, table in enumerate(tables):
            pq.write_table(table, folder / "parquet" / f"{number:02}.parquet")
            stream.write_table(table, max_chunksize=8192)
    if importlib.util.find_spec("datasets"):
        import datasets

        datasets.Dataset(pa.concat_tables(tables)).save_to_disk(str(folder / "datasets"))
    if importlib.util.find_spec("webdataset"):
        write_tar(folder / "tar", tables)
    piles = max(1, sum(table.nbytes for table in tables) >> 22)
    recshuf.scatter(sorted((folder / "parquet").iterdir()), folder / "store", seed=SEED, piles=piles)


def write_tar(folder: Path, tables: list[pa.Table]) -> None:
    """Write one tar file of samples for each table."""
    import webdataset

    folder.mkdir(exist_ok=True)
    for number, table in enumerate(tables):
        names = table.schema.names[1:]
        columns = [table["id"].to_pylist(), *(column_bytes(table[name]) for name in names)]
        with webdataset.TarWriter(str(folder / f"{number:02}.tar")) as writer:
            for index, *values in zip(*columns, strict=True):
                writer.write({"__key__": f"{index:09}", **dict(zip(names, values, strict=True))})


def column_bytes(column: pa.ChunkedArray) -> list[bytes]:
    """Return the bytes of each value."""
    array = column.combine_chunks()
    if not pa.types.is_fixed_size_list(array.type):
        return [value if isinstance(value, bytes) else str(value).encode() for value in array.to_pylist()]
    data = array.flatten().to_numpy().reshape(len(array), -1)
    return [row.tobytes() for row in data]


def load_piles(output: str) -> Callable[[Path], Iterable[Any]]:
    """Return a function that opens a `PileLoader`."""

    def load(folder: Path) -> Iterable[Any]:
        import recshuf

        return recshuf.PileLoader(folder / "store", BATCH, output=output, drop_last=False)

    return load


def load_records(folder: Path) -> Iterator[Any]:
    """Yield record after record."""
    import recshuf

    yield from recshuf.PileLoader(folder / "store", BATCH, drop_last=False).records()


def load_dataset(workers: int) -> Callable[[Path], Iterable[Any]]:
    """Return a function that opens a `PileDataset` with a number of workers."""

    def load(folder: Path) -> Iterable[Any]:
        from recshuf.torch import PileDataLoader, PileDataset

        return PileDataLoader(PileDataset(folder / "store", BATCH, drop_last=False), num_workers=workers)

    return load


def view_batch(records: pa.RecordBatch) -> dict[str, Any]:
    """Return what a loader yields of a record batch."""
    from recshuf.train.columns import NumpyBlock

    return NumpyBlock(records).cut(0, records.num_rows)


def load_ordered(folder: Path) -> Iterator[Any]:
    """Yield batches of the Arrow file in order."""
    with pa.memory_map(str(folder / "ordered.arrow")) as source:
        file = pa.ipc.open_file(source)
        for number in range(file.num_record_batches):
            yield from cut(file.get_batch(number))


def cut(records: pa.RecordBatch) -> Iterator[Any]:
    """Yield the batches of some records."""
    for start in range(0, records.num_rows, BATCH):
        yield view_batch(records.slice(start, BATCH))


def load_parquet(folder: Path) -> Iterator[Any]:
    """Yield batches of the Parquet files in order."""
    import pyarrow.dataset as ds

    for records in ds.dataset(folder / "parquet").to_batches(batch_size=8192):
        yield from cut(records)


def load_index(folder: Path) -> Iterator[Any]:
    """Yield batches of rows held in memory, by a random index."""
    with pa.memory_map(str(folder / "ordered.arrow")) as source:
        table = pa.ipc.open_file(source).read_all()
    columns = [column.combine_chunks() for column in table.columns]
    index: NDArray[Any] = np.random.default_rng(SEED).permutation(table.num_rows)
    records = pa.RecordBatch.from_arrays(columns, schema=table.schema)
    for start in range(0, len(index), BATCH):
        yield view_batch(records.take(pa.array(index[start : start + BATCH])))


def load_hugging_face(folder: Path) -> Iterator[Any]:
    """Yield shuffled batches of the Arrow format of datasets."""
    import datasets

    shuffled = datasets.load_from_disk(str(folder / "datasets")).shuffle(seed=SEED)
    for table in shuffled.with_format("arrow").iter(BATCH):
        yield view_batch(table.combine_chunks().to_batches()[0])


def load_tar(folder: Path) -> Iterator[Any]:
    """Yield batches from tar files with a shuffle buffer of 10,000 samples."""
    import webdataset

    files = [str(path) for path in sorted((folder / "tar").iterdir())]
    samples = webdataset.WebDataset(files, shardshuffle=FILES, seed=SEED, empty_check=False).shuffle(10_000)
    for batch in samples.map(parse_sample).batched(BATCH, collation_fn=list, partial=True):
        columns = {name: [sample[name] for sample in batch] for name in batch[0]}
        yield {name: c if name == "text" else np.stack(c) for name, c in columns.items()}


def parse_sample(sample: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a sample."""
    values: dict[str, Any] = {"id": np.int64(sample["__key__"])}
    if "text" in sample:
        return values | {"vector": np.frombuffer(sample["vector"], np.float32), "text": sample["text"]}
    return values | {"image": np.frombuffer(sample["image"], np.uint8), "label": np.int64(sample["label"])}


@dataclass(frozen=True, slots=True)
class Loader:
    """A loader, the module it needs, and the least ratio to it that is promised."""

    load: Callable[[Path], Iterable[Any]]
    module: str = ""
    baseline: str = "PileLoader, NumPy"
    at_least: float | None = None
    figure: str = "cpu"


LOADERS = {
    "PileLoader, NumPy": Loader(load_piles("numpy")),
    "PileLoader, torch": Loader(load_piles("torch"), "torch"),
    "PileLoader, records()": Loader(load_records),
    "PileDataset, 0 workers": Loader(load_dataset(0), "torch"),
    "PileDataset, 2 workers": Loader(load_dataset(2), "torch", "PileDataset, 0 workers", 0.4, "wall"),
    "Arrow IPC in order": Loader(load_ordered, at_least=0.5),
    "Parquet in order": Loader(load_parquet),
    "index shuffle in RAM": Loader(load_index, at_least=1.5),
    "Hugging Face datasets, Arrow": Loader(load_hugging_face, "datasets", at_least=3),
    "WebDataset, buffer of 10,000": Loader(load_tar, "webdataset", at_least=20),
}


def count_rows(batch: Any) -> int:
    """Return the number of records of a batch, or 1 for a record."""
    return len(batch["id"]) if hasattr(batch["id"], "__len__") else 1


def run(name: str, folder: Path) -> dict[str, float]:
    """Load one epoch in this process; return its rows and seconds."""
    for module in ("pyarrow.dataset", "recshuf.train.loader", LOADERS[name].module):
        if module:
            importlib.import_module(module)
    if name.startswith("PileDataset"):
        importlib.import_module("recshuf.torch")
    rows, cpu, start = 0, read_cpu(), time.perf_counter()
    for batch in LOADERS[name].load(folder):
        rows += count_rows(batch)
    wall = time.perf_counter() - start
    return {"rows": rows, "wall": rows / wall, "cpu": rows / (read_cpu() - cpu)}


def read_cpu() -> float:
    """Return the CPU seconds of this process and of those that it has waited for."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def measure(name: str, folder: Path, rows: int) -> dict[str, float]:
    """Return the figures of one epoch in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.loaders", str(folder), "--run", name]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    if found["rows"] != rows:
        raise click.ClickException(f"{name}: {found['rows']} rows of {rows}")
    return found


def format_figures(figures: dict[str, dict[str, float]]) -> str:
    """Return a table of the loaders of one kind of data."""
    lines = []
    for name, found in figures.items():
        loader = LOADERS[name]
        ratio, bar = "", ""
        if name != loader.baseline and loader.baseline in figures:
            mine, other = figures[loader.baseline][loader.figure], found[loader.figure]
            value = other / mine if loader.figure == "wall" else mine / other
            ratio = f"{value:.2f}"
            bar = "" if loader.at_least is None else f"{loader.at_least:g}"
        lines.append([name, f"{found['cpu']:,.0f}", f"{found['wall']:,.0f}", ratio, bar])
    return format_table(["loader", "rows per CPU second", "rows per second", "ratio", "at least"], lines)


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.argument("folder", type=click.Path(path_type=Path), default=Path("build/loaders"))
@click.option("--rows", default=400_000, show_default=True, help="Rows of text; images are a quarter.")
@click.option("--rounds", default=3, show_default=True, help="Epochs of each loader.")
@click.option("--data", "kinds", type=click.Choice(KINDS), multiple=True, help="Default: all.")
@click.option("--loader", "names", type=click.Choice(list(LOADERS)), multiple=True, help="Default: all.")
@click.option("--run", "one", hidden=True)
def main(
    folder: Path, rows: int, rounds: int, kinds: tuple[str, ...], names: tuple[str, ...], one: str | None
) -> None:
    """Run the loaders in rounds, and print a table for each kind of data."""
    if one is not None:
        click.echo(json.dumps(run(one, folder)))
        return
    chosen = [name for name in names or LOADERS if has_module(name)]
    for kind in kinds or KINDS:
        count = rows if kind == "text" else rows // 4
        data = folder / f"{kind}-{count}"
        make_data(data, kind, count)
        found: dict[str, list[dict[str, float]]] = {name: [] for name in chosen}
        for _, name in product(range(rounds), chosen):
            found[name].append(measure(name, data, count))
        medians = {
            name: {figure: median(one[figure] for one in rounds_) for figure in ("cpu", "wall")}
            for name, rounds_ in found.items()
        }
        click.echo(f"\n{kind}: {count:,} rows\n\n{format_figures(medians)}")


def has_module(name: str) -> bool:
    """Tell whether a loader is installed, aloud if not."""
    module = LOADERS[name].module
    if not module or importlib.util.find_spec(module):
        return True
    click.echo(f"{name}: left out, no module {module}", err=True)
    return False


if __name__ == "__main__":
    main()
