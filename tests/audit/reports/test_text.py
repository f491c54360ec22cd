"""Text of other origin stays on one line, with what a terminal would obey escaped."""

from recshuf.audit.order.battery import Score
from recshuf.audit.order.check import CheckReport
from recshuf.audit.reports.text import check_verdict
from recshuf.system.units import one_line


def test_one_line() -> None:
    lines = {
        "a\nb": r"a\nb",
        "a\rb\x1b\x7f\x9b": r"a\rb\x1b\x7f\x9b",
        "é\udcff": r"é\xff",
        "\u2028": r"\u2028",
        "\ud800": r"\ud800",
    }
    assert {text: one_line(text) for text in lines} == lines


def test_verdicts_agree_with_the_number_of_paths() -> None:
    for names, statistic, shown in [
        (["a"], 0.0, "a looks uniformly random: all"),
        (["a", "b"], 0.0, "2 paths look uniformly random: all"),
        (["a"], 9.0, "a is not in a uniformly random order: 1 of"),
        (["a", "b", "c"], 9.0, "3 paths are not in a uniformly random order: 1 of"),
    ]:
        scores = (Score("steps", statistic, 0.0, 1.0, "", ""),)
        report = CheckReport("origins", 9, 9, 1.0, 0, 0, 0, 0.3, scores, 0.1)
        assert check_verdict(report, names).startswith(shown)
