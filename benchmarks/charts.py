"""The results as pictures."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from benchmarks.cases import FLOOR, OURSELVES

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

COLUMNS = 2
COLOURS = {OURSELVES: "#1f6fb2", FLOOR: "#b9b9b9"}
RIVAL_COLOUR = "#e39a4b"
SPREAD_FOR_LOG = 20
"""Bars whose lengths differ more than this many times go on a logarithmic axis."""


def draw_report(report: dict[str, Any], path: Path) -> None:
    """Draw the seconds of everybody, a panel for each case, the rounds as dots."""
    cases = report["cases"]
    rows = math.ceil(len(cases) / COLUMNS)
    figure = Figure(figsize=(11, 0.6 + 2.1 * rows), layout="constrained")
    axes = figure.subplots(rows, COLUMNS, squeeze=False)
    for panel, case in zip(axes.flat, cases, strict=False):
        draw_case(panel, case)
    for panel in axes.flat[len(cases) :]:
        panel.set_axis_off()
    size = f"{report['size_bytes'] / 1e9:g} GB"
    figure.suptitle(
        f"Seconds for {size} on {report['machine']['cores']} cores, {report['date']}", fontsize=11
    )
    figure.savefig(path, dpi=110)


def draw_case(panel: Axes, case: dict[str, Any]) -> None:
    """Draw the bars of one case."""
    contenders = case["contenders"][::-1]
    names = [contender["name"] for contender in contenders]
    seconds = [contender["median"]["seconds"] if contender["median"] else 0 for contender in contenders]
    bars = panel.barh(names, seconds, color=[COLOURS.get(name, RIVAL_COLOUR) for name in names])
    panel.bar_label(bars, [describe(contender) for contender in contenders], padding=4, fontsize=8)
    for place, contender in enumerate(contenders):
        if contender["median"]:
            times = [usage["seconds"] for usage in contender["rounds"]]
            panel.plot(times, [place] * len(times), ".", color="black", markersize=3)
    shown = [each for each in seconds if each]
    if shown and max(shown) > SPREAD_FOR_LOG * min(shown):
        panel.set_xscale("log")
        panel.set_xlim(min(shown) / 2, max(shown) * 6)
    else:
        panel.set_xlim(0, 1.3 * max(shown, default=1))
    panel.set_title(case["name"], fontsize=10)
    panel.tick_params(labelsize=8)
    panel.spines[["top", "right"]].set_visible(False)


def describe(contender: dict[str, Any]) -> str:
    """Return the words at the end of a bar."""
    if not contender["median"]:
        return str(contender["problem"])[:40]
    seconds: float = contender["median"]["seconds"]
    return f"{seconds:.2f} s"
