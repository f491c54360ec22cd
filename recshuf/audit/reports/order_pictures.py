"""Pictures of the order of records in files: of data alone, or of inputs and output side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from recshuf.audit.order.sampling import match_output, sample_column
from recshuf.audit.order.value_ranks import MOST_LABELS, name_codes, rank_densely
from recshuf.audit.reports.colors import Labels, Ramp
from recshuf.audit.reports.picture import Panel, draw_picture, encode_png
from recshuf.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recshuf.audit.order.matching import Matching
    from recshuf.audit.order.sample import BottomKSample
    from recshuf.audit.reports.colors import Key
    from recshuf.job.job import Job
    from recshuf.job.progress import Progress

BEFORE, AFTER = "before", "after"


def draw_matching(matching: Matching) -> list[Panel]:
    """Return the panels of inputs and output, coloured by the records' positions in the inputs."""
    count = len(matching.order)
    positions = np.arange(count) / max(1, count - 1)
    before = Panel(BEFORE, positions, round(count / matching.share))
    return [before, Panel(AFTER, positions[matching.order], matching.records)]


def draw_values(samples: Sequence[BottomKSample], column: str) -> tuple[list[Panel], Key]:
    """Return a panel for each of one or two samples of a column's values, and the colours of all panels.

    Raises
    ------
    UsageError
        When values have no order, or the two samples have no type in common.
    """
    taken = [sample.take().values for sample in samples]
    try:
        both = pa.chunked_array([values.cast(taken[0].type) for values in taken])
    except pa.ArrowException as error:
        raise UsageError(f"column {column!r} is not the same before and after: {error}") from error
    codes, key = _choose_key(both, column)
    parts = np.split(codes, np.cumsum([len(values) for values in taken])[:-1])
    titles = [BEFORE, AFTER] if len(samples) > 1 else [""]
    panels = [
        Panel(name, values, sample.records)
        for name, values, sample in zip(titles, parts, samples, strict=True)
    ]
    return panels, key


def picture_matching(job: Job, progress: Progress, id_column: str | None, title: str) -> bytes:
    """Return a PNG of the records of inputs and output, coloured by their positions in the inputs.

    Raises
    ------
    RecshufError
        As `recshuf.audit.order.sampling.match_output` does, and when Pillow is not installed.
    """
    panels = draw_matching(match_output(job, progress, id_column))
    return encode_png(draw_picture(panels, Ramp(), title))


def picture_values(jobs: Sequence[Job], progress: Progress, column: str, title: str) -> bytes:
    """Return a PNG of the records of one or two jobs' inputs, coloured by the values of a column.

    Raises
    ------
    RecshufError
        As `recshuf.audit.order.sampling.sample_column` does; when values have no order, or Pillow is not installed.
    """
    panels, key = draw_values([sample_column(job, progress, column, len(jobs)) for job in jobs], column)
    return encode_png(draw_picture(panels, key, title))


def _choose_key(values: pa.ChunkedArray, column: str) -> tuple[np.ndarray, Key]:
    """Return a number for each value and its colours: label codes if there are few labels, else ranks on a ramp."""
    codes = rank_densely(values)
    sizes = np.bincount(codes)
    if len(sizes) <= MOST_LABELS and len(sizes) < len(codes):
        return codes, Labels(name_codes(values, codes), sizes.tolist(), column)
    return codes / max(1, len(sizes) - 1), Ramp(f"{column}, by rank", "lowest", "highest")
