"""A report as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.cases import FLOOR, OURSELVES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

OVERVIEW_HEADS = (
    "case",
    "recshuf s",
    "MB/s",
    "records/s",
    "CPU s",
    "peak MB",
    "limit MB",
    "times the floor",
    "others' seconds / recshuf's",
    "the same, until on disk",
)
CASE_HEADS = (
    "",
    "s",
    "s, all rounds",
    "sync s",
    "CPU s",
    "peak MB",
    "GB read",
    "GB written",
    "GB out",
    "seconds / recshuf's",
    "the same, until on disk",
    "CPU s / recshuf's",
)
NOTES = """\
- Each run is a separate process, from start to exit, that writes a new output. Every other round runs in reverse order.
- Seconds, CPU seconds (user and system, with children) and bytes are medians. Peak MB is the highest resident memory of
  any process in any round.
- GB read and written count read and write calls; mapped files are not included. Processes that a tool does not wait for,
  such as Ray's workers, are missing from CPU seconds and bytes.
- The output of each tool's first round was compared with the input. Wrong outputs have no figures.
- recshuf syncs its output to disk before it exits. Most other tools leave it in the page cache. "sync s" is the time to
  sync the output afterwards; "the same, until on disk" includes it.
- The floor is a copy without a shuffle.
"""
DIGITS_UP_TO = 10


def format_report(report: dict[str, Any]) -> str:
    """Return the report as Markdown."""
    parts = [
        "# Benchmarks",
        format_circumstances(report),
        NOTES.rstrip(),
        format_overview(report["cases"]),
        *map(format_case, report["cases"]),
    ]
    return "\n\n".join(parts) + "\n"


def format_circumstances(report: dict[str, Any]) -> str:
    """Return a paragraph with command, data, machine and versions."""
    machine = report["machine"]
    size = f"{report['size_bytes'] / 1e9:g} GB of data before compression"
    computer = (
        f"{machine['cores']} cores of {machine['processor']}, {machine['memory_bytes'] / 1e9:.0f} GB memory"
    )
    versions = [f"{name} {version}" for name, version in report["versions"].items()]
    programs = ", ".join([machine["system"], f"Python {machine['python']}", *versions])
    return f"`{report['command']}` on {report['date']}: {size}; {computer}; {programs}."


def format_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; rows may be shorter than the heads."""
    filled = [[*row, *[""] * (len(heads) - len(row))] for row in (heads, ["---"] * len(heads), *rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in filled)


def format_overview(cases: list[dict[str, Any]]) -> str:
    """Return a table with a row for each case."""
    return format_table(OVERVIEW_HEADS, [(case["name"], *format_ours(case)) for case in cases])


def format_ours(case: dict[str, Any]) -> tuple[str, ...]:
    """Return the figures of recshuf in a case."""
    ours = next((each for each in case["contenders"] if each["name"] == OURSELVES), None)
    if ours is None or ours["median"] is None:
        return (ours["problem"] if ours else "not run",)
    median = ours["median"]
    ratios = {name: ratio for name, ratio in case["times_recshuf"].items() if name != FLOOR}
    floor = case["times_recshuf"].get(FLOOR, {}).get("seconds")
    return (
        f"{median['seconds']:.2f}",
        f"{case['input_bytes'] / 1e6 / median['seconds']:,.0f}",
        f"{case['records'] / median['seconds']:,.0f}",
        f"{median['cpu_seconds']:.2f}",
        f"{median['peak_bytes'] / 1e6:.0f}",
        f"{case['memory_limit_bytes'] / 1e6:.0f}",
        format_ratio(1 / floor) if floor else "-",
        *(
            ", ".join(f"{name} {format_ratio(ratio[figure])}" for name, ratio in ratios.items()) or "-"
            for figure in ("seconds", "durable_seconds")
        ),
    )


def format_ratio(ratio: float) -> str:
    """Return a ratio, with two decimals if it is small."""
    return f"{ratio:.2f} x" if ratio < DIGITS_UP_TO else f"{ratio:.0f} x"


def format_case(case: dict[str, Any]) -> str:
    """Return a table of a case with a row for each contender."""
    sizes = f"{case['records']:,} records, {case['input_bytes'] / 1e9:.3f} GB on disk"
    limit = f"memory limit {case['memory_limit_bytes'] / 1e6:.0f} MB"
    rows = [
        (contender["name"], *format_contender(contender, case["times_recshuf"]))
        for contender in case["contenders"]
    ]
    return f"## {case['name']}\n\n{sizes}, {limit}.\n\n{format_table(CASE_HEADS, rows)}"


def format_contender(contender: dict[str, Any], ratios: dict[str, dict[str, float]]) -> tuple[str, ...]:
    """Return the figures of a contender, or the problem."""
    median = contender["median"]
    if median is None:
        return (contender["problem"],)
    ratio = ratios.get(contender["name"])
    rounds = " ".join(f"{usage['seconds']:.2f}" for usage in contender["rounds"])
    return (
        f"{median['seconds']:.2f}",
        f"{rounds} {contender['note']}".strip(),
        f"{median['sync_seconds']:.2f}",
        f"{median['cpu_seconds']:.2f}",
        f"{median['peak_bytes'] / 1e6:.0f}",
        *(f"{count / 1e9:.2f}" for count in (median["read_bytes"], median["written_bytes"])),
        f"{contender['output_bytes'] / 1e9:.2f}",
        *(
            format_ratio(ratio[figure]) if ratio else "-"
            for figure in ("seconds", "durable_seconds", "cpu_seconds")
        ),
    )
