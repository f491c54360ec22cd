"""The demo: labelled records, shuffled in less memory than they need, verified, checked and drawn."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recshuf.api.checks import check, picture, verify
from recshuf.api.runs import shuffle
from recshuf.audit.reports.text import check_lines, duration, verdict
from recshuf.system.units import count_of, format_size

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


LABELS = ("cat", "dog")
ROWS_PER_LABEL = 100_000
MEMORY = "64MB"
SEED = 7
_TEXT_BYTES = 600
_ROW_GROUP_ROWS = 10_000
_LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz      ", np.uint8)


def run_demo(folder: Path, say: Callable[[str], object]) -> None:
    inputs, output = folder / "sorted", folder / "shuffled"
    _make_inputs(inputs)
    size = sum(path.stat().st_size for path in inputs.iterdir())
    records = count_of(len(LABELS) * ROWS_PER_LABEL, "record")
    say(f"1. Made {records}, {format_size(size)} of Parquet: all cats, then all dogs, in {inputs}")
    done = shuffle(inputs, f"{output}/", seed=SEED, memory=MEMORY)
    say(
        f"2. Shuffled them in {MEMORY} of memory in {duration(done.seconds)}: {format_size(done.spilled_bytes)} went through "
        f"the disk; seed {SEED} gives the same files again, with any memory"
    )
    proof = verify(inputs, output)
    say(f"3. Verified, record by record: {verdict(proof, str(output))}")
    order = check(output, against=inputs)
    say("4. Checked the order against the inputs; a score beyond 6 would mean that it is not random:")
    for line in check_lines(order, [str(output)], with_all=True):
        say(f"   {line}")
    if find_spec("PIL") is None:
        say("5. No picture: Pillow is missing; install recshuf[report]")
        return
    path = folder / "picture.png"
    path.write_bytes(picture(output, against=inputs, column="label", title="100,000 cats and 100,000 dogs"))
    say(f"5. Drew the labels before and after: {path}")


def _make_inputs(folder: Path) -> None:
    """Write one file for each label, always with the same bytes."""
    folder.mkdir(parents=True)
    for number, label in enumerate(LABELS):
        # Opened here: the library takes no names that are not UTF-8.
        with (folder / f"{number}-{label}s.parquet").open("wb") as file:
            pq.write_table(_make_table(number, label), file, row_group_size=_ROW_GROUP_ROWS)


def _make_table(number: int, label: str) -> pa.Table:
    rows = np.arange(ROWS_PER_LABEL) + number * ROWS_PER_LABEL
    bits = np.random.Philox(number).random_raw(ROWS_PER_LABEL * _TEXT_BYTES // 8).view(np.uint8)
    offsets = np.arange(ROWS_PER_LABEL + 1, dtype=np.int32) * _TEXT_BYTES
    text = pa.StringArray.from_buffers(
        ROWS_PER_LABEL, pa.py_buffer(offsets), pa.py_buffer(_LETTERS[bits % len(_LETTERS)])
    )
    return pa.table({"id": rows, "label": [label] * ROWS_PER_LABEL, "text": text})
