"""What came of many attempts to break a run: the row of a table."""

from dataclasses import dataclass, field

COLUMNS = ("tried", "right", "detected", "silent", "crashed", "hung")


@dataclass
class Tally:
    """Counts of outcomes of one kind of attack."""

    name: str
    tried: int = 0
    right: int = 0
    """The result was right, or the output held what it held before."""
    detected: int = 0
    """A clean one-line error, and nothing half-written."""
    silent: int = 0
    """Exit 0 with a wrong result, or something half-written."""
    crashed: int = 0
    """A signal, a traceback, or an "internal error"."""
    hung: int = 0
    failures: list[str] = field(default_factory=list)
    """One line for each attempt that was neither right nor detected: enough to run it again."""

    def add(self, outcome: str, description: str = "") -> None:
        """Count one attempt; `outcome` is the name of a column other than ``tried``."""
        if outcome not in COLUMNS[1:]:
            raise ValueError(f"{outcome!r} is no outcome")
        self.tried += 1
        setattr(self, outcome, getattr(self, outcome) + 1)
        if outcome not in ("right", "detected"):
            self.failures.append(f"{self.name}: {outcome}: {description}")

    @property
    def is_clean(self) -> bool:
        """Whether every attempt ended right or was detected, and there was at least one."""
        return self.tried > 0 and self.tried == self.right + self.detected


def format_table(tallies: list[Tally]) -> str:
    """Return a Markdown table, one row for each tally."""
    rows = [["attack", *COLUMNS], ["---"] * (len(COLUMNS) + 1)]
    rows += [[tally.name, *(f"{getattr(tally, column):,}" for column in COLUMNS)] for tally in tallies]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
