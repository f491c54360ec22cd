"""A small Parquet set sorted by label, to try a shuffle on, and a look at the order of its labels.

``python -m recshuf.sample DIR`` makes the set, ``python -m recshuf.sample --show DIR...`` shows the labels of it
and of what became of it, one letter for a row at every so many rows.
"""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

LABELS = ("bird", "cat", "dog", "fox")
ROWS_PER_LABEL = 25_000
"""Rows of each file; a file has one label."""

_ROW_GROUP_ROWS = 5_000
_LETTERS = 60


def make_sample(folder: Path) -> list[Path]:
    """Write one file for each label and return their paths; the same bytes every time.

    Columns: ``id`` counts the rows of all files, ``score`` is uniform in [0, 1).
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, label in enumerate(LABELS):
        path = folder / f"part-{number}.parquet"
        pq.write_table(_make_table(number, label), path, row_group_size=_ROW_GROUP_ROWS)
        paths.append(path)
    return paths


def _make_table(number: int, label: str) -> pa.Table:
    ids = np.arange(number * ROWS_PER_LABEL, (number + 1) * ROWS_PER_LABEL, dtype=np.int64)
    # The raw stream, unlike the distributions of NumPy, never changes between versions.
    bits = np.random.Philox(number).random_raw(ROWS_PER_LABEL)
    texts = np.char.add(f"what was said of {label} number ", ids.astype(np.str_))
    return pa.table(
        {
            "id": ids,
            "label": [label] * ROWS_PER_LABEL,
            "score": (bits >> np.uint64(11)) * 2.0**-53,
            "text": texts.tolist(),
        }
    )


def show_labels(folder: Path) -> list[str]:
    """Return a line for each Parquet file: its name, the labels of rows at equal distances, counts by label.

    Raises
    ------
    click.ClickException
        When the folder has no Parquet files.
    """
    paths = sorted(folder.glob("*.parquet"))
    if not paths:
        raise click.ClickException(
            f"{folder}: no Parquet files; make them with python -m recshuf.sample {folder}"
        )
    return [f"{path.name:<20}  {_describe(path)}" for path in paths]


def _describe(path: Path) -> str:
    labels = pq.ParquetFile(path).read(["label"]).column(0).to_numpy()
    places = np.linspace(0, len(labels), min(_LETTERS, len(labels)), endpoint=False).astype(np.int64)
    letters = "".join(labels[places].astype("U1"))
    names, counts = np.unique(labels, return_counts=True)
    shares = "  ".join(f"{name} {count:,}" for name, count in zip(names, counts, strict=True))
    return f"{letters}  {shares}"


@click.command()
@click.argument("folders", metavar="DIR...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--show", is_flag=True, help="Show the order of the labels in each DIR instead of making a set."
)
def main(folders: tuple[Path, ...], show: bool) -> None:
    """Make a Parquet set sorted by label in DIR."""
    for folder in folders:
        if show:
            click.echo(f"{folder}: first letter of the label, every so many rows")
            click.echo("\n".join(f"  {line}" for line in show_labels(folder)))
        else:
            paths = make_sample(folder)
            click.echo(
                f"{folder}: {len(LABELS) * ROWS_PER_LABEL:,} rows in {len(paths)} files, sorted by label"
            )


if __name__ == "__main__":
    main(prog_name="python -m recshuf.sample")
