"""Bytes of Arrow shards do not depend on which records were in memory together."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import recshuf


def lists(values: pa.Array, nulls: list[bool] | None = None) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(values, 2, mask=None if nulls is None else pa.array(nulls))


def struct(values: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays([values], ["a"])


def make(kind: str, numbers: pa.Array) -> pa.Array:
    """Return lists of 48 numbers or texts, a third of which are null."""
    nulls = [index % 3 == 0 for index in range(24)]
    texts = numbers.cast(pa.string())
    made: dict[str, Any] = {
        "numbers": lists(numbers, nulls),
        "flags": lists(numbers.cast(pa.bool_()), nulls),
        "texts": lists(texts, nulls),
        "views": lists(texts.cast(pa.string_view()), nulls),
        "in a struct": struct(lists(numbers, nulls)),
        "in a list": pa.ListArray.from_arrays(list(range(0, 25, 2)), lists(numbers, nulls)),
        "in one of its kind": lists(lists(numbers, nulls), nulls[:12]),
        "of structs with one inside": lists(struct(lists(numbers, nulls)), nulls[:12]),
        "of extensions": lists(pa.ExtensionArray.from_storage(pa.json_(), texts), nulls),
        "of lists": lists(pa.ListArray.from_arrays(list(range(0, 49, 2)), numbers), nulls[:12]),
    }
    return made[kind]


KINDS = (
    "numbers",
    "flags",
    "texts",
    "views",
    "in a struct",
    "in a list",
    "in one of its kind",
    "of structs with one inside",
    "of extensions",
    "of lists",
)


@pytest.mark.parametrize("kind", KINDS)
def test_lists_of_a_fixed_size_with_nulls_have_the_same_bytes_whatever_lay_beside_them(
    tmp_path: Path, kind: str
) -> None:
    some, full = (make(kind, pa.array(range(48), mask=np.arange(48) % 2 == rest)) for rest in (0, 9))
    paths = [tmp_path / f"{index}.arrow" for index in range(3)]
    for index, path in enumerate(paths):
        table = pa.table({"c": (some, full)[index > 0].slice(3 * index, 1 + 2 * (index > 0))})
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table)
    rows = [str(value) for path in paths for value in pa.ipc.open_file(path).read_all()["c"].to_pylist()]
    for seed in range(6):
        outputs = []
        for piles, workers in ((1, 1), (16, 2), (4, 2)):
            recshuf.shuffle(
                paths,
                tmp_path / "out/",
                seed=seed,
                piles=piles,
                workers=workers,
                to="arrow",
                shards=4,
                memory="400MB",
                verify=True,
                overwrite=True,
            )
            shards = sorted((tmp_path / "out").iterdir())
            outputs.append(tuple(shard.read_bytes() for shard in shards))
        assert len({*outputs}) == 1
        found = pa.concat_tables([pa.ipc.open_file(shard).read_all() for shard in shards])
        found.validate(full=True)
        assert sorted(map(str, found["c"].to_pylist())) == sorted(rows)
