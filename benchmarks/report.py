"""The results as one report of JSON types."""

from __future__ import annotations

import datetime
import importlib.util
import json
import os
import platform
import shutil
import subprocess
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.cases import OURSELVES
from recshuf.system.memory import BASE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.suite import CaseResult, Result

PACKAGES = (
    "recshuf",
    "numpy",
    "pyarrow",
    "h5py",
    "zstandard",
    "duckdb",
    "polars",
    "datasets",
    "ray",
    "daft",
)


def find_ratios(found: CaseResult) -> dict[str, dict[str, float]]:
    """Return seconds, seconds until the output is on disk, and CPU seconds of each other tool, divided by recshuf's."""
    ours = next((result for result in found.results if result.name == OURSELVES and result.counts), None)
    if ours is None:
        return {}
    mine = ours.median
    return {
        other.name: {
            "seconds": other.median.seconds / mine.seconds,
            "durable_seconds": other.median.durable_seconds / mine.durable_seconds,
            "cpu_seconds": other.median.cpu_seconds / max(mine.cpu_seconds, 1e-9),
        }
        for other in found.results
        if other.counts and other is not ours
    }


def find_promises(found: CaseResult) -> list[dict[str, Any]]:
    """Return the promises of a case with the figures found."""
    ours = next((result for result in found.results if result.name == OURSELVES and result.counts), None)
    if ours is None:
        return []
    ratios = find_ratios(found)
    promises = [
        make_promise(
            found, f"{promise.figure} of {promise.name} / recshuf's", "at least", promise.at_least, ratio
        )
        for promise in found.case.promises
        if (ratio := ratios.get(promise.name, {}).get(promise.figure)) is not None
    ]
    if most := found.case.most_seconds:
        promises.append(make_promise(found, "seconds", "at most", most, ours.median.seconds))
    most = (found.memory + BASE_BYTES) / 1e6
    return [*promises, make_promise(found, "peak MB", "at most", most, ours.median.peak_bytes / 1e6)]


def make_promise(
    found: CaseResult, what: str, bound: str, promised: float, measured: float
) -> dict[str, Any]:
    """Return a promise and whether it is kept."""
    is_kept = measured >= promised if bound == "at least" else measured <= promised
    sides = {"promised": promised, "found": measured, "is_kept": is_kept}
    return {"case": found.case.name, "what": what, "bound": bound, **sides}


def find_machine() -> dict[str, Any]:
    """Return processor, cores, memory, system and Python version."""
    processor = [
        line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")
    ]
    return {
        "processor": processor[0].partition(": ")[2] if processor else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def find_versions() -> dict[str, str]:
    """Return the versions of the installed packages."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    if shutil.which("shuf"):
        told = subprocess.run(["shuf", "--version"], capture_output=True, text=True, check=True).stdout
        versions["coreutils"] = told.partition("\n")[0].rpartition(" ")[2]
    return versions


def make_report(cases: list[CaseResult], command: str, size: int) -> dict[str, Any]:
    """Return all results, with command, machine and versions, as JSON types."""
    return make_head(command, size) | {
        "cases": [make_case(found) for found in cases],
        "promises": [promise for found in cases for promise in find_promises(found)],
    }


def make_head(command: str, size: int) -> dict[str, Any]:
    """Return command, date, machine, versions and size."""
    return {
        "command": command,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": find_machine(),
        "versions": find_versions(),
        "size_bytes": size,
    }


def make_case(found: CaseResult) -> dict[str, Any]:
    """Return the results of a case."""
    return {
        "name": found.case.name,
        "input_bytes": found.input_bytes,
        "records": found.records,
        "memory_limit_bytes": found.memory,
        "contenders": [make_contender(result) for result in found.results],
        "times_recshuf": find_ratios(found),
    }


def make_contender(result: Result) -> dict[str, Any]:
    """Return the results of a contender."""
    return {
        "name": result.name,
        "problem": result.problem,
        "note": result.note,
        "output_bytes": result.output_bytes,
        "median": asdict(result.median) if result.counts else None,
        "rounds": [asdict(usage) for usage in result.rounds],
    }


def save_report(report: dict[str, Any], name: str, out: Path, say: Callable[[str], object]) -> None:
    """Write a report as JSON, and as a chart if matplotlib is installed.

    Parameters
    ----------
    name
        Stem of the file names, and key in `benchmarks.charts.CHARTS`.
    say
        Called with a line if there is no chart.
    """
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    if importlib.util.find_spec("matplotlib"):
        from benchmarks.charts import CHARTS

        CHARTS[name](report, out / f"{name}.png")
    else:
        say("no chart: matplotlib is missing; install recshuf[bench]")
