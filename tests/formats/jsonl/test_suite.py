"""The JSONL adapter keeps the promises of every format."""

import json
from pathlib import Path
from typing import Any

from recshuf.formats.jsonl import FORMAT
from recshuf.interfaces import InputFile
from tests.support.formats.file_suite import LineSuite


def make_record(index: int, row: int) -> dict[str, Any]:
    return {
        "id": [index, row],
        "text": "naïve \u2028 \n" + "pad " * (row % 40),
        "score": None if row % 7 == 0 else row / 4,
        "nested": {"flag": row % 2 == 0, "words": ["a"] * (row % 3)},
    }


class TestJsonl(LineSuite):
    format = FORMAT
    packs = (LineSuite.packs[2], *LineSuite.packs[:2])

    def make_content(self, index: int, count: int) -> bytes:
        lines = [
            json.dumps(make_record(index, row), ensure_ascii=row % 2 == 0) + "\n" for row in range(count)
        ]
        return "".join(lines).encode()

    def make_bad_input(self, folder: Path) -> tuple[InputFile, list[int]]:
        rows, path = [3, 4, 70, 99], folder / "bad.jsonl"
        lines = self.make_content(0, 100).splitlines(keepends=True)
        for row, bad in zip(rows, (b"{", b"[1]", b'{"id": [1, "x"]}', b"\xff"), strict=True):
            lines[row] = bad + b"\n"
        path.write_bytes(b"".join(lines))
        return InputFile(str(path), path), rows

    def meaning_of(self, record: bytes) -> Any:
        return json.loads(record)
