"""Peak memory of verify and check, each in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.data import make_data

MB = 10**6
MEMORY = 64 * MB
BASE = 150 * MB
"""What the interpreter and its libraries may take beside the limit."""

CHILD = """
import json, sys
import recshuf
from recshuf.system.memory import peak_bytes
name, arguments, options = json.loads(sys.argv[1])
getattr(recshuf, name)(*arguments, **options)
print(peak_bytes())
"""


def measure_peak(name: str, *arguments: Any, **options: Any) -> int:
    """Return the peak memory in bytes of one call of a function of `recshuf`, at the limit `MEMORY` by default."""
    call = json.dumps([name, arguments, {"memory": MEMORY, "workers": 2} | options], default=str)
    child = subprocess.run(
        [sys.executable, "-c", CHILD, call], capture_output=True, text=True, timeout=100, check=False
    )
    assert child.returncode == 0, child.stderr[-2000:]
    return int(child.stdout)


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return 2,500,000 lines, more than a sample holds."""
    return make_data("lines20", 50 * MB, tmp_path_factory.mktemp("lines") / "in.txt")[0]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return two data sets without a common record, of several times the memory limit in all."""
    folder = tmp_path_factory.mktemp("tables")
    for seed in range(2):
        make_data("parquet", 100 * MB, folder / str(seed), seed=seed)
    return [folder / "0", folder / "1"]


@pytest.mark.slow
def test_a_sample_of_long_values_stays_within_the_limit(tables: list[Path]):
    assert measure_peak("check", tables, column="text") <= MEMORY + BASE


@pytest.mark.slow
def test_a_search_for_records_that_differ_stays_within_the_limit(tables: list[Path]):
    assert measure_peak("verify", *tables) <= MEMORY + BASE
