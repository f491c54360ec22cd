"""Pictures of files: in which order the records of an output, or of its inputs too, follow each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from recshuf.audit.order.sampling import read_origins, read_places, read_values
from recshuf.audit.order.value_ranks import MOST_LABELS, name_codes, rank_densely
from recshuf.audit.reports.picture import Key, Labels, Panel, Ramp, draw_picture, encode_png
from recshuf.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recshuf.audit.order.matching import Origins
    from recshuf.audit.order.sample import Sample
    from recshuf.job.job import Job
    from recshuf.job.progress import Progress

BEFORE, AFTER = "before", "after"


def draw_origins(origins: Origins, record_count: int) -> list[Panel]:
    """Return the panels of inputs and output, by places in the inputs; `record_count` is that of the output."""
    count = len(origins.order)
    places = np.arange(count) / max(1, count - 1)
    before = Panel(BEFORE, places, round(count / origins.share))
    return [before, Panel(AFTER, places[origins.order], record_count)]


def draw_values(samples: Sequence[Sample], column: str) -> tuple[list[Panel], Key]:
    """Return a panel for each sample of values of a column, one or two, and the colours of both.

    Raises
    ------
    UsageError
        When values have no order, or the two samples have no type in common.
    """
    taken = [sample.take().values for sample in samples]
    try:
        both = pa.chunked_array([values.cast(taken[0].type) for values in taken]).combine_chunks()
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


def picture_origins(
    job: Job, progress: Progress, id_column: str | None, title: str, *, by_places: bool = False
) -> bytes:
    """Return a PNG of the records of a job's inputs and output, coloured by their place in the inputs.

    With `by_places`, the job's inputs are the output of a run, and say which place that is.

    Raises
    ------
    RecshufError
        As `recshuf.audit.order.sampling.read_origins` does, and when Pillow is not installed.
    """
    found = read_places(job, progress) if by_places else read_origins(job, progress, id_column)
    panels = draw_origins(*found)
    return encode_png(draw_picture(panels, Ramp(), title))


def picture_values(jobs: Sequence[Job], progress: Progress, column: str, title: str) -> bytes:
    """Return a PNG of the records of one job's inputs, or two jobs', coloured by the values of a column.

    Raises
    ------
    RecshufError
        As `recshuf.audit.order.sampling.read_values` does; when values have no order, or Pillow is not installed.
    """
    panels, key = draw_values([read_values(job, progress, column) for job in jobs], column)
    return encode_png(draw_picture(panels, key, title))


def _choose_key(values: pa.Array, column: str) -> tuple[np.ndarray, Key]:
    """Return what stands for each value, and its colours: labels where there are few, else a ramp of all values."""
    codes = rank_densely(values)
    sizes = np.bincount(codes)
    if len(sizes) <= MOST_LABELS and len(sizes) < len(codes):
        return codes, Labels(name_codes(values, codes), sizes.tolist(), column)
    return codes / max(1, len(sizes) - 1), Ramp(f"{column}, by rank", "lowest", "highest")
