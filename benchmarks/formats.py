"""Shuffles a file of each format with one thread, copies and shuffles it with its own library, in turn; prints CPU seconds.

    python -m benchmarks.formats [--size 200MB] [--rounds 3] [--small] [FORMAT...]

A copy reads every record and writes it again, in order. Where a few lines of the library shuffle all in memory, these are the
floor of a shuffle. All are calls in this process, so that none pays for its start. For files in memory, set `TMPDIR=/dev/shm`.
"""

from __future__ import annotations

import io
import json
import shutil
import tarfile
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import pyarrow as pa

import recshuf
from benchmarks.markdown import format_table
from recshuf.system.units import parse_size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

RECORD_BYTES = 400
LONGER = 25
"""Times by which records of archives, such as pictures, are longer than others."""
SMALL = "100kB"
HEADS = ["format", "records", "MB", "recshuf s", "records/s", "copied by", "s", "recshuf / copy"]
HEADS += ["shuffle by the library s", "recshuf / shuffle by the library"]
SHUFFLED = "shuffled"


@dataclass(frozen=True, slots=True)
class Case:
    """A format: its file, and what copies it."""

    suffix: str
    make: Callable[[Path, int], None]
    """Writes a file of so many records of about `RECORD_BYTES`."""
    copies: Mapping[str, Callable[[Path, Path], object]]
    """What copies a file, by what does it."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Those that `recshuf.shuffle` needs."""
    longer: int = 1
    """How many times `RECORD_BYTES` a record has."""
    library: str | None = None
    """What reading, writing or copying it needs."""
    shuffle: Callable[[Path, Path], object] | None = None
    """Reads all with the format's own library, takes a random permutation, and writes it."""


