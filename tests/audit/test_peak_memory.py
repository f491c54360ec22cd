"""Peak memory of verify and check, each in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

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


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return two data sets without a common record, of several times the memory limit in all."""
    folder = tmp_path_factory.mktemp("tables")
    for seed in range(2):
        make_data("parquet", 100 * MB, folder / str(seed), seed=seed)
    return [folder / "0", folder / "1"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["check", "verify"])
def test_a_sample_of_long_values_and_a_search_for_records_stay_within_the_limit(
    tables: list[Path], name: str
):
    given, options = ([tables], {"column": "text"}) if name == "check" else (tables, {})
    call = json.dumps([name, given, options | {"memory": MEMORY, "workers": 2}], default=str)
    child = subprocess.run([sys.executable, "-c", CHILD, call], capture_output=True, text=True, timeout=100)
    assert child.returncode == 0, child.stderr[-2000:]
    assert int(child.stdout) <= MEMORY + BASE
