"""The results as pictures."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from benchmarks.cases import FLOOR, OURSELVES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from matplotlib.axes import Axes

COLUMNS = 2
COLOURS = {OURSELVES: "#1f6fb2", FLOOR: "#b9b9b9"}
RIVAL_COLOUR = "#e39a4b"
SPREAD_FOR_LOG = 50
"""Bars whose lengths differ more than this many times go on a logarithmic axis."""


def draw_report(report: dict[str, Any], path: Path) -> None:
    """Draw the seconds of all tools, with a panel for each case and a dot for each round."""
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
    panel.barh(names, seconds, color=[COLOURS.get(name, RIVAL_COLOUR) for name in names])
    longest = max(seconds, default=0)
    for place, contender in enumerate(contenders):
        times = [usage["seconds"] for usage in contender["rounds"]] if contender["median"] else []
        longest = max([longest, *times])
        panel.plot(times, [place] * len(times), ".", color="black", markersize=3)
        panel.annotate(
            describe(contender),
            (max(times, default=0), place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    shown = [each for each in seconds if each]
    if shown and max(shown) > SPREAD_FOR_LOG * min(shown):
        panel.set_xscale("log")
        panel.set_xlim(min(shown) / 2, longest * 6)
    else:
        panel.set_xlim(0, 1.3 * longest or 1)
    panel.set_title(case["name"], fontsize=10)
    panel.tick_params(labelsize=8)
    panel.spines[["top", "right"]].set_visible(False)


def describe(contender: dict[str, Any]) -> str:
    """Return the words at the end of a bar."""
    if not contender["median"]:
        return str(contender["problem"])[:40]
    seconds: float = contender["median"]["seconds"]
    return f"{seconds:.2f} s"


# Growth


def draw_growth(report: dict[str, Any], path: Path) -> None:
    """Draw seconds per GB over sizes, GB per second over cores, and what shapes cost."""
    figure = Figure(figsize=(14, 4), layout="constrained")
    sizes, cores, shapes = figure.subplots(1, 3)
    points = report["points"]
    draw_lines(sizes, [point for point in points if point["part"] == "sizes"], find_seconds_per_gb)
    sizes.set(title="seconds per GB, data 16 times the memory limit", xlabel="GB of data", xscale="log")
    places = sorted({point["place"] / 1e9 for point in points if point["part"] == "sizes"})
    sizes.set_xticks(places, [f"{place:g}" for place in places])
    sizes.minorticks_off()
    draw_lines(cores, [point for point in points if point["part"] == "cores"], find_gb_per_second)
    cores.set(title="GB per second", xlabel="cores")
    cores.xaxis.set_major_locator(MaxNLocator(integer=True))
    draw_shapes(shapes, [point for point in points if point["part"] == "shapes"])
    shapes.set(title="seconds per GB")
    for panel in (sizes, cores, shapes):
        panel.title.set_fontsize(10)
        panel.tick_params(labelsize=8)
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def find_seconds_per_gb(point: dict[str, Any], contender: dict[str, Any]) -> float:
    """Return the median time for a GB."""
    return float(contender["median"]["seconds"] / point["size_bytes"] * 1e9)


def find_gb_per_second(point: dict[str, Any], contender: dict[str, Any]) -> float:
    """Return the median throughput."""
    return 1 / find_seconds_per_gb(point, contender)


def draw_lines(
    panel: Axes, points: list[dict[str, Any]], find: Callable[[dict[str, Any], dict[str, Any]], float]
) -> None:
    """Draw a line for each series and contender, from 0 up."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for point in points:
        place = point["place"] / (1e9 if point["part"] == "sizes" else 1)
        for contender in point["contenders"]:
            if contender["median"]:
                label = f"{contender['name']}, {point['series']}"
                lines.setdefault(label, []).append((place, find(point, contender)))
    for label, places in lines.items():
        panel.plot(*zip(*places, strict=True), marker="o", markersize=3, label=label)
    panel.set_ylim(bottom=0)
    if lines:
        panel.legend(fontsize=8, frameon=False)


def draw_shapes(panel: Axes, points: list[dict[str, Any]]) -> None:
    """Draw a bar for each shape."""
    found = [(point, point["contenders"][0]) for point in points][::-1]
    seconds = [find_seconds_per_gb(*each) if each[1]["median"] else 0 for each in found]
    bars = panel.barh([point["name"] for point, _ in found], seconds, color=COLOURS[OURSELVES])
    labels = [
        f"{each:.1f}" if each else describe(contender)
        for each, (_, contender) in zip(seconds, found, strict=True)
    ]
    panel.bar_label(bars, labels, padding=4, fontsize=8)
    panel.set_xlim(0, 1.2 * max([*seconds, 1e-9]))


CHARTS: dict[str, Callable[[dict[str, Any], Path], None]] = {"benchmarks": draw_report, "growth": draw_growth}
"""Which function draws a report, by its name."""
