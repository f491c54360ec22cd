"""`PileWriter` takes tensors: in samples and as columns, also of floats that NumPy lacks, and on a graph."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch

import recshuf
from recshuf.errors import UsageError


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int16, torch.bool]
)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
@pytest.mark.parametrize("is_column", [True, False])
def test_tensors_are_kept(
    tmp_path: Path, dtype: torch.dtype, shape: tuple[int, ...], is_column: bool
) -> None:
    values = (torch.arange(4).reshape(4, *[1] * len(shape)).expand(4, *shape) % 2).to(dtype)
    values.requires_grad = dtype.is_floating_point
    with recshuf.PileWriter(tmp_path / "store", "a", seed=1, piles=1) as writer:
        if is_column:
            writer.write({"n": range(4), "x": values})
        else:
            writer.write([{"n": number, "x": value} for number, value in enumerate(values)])
    found = pa.Table.from_batches(recshuf.PileLoader(tmp_path / "store", 4, output="arrow")).sort_by("n")
    assert found["x"].to_pylist() == values.float().tolist()
    kind = found.schema.field("x").type
    while pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    small = {torch.int16: pa.int16(), torch.bool: pa.bool_()}
    assert kind == small.get(dtype, pa.float32())


def test_tensors_that_are_no_arrays_are_refused_in_one_line(tmp_path: Path) -> None:
    for number, value in enumerate((torch.eye(2).to_sparse(), torch.ones(2, 2, dtype=torch.complex64))):
        with (
            recshuf.PileWriter(tmp_path / str(number), "a") as writer,
            pytest.raises(
                UsageError, match=r"^column 'x': [^\n]*; convert the values, or give an Arrow array$"
            ),
        ):
            writer.write([{"x": value}])
