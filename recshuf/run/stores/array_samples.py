"""Arrays and tensors among the values of samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def to_numpy(value: Any) -> Any:
    """Return a tensor as an array of NumPy, floats that NumPy lacks as float32, which holds them; all else as it is."""
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        value = value.detach().cpu()
        try:
            return value.numpy()
        except TypeError:
            return value.float().numpy() if value.dtype.is_floating_point else value
    kind = getattr(value, "dtype", None)
    if isinstance(kind, np.dtype) and kind.kind == "V" and "float" in kind.name:  # of the package ml_dtypes
        return np.asarray(value).astype(np.float32)
    return value


def stack(values: Sequence[Any]) -> NDArray[Any] | None:
    """Return arrays of several axes, of one type and shape, as one array; None if the values are others."""
    arrays = [to_numpy(one) for one in values]
    forms = {(one.dtype, one.shape) if isinstance(one, np.ndarray) else None for one in arrays}
    is_one = len(forms) == 1 and None not in forms and arrays[0].ndim > 1 and arrays[0].size > 0
    return np.stack(arrays) if is_one else None


def make_plain(value: Any) -> Any:
    """Return a value as Arrow takes it: arrays at any depth with one axis, in place of those with more lists of them."""
    value = to_numpy(value)
    if isinstance(value, np.ndarray) and value.ndim != 1:
        return [make_plain(row) for row in value] if value.ndim else value[()]
    if isinstance(value, Mapping):
        return {name: make_plain(inner) for name, inner in value.items()}
    return [make_plain(inner) for inner in value] if isinstance(value, list | tuple) else value
