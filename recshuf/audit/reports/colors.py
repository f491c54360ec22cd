"""Colours of a picture: a ramp for numbers, or one colour per label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from recshuf.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Values = NDArray[np.floating] | NDArray[np.integer]
    Colours = NDArray[np.uint8]

OKLAB_TO_ROOTS = np.array(
    [[1, 0.3963377774, 0.2158037573], [1, -0.1055613458, -0.0638541728], [1, -0.0894841775, -1.2914855480]]
)
ROOTS_TO_LINEAR = np.array(
    [
        [4.0767416621, -3.3077115913, 0.2309699292],
        [-1.2684380046, 2.6097574011, -0.3413193965],
        [-0.0041960863, -0.7034186147, 1.7076147010],
    ]
)
_RAMP_STOPS = np.array(
    [
        [0.25, 0.11, 300],
        [0.42, 0.13, 285],
        [0.55, 0.10, 240],
        [0.68, 0.11, 175],
        [0.82, 0.16, 130],
        [0.94, 0.15, 105],
    ]
)
"""Lightness, chroma and hue in degrees: ever lighter, so that the order shows without hues."""
RAMP_STEPS = 128
LABEL_COLOURS = np.array(
    [
        [0, 114, 178],
        [230, 159, 0],
        [0, 158, 115],
        [204, 121, 167],
        [86, 180, 233],
        [213, 94, 0],
        [240, 228, 66],
        [0, 0, 0],
    ],
    np.uint8,
)
"""The palette of Okabe and Ito, safe for colour-blind readers; the first two differ most."""
GREY = np.array([216, 216, 216], np.uint8)
"""Colour of missing values and of labels without one. A darker grey looks purple to readers who do not see green."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a legend."""

    colours: Colours
    """Shape ``(n, 3)``: one colour, or the steps of a ramp."""
    ends: tuple[str, ...]
    """The name of the colour, or of both ends of the ramp."""


def convert_oklab(lab: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sRGB values of rows of OKLab coordinates; those that a screen can show are from 0 to 1.

    >>> convert_oklab(np.array([[1.0, 0.0, 0.0]])).round(3).tolist()
    [[1.0, 1.0, 1.0]]
    """
    linear = (lab @ OKLAB_TO_ROOTS.T) ** 3 @ ROOTS_TO_LINEAR.T
    bright = 1.055 * np.maximum(linear, 0) ** (1 / 2.4) - 0.055
    colours: NDArray[np.float64] = np.where(linear <= 0.0031308, 12.92 * linear, bright)
    return colours


def trace_ramp(step_count: int) -> NDArray[np.float64]:
    """Return OKLab coordinates at even distances along the ramp."""
    lightness, chroma, hue = _RAMP_STOPS.T
    stops = np.column_stack((lightness, chroma * np.cos(np.radians(hue)), chroma * np.sin(np.radians(hue))))
    lengths = np.linalg.norm(np.diff(stops, axis=0), axis=1)
    marks = np.concatenate(([0], np.cumsum(lengths)))
    distances = np.linspace(0, marks[-1], step_count)
    return np.column_stack([np.interp(distances, marks, axis) for axis in stops.T])


@dataclass(frozen=True, slots=True)
class Ramp:
    """Colours for values from 0 to 1, from dark violet to light yellow; NaN is grey."""

    subject: str = "position in the input"
    """What a value shows of a record."""
    first: str = "first"
    last: str = "last"

    def paint(self, values: Values) -> Colours:
        if values.size and not (np.nanmin(values, initial=0) >= 0 and np.nanmax(values, initial=0) <= 1):
            raise UsageError("values for a picture must be fractions from 0 to 1")
        is_missing = np.isnan(values)
        steps = np.where(is_missing, 0, values * RAMP_STEPS).astype(np.int64)
        colours = make_ramp()[np.minimum(steps, RAMP_STEPS - 1)]
        colours[is_missing] = GREY
        return colours

    def list_entries(self, panels: Sequence[Values]) -> list[Entry]:
        is_missing = any(np.isnan(values).any() for values in panels)
        missing = [Entry(GREY[np.newaxis], ("no value",))] if is_missing else []
        return [Entry(make_ramp(), (self.first, self.last)), *missing]


def make_ramp() -> Colours:
    """Return the colours of the ramp, shape ``(RAMP_STEPS, 3)``."""
    return np.rint(np.clip(convert_oklab(trace_ramp(RAMP_STEPS)), 0, 1) * 255).astype(np.uint8)


class Labels:
    """Colours for label codes: one for each of the most frequent labels, grey for the others.

    A code has its name in `names` and its number of records in `counts`.
    """

    def __init__(self, names: Sequence[str], counts: Sequence[int], subject: str = "label") -> None:
        self.names = names
        self.subject = subject
        frequent = np.argsort(-np.asarray(counts), kind="stable")[: len(LABEL_COLOURS)]
        # In the order of codes, so that colours do not depend on small differences of frequency.
        self._coloured = np.sort(frequent)
        self._colours = np.tile(GREY, (len(names), 1))
        self._colours[self._coloured] = LABEL_COLOURS[: frequent.size]

    def paint(self, values: Values) -> Colours:
        codes = values.astype(np.int64)
        if codes.size and not 0 <= codes.min() <= codes.max() < len(self.names):
            raise UsageError(f"label codes for a picture must be from 0 to {len(self.names) - 1}")
        return self._colours[codes]

    def list_entries(self, panels: Sequence[Values]) -> list[Entry]:  # noqa: ARG002 - all labels, shown or not
        entries = [Entry(self._colours[[code]], (self.names[code],)) for code in self._coloured]
        other_count = len(self.names) - len(entries)
        if other_count:
            entries.append(Entry(GREY[np.newaxis], (f"{other_count:,} other{'s' * (other_count > 1)}",)))
        return entries


Key = Ramp | Labels
"""What maps values to colours and describes the colours in a legend."""