def draw(rows: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the bytes of records."""
    return np.random.default_rng(0).integers(0, 256, (rows, RECORD_BYTES), np.uint8)


def make_arrow(path: Path, rows: int) -> None:
    """Write record batches of numbers and text."""
    table = pa.table({"id": range(rows), "text": [f"{row} " * (RECORD_BYTES // 8) for row in range(rows)]})
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table, 10_000)


def copy_arrow(path: Path, out: Path) -> None:
    """Copy record batches."""
    with pa.ipc.open_file(str(path)) as reader, pa.ipc.new_file(str(out), reader.schema) as writer:
        for number in range(reader.num_record_batches):
            writer.write_batch(reader.get_batch(number))


def draw_order(records: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return a random permutation."""
    return np.random.default_rng(1).permutation(len(records))


def shuffle_arrow(path: Path, out: Path) -> None:
    """Take the rows of all batches."""
    with pa.ipc.open_file(str(path)) as reader:
        table = reader.read_all()
    with pa.ipc.new_file(str(out), table.schema) as writer:
        writer.write_table(table.take(pa.array(draw_order(table))), 10_000)


def shuffle_npy(path: Path, out: Path) -> None:
    """Take the items of an array."""
    records = np.load(path)
    np.save(out, records[draw_order(records)])


def shuffle_npz(path: Path, out: Path) -> None:
    """Take the items of all arrays."""
    arrays = dict(np.load(path))
    order = draw_order(arrays["b"])
    np.savez(out, **{name: array[order] for name, array in arrays.items()})


def shuffle_binary(path: Path, out: Path) -> None:
    """Take records of bytes."""
    records = np.fromfile(path, np.uint8).reshape(-1, RECORD_BYTES)
    records[draw_order(records)].tofile(out)


def make_tfrecord(path: Path, rows: int) -> None:
    """Write payloads, by way of a table."""
    table = pa.table({"value": [row.tobytes() for row in draw(rows)]})
    recshuf.shuffle(table, path, to="tfrecord", seed=0, workers=1)


def copy_tfrecord(path: Path, out: Path) -> None:
    """Copy payloads with the package tfrecord, which makes checksums and does not compare them."""
    library = import_module("tfrecord")
    checksum = library.TFRecordWriter.masked_crc
    with out.open("xb") as file:
        for payload in library.reader.tfrecord_iterator(str(path)):
            length = len(payload).to_bytes(8, "little")
            for part in (length, payload):
                file.write(part)
                file.write(checksum(bytes(part)))


def make_tar(path: Path, rows: int) -> None:
    """Write two members for each record, most of which are long."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for row, content in enumerate(draw(rows * LONGER).reshape(rows, -1)):
            for suffix, data in (("bin", content.tobytes()), ("cls", b"%d" % (row % 10))):
                member = tarfile.TarInfo(f"{row:08d}.{suffix}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def copy_tar(path: Path, out: Path) -> None:
    """Copy members."""
    with tarfile.open(path) as archive, tarfile.open(out, "w", format=tarfile.USTAR_FORMAT) as copied:
        for member in archive:
            copied.addfile(member, archive.extractfile(member))


def make_megatron(path: Path, rows: int) -> None:
    """Write documents of tokens, by way of a table."""
    tokens = pa.FixedSizeListArray.from_arrays(pa.array(draw(rows).view("<u2").ravel()), RECORD_BYTES // 2)
    recshuf.shuffle(pa.table({"tokens": tokens}), path, to="megatron", seed=0, workers=1)


def copy_megatron(path: Path, out: Path) -> None:
    """Copy documents one by one, as Megatron's own builder does, with the same index."""
    index = np.memmap(path.with_suffix(".idx"), mode="r")
    count = int(index[18:26].view("<u8")[0])
    lengths, pointers = (
        index[34 : 34 + 4 * count].view("<i4"),
        index[34 + 4 * count :][: 8 * count].view("<i8"),
    )
    tokens = np.memmap(path, mode="r")
    with out.open("xb") as file:
        for length, pointer in zip(lengths.tolist(), pointers.tolist(), strict=True):
            file.write(tokens[pointer : pointer + 2 * length].tobytes())
    shutil.copyfile(path.with_suffix(".idx"), out.with_suffix(".idx"))


def make_json(path: Path, rows: int) -> None:
    """Write an array of objects."""
    path.write_text(json.dumps([{"id": row, "text": "word " * (RECORD_BYTES // 5)} for row in range(rows)]))


def make_lines(path: Path, rows: int) -> None:
    """Write records of four lines."""
    read = b"ACGT" * (RECORD_BYTES // 8)
    path.write_bytes(b"".join(b"@read%d\n%s\n+\n%s\n" % (row, read, b"I" * len(read)) for row in range(rows)))


def copy_lines(path: Path, out: Path) -> None:
    """Copy four lines at a time."""
    with path.open("rb") as lines, out.open("xb") as file:
        for record in zip(lines, lines, lines, lines, strict=True):
            file.writelines(record)


def copy_bytes(path: Path, out: Path) -> None:
    """Copy a file through memory."""
    with path.open("rb") as file, out.open("xb") as copied:
        shutil.copyfileobj(file, copied, 1 << 20)


BYTES = {"a copy of bytes": copy_bytes}
NUMPY = {"numpy": lambda path, out: np.fromfile(path, f"V{RECORD_BYTES}").tofile(out)}
CASES = {
    "binary": Case(
        ".bin", lambda path, rows: draw(rows).tofile(path), NUMPY | BYTES, {"record_bytes": RECORD_BYTES},
        shuffle=shuffle_binary,
    ),
    "npy": Case(
        ".npy", lambda path, rows: np.save(path, draw(rows)), {"numpy": lambda path, out: np.save(out, np.load(path))},
        shuffle=shuffle_npy,
    ),
    "npz": Case(
        ".npz",
        lambda path, rows: np.savez(path, a=draw(rows)[:, 8:], b=np.arange(rows)),
        {"numpy": lambda path, out: np.savez(out, **np.load(path))},
        shuffle=shuffle_npz,
    ),
    "arrow": Case(".arrow", make_arrow, {"pyarrow": copy_arrow}, shuffle=shuffle_arrow),
    "tfrecord": Case(".tfrecord", make_tfrecord, {"tfrecord": copy_tfrecord} | BYTES, library="google_crc32c"),
    "webdataset": Case(".tar", make_tar, {"tarfile": copy_tar} | BYTES, longer=LONGER),
    "megatron": Case(".bin", make_megatron, {"numpy": copy_megatron} | BYTES, {"overwrite": True}),
    "json": Case(
        ".json",
        make_json,
        {"json": lambda path, out: out.write_text(json.dumps(json.loads(path.read_text())))},
        {"to": "json"},
    ),
    "text, 4 lines": Case(".fastq", make_lines, {"lines of Python": copy_lines} | BYTES, {"record_lines": 4}),
}  # fmt: skip
"""The formats, by name."""


def time_least(call: Callable[[Path], object], out: Path, seconds: list[float]) -> None:
    """Add the CPU seconds of a call that writes a file anew."""
    out.unlink(missing_ok=True)
    begin = time.process_time()
    call(out)
    seconds.append(time.process_time() - begin)


def has(library: str | None) -> bool:
    """Tell whether a library is there."""
    try:
        return library is None or bool(import_module(library))
    except ImportError:
        return False


def run(name: str, case: Case, folder: Path, rows: int, rounds: int) -> list[list[str]]:
    """Return a row for each copy of a format."""
    path, out = folder / f"in{case.suffix}", folder / f"out{case.suffix}"
    case.make(path, rows)
    calls: dict[str, Callable[[Path], object]] = {
        "": lambda out: recshuf.shuffle(path, out, seed=1, workers=1, memory="4GB", **case.options)
    }
    for by, copy in case.copies.items():
        if by == name and not has(by):
            click.echo(f"{name}: not copied with {by}, which is not installed", err=True)
        else:
            calls[by] = partial(copy, path)
    if case.shuffle is not None:
        calls[SHUFFLED] = partial(case.shuffle, path)
    seconds: dict[str, list[float]] = {by: [] for by in calls}
    for _ in range(rounds):
        for by, call in calls.items():
            time_least(call, out, seconds[by])
    ours, floor = min(seconds.pop("")), min(seconds.pop(SHUFFLED, []), default=0.0)
    size = f"{path.stat().st_size / 1e6:.1f}"
    shown = [name, f"{rows:,}", size, f"{ours:.3f}", f"{rows / max(ours, 1e-9):,.0f}"]
    least = {by: min(each) for by, each in seconds.items()}
    behind = [f"{floor:.3f}", f"{ours / floor:.2f}"] if floor else []
    return [
        [*shown, by, f"{each:.3f}", f"{ours / max(each, 1e-9):.2f}", *behind] for by, each in least.items()
    ]


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.argument("names", nargs=-1, metavar="[FORMAT]...")
@click.option("--size", default="200MB", metavar="SIZE", show_default=True, help="Size of the records.")
@click.option("--rounds", default=3, metavar="N", show_default=True, help="Rounds; the least counts.")
@click.option("--small", is_flag=True, help=f"One round of {SMALL}.")
def main(names: tuple[str, ...], size: str, rounds: int, small: bool) -> None:
    """Print a table."""
    rows = parse_size(SMALL if small else size) // RECORD_BYTES
    shown: list[list[str]] = []
    for name in names or CASES:
        if name not in CASES:
            raise click.BadParameter(f"{name}: choose among {', '.join(CASES)}")
        case = CASES[name]
        if not has(case.library):
            click.echo(f"{name}: skipped, since {case.library} is not installed", err=True)
            continue
        with tempfile.TemporaryDirectory() as folder:
            shown += run(name, case, Path(folder), rows // case.longer, 1 if small else rounds)
    print(format_table(HEADS, shown))


if __name__ == "__main__":
    main()
