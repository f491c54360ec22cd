"""The memory that an error names is enough for the same run, wherever its records lie."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import recshuf
from recshuf.api import runs
from recshuf.errors import MemoryLimitError
from tests.support.numbered_files import make_inputs

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.objects.object_server import Bucket


@pytest.mark.parametrize("name", ["jsonl", "hdf5"])
def test_the_memory_that_an_error_names_is_enough(tmp_path: Path, s3_bucket: Bucket, name: str) -> None:
    inputs = make_inputs(tmp_path / "in", name, [30, 20])
    options: dict[str, Any] = {"to": "parquet", "shards": 2, "workers": 2}
    local, remote, spilled = f"{tmp_path}/out/", f"{s3_bucket.url}/out/", f"{s3_bucket.url}/tmp/"
    calls = [
        partial(recshuf.plan, inputs, local),
        partial(recshuf.plan, inputs, remote),
        partial(recshuf.plan, inputs, local, temp_dir=spilled),
        partial(runs.plan_tasks, inputs, local),
        partial(runs.plan_tasks, inputs, remote, temp_dir=spilled),
        partial(recshuf.shuffle, inputs, remote, temp_dir=spilled),
    ]
    for run in calls:
        with pytest.raises(MemoryLimitError) as told:
            run(memory="64MB", **options)
        [named] = re.findall(r"needs at least ([\d.]+ \wB) of memory", str(told.value))
        run(memory=named, **options)
