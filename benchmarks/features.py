"""Groups, duplicates and splits: `recshuf` beside what people run instead, each in a process of its own.

    python -m benchmarks.features [--megabytes 1000] [--memory 1GB]

The data are posts of users in Parquet, every second one posted before; each program writes Parquet again. Printed are seconds,
CPU seconds, peak memory, and what the output has that it should not: users in two parts, repeated texts, groups torn apart.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.markdown import format_table
from benchmarks.measure import CommandError, measure

if TYPE_CHECKING:
    from collections.abc import Sequence

_ROW_BYTES = 220
_ROWS_AT_ONCE = 200_000
_LIMIT_SECONDS = 1200
_RECSHUF = ("-m", "recshuf", "{data}", "-o", "{out}", "--seed", "1", "--memory", "{memory}", "-q")
_DUCKDB = (
    "import duckdb; duckdb.sql(\"SET memory_limit='{memory}'\"); duckdb.sql(\"COPY ({query}) TO '{out}'\")"
)
_POLARS = (
    "import polars as p; p.read_parquet('{data}').unique('text', keep='first').sample("
    "fraction=1, shuffle=True, seed=1).write_parquet('{out}')"
)
_SKLEARN = (
    "import pandas as p; from sklearn.model_selection import GroupShuffleSplit as G; d = p.read_parquet('{data}');"
    "a, b = next(G(1, test_size=0.1, random_state=1).split(d, groups=d.user)); import os; os.mkdir('{out}');"
    "[d.iloc[i].to_parquet('{out}/' + n + '.parquet') for i, n in ((a, 'train'), (b, 'val'))]"
)


def _query(text: str) -> tuple[str, ...]:
    return ("-c", _DUCKDB.replace("{query}", text))


CASES: dict[str, dict[str, tuple[str, ...]]] = {
    "no duplicates": {
        "recshuf --dedup text": (*_RECSHUF, "--dedup", "text"),
        "DuckDB DISTINCT ON": _query("SELECT DISTINCT ON (text) * FROM '{data}' ORDER BY random()"),
        "polars unique, sample": ("-c", _POLARS),
    },
    "groups": {
        "recshuf --group-by user": (*_RECSHUF, "--group-by", "user"),
        "DuckDB ORDER BY hash": _query("SELECT * FROM '{data}' ORDER BY hash(user)"),
    },
    "parts without leaks": {
        "recshuf --split-by user": (*_RECSHUF, "--split", "train=0.9,val=0.1", "--split-by", "user"),
        "sklearn GroupShuffleSplit": ("-c", _SKLEARN),
    },
}


def make_posts(path: Path, megabytes: int) -> int:
    """Write posts of about so many megabytes, and return their number."""
    count, chance = megabytes * 1_000_000 // _ROW_BYTES, np.random.default_rng(0)
    schema = pa.schema([("id", pa.int64()), ("user", pa.int64()), ("text", pa.string())])
    with pq.ParquetWriter(path, schema) as writer:
        for first in range(0, count, _ROWS_AT_ONCE):
            ids = np.arange(first, min(first + _ROWS_AT_ONCE, count))
            users = chance.integers(0, count // 50 + 1, len(ids))
            texts = [f"{number // 2 * 2_654_435_761 % 2**64:020d} " * 9 for number in ids.tolist()]
            writer.write_table(pa.table([ids, users, texts], schema=schema))
    return count


def find_flaws(case: str, output: Path) -> str:
    """Return what an output has that it should not have, and its number of records."""
    import duckdb

    files = f"'{output}/**/*.parquet'" if output.is_dir() else f"'{output}'"
    queries = {
        "no duplicates": f"SELECT count(*) - count(DISTINCT text) FROM {files}",
        "groups": "SELECT count(*) - count(DISTINCT user) FROM (SELECT user, lag(user) OVER () AS before "
        f"FROM {files}) WHERE before IS NULL OR before != user",
        "parts without leaks": "SELECT count(*) FROM (SELECT user FROM "
        f"read_parquet({files}, filename=true) GROUP BY user HAVING count(DISTINCT parse_dirpath(filename) || "
        "(filename LIKE '%val%')) > 1)",
    }
    words = {"no duplicates": "repeated", "groups": "torn", "parts without leaks": "users in two parts"}
    found = duckdb.sql(queries[case]).fetchall()[0][0]
    records = duckdb.sql(f"SELECT count(*) FROM {files}").fetchall()[0][0]
    return f"{records:,} records, {found:,} {words[case]}"


def run_case(case: str, name: str, arguments: Sequence[str], data: Path, memory: str) -> list[str]:
    """Run a program, and return its row of the table."""
    folder = data.parent / "output"
    folder.mkdir()
    output = folder / ("parts/" if case == "parts without leaks" else "out.parquet")
    shown = str(output) + ("/" if case == "parts without leaks" and name.startswith("recshuf") else "")
    filled = [
        text.replace("{data}", str(data)).replace("{out}", shown).replace("{memory}", memory)
        for text in arguments
    ]
    try:
        used = measure([sys.executable, *filled], log=folder / "log", limit_seconds=_LIMIT_SECONDS)
        figures = [f"{used.seconds:.1f}", f"{used.cpu_seconds:.1f}", f"{used.peak_bytes / 1e6:.0f}"]
        return [case, name, *figures, find_flaws(case, output)]
    except CommandError as error:
        return [case, name, "", "", "", str(error)]
    finally:
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        folder.rmdir()


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--megabytes", default=1000, show_default=True, help="Size of the posts in memory.")
@click.option("--memory", default="1GB", show_default=True, help="Limit of recshuf and DuckDB.")
def main(megabytes: int, memory: str) -> None:
    """Print a line for each program."""
    with tempfile.TemporaryDirectory() as name:
        data = Path(name) / "posts.parquet"
        count = make_posts(data, megabytes)
        print(f"{count:,} posts, {data.stat().st_size / 1e6:.0f} MB in Parquet\n")
        rows = [
            run_case(case, program, arguments, data, memory)
            for case, programs in CASES.items()
            for program, arguments in programs.items()
        ]
    print(format_table(["", "program", "s", "CPU s", "peak MB", "output"], rows))


if __name__ == "__main__":
    main()
