"""The text adapter keeps the promises of every format."""

from recshuf.formats.text import FORMAT
from tests.support.formats.file_suite import LineSuite


class TestText(LineSuite):
    format = FORMAT

    def make_content(self, index: int, count: int) -> bytes:
        lines = [b"%d:%d\t\xc3\xa9%s\n" % (index, row, b"pad\r " * (row % 40)) for row in range(count)]
        return b"".join(lines)
