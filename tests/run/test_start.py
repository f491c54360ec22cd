"""What a run does not use is not imported: it would be most of the time of a small one."""

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

SHUFFLE = """
import sys
from recshuf.cli import main
sys.argv = ["recshuf", *sys.argv[1:], "-q"]
main()
print(*sys.modules)
slow = [
    kind.__qualname__
    for name in sys.modules if name.startswith("recshuf.")
    for kind in vars(sys.modules[name]).values() if isinstance(kind, type) and "__slots__" in vars(kind)
    if "__dataclass_params__" in vars(kind) and kind.__dataclass_params__.frozen
]
print(*(slow if sys.version_info < (3, 13) else ()))
"""
UNUSED = (
    "psutil", "pyarrow.compute", "recshuf.audit.order", "recshuf.audit.verify", "recshuf.formats.arrays", "recshuf.formats.csv",
    "recshuf.formats.hdf5", "recshuf.formats.text.", "recshuf.formats.tfrecord",
    "recshuf.formats.webdataset", "recshuf.loader", "recshuf.output.objects", "recshuf.output.quarantine",
    "recshuf.piles.kept", "recshuf.run.stores", "recshuf.run.engines",
    "recshuf.piles.object_sets", "recshuf.run.verify", "recshuf.storage.writing", "recshuf.torch", "recshuf.train",
    "azure", "boto3", "botocore", "fsspec", "google", "obstore", "requests",
)  # fmt: skip
OTHER = {"jsonl": "recshuf.formats.parquet", "parquet": "recshuf.formats.jsonl"}


@pytest.mark.parametrize(("suffix", "memory"), [("jsonl", "64MB"), ("parquet", "1GB")])
def test_a_simple_run_imports_what_it_uses(tmp_path: Path, suffix: str, memory: str) -> None:
    source, output = tmp_path / f"a.{suffix}", tmp_path / f"b.{suffix}"
    if suffix == "jsonl":
        source.write_text('{"a": 1}\n' * 9)
    else:
        pq.write_table(pa.table({"a": range(9), "b": [[1, 2]] * 9}), source)
    command = [sys.executable, "-c", SHUFFLE, source, "-o", output, "--memory", memory]
    names, slow = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n", 1)
    assert "recshuf.run.driver" in names
    assert output.exists()
    assert [name for name in names.split() if name.startswith((*UNUSED, OTHER[suffix]))] == []
    assert slow.split() == [], "use recshuf.dataclass"
