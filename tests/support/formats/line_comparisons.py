"""Comparisons of an output with inputs, both made of lines."""

from pathlib import Path
from typing import Any

import recshuf
from recshuf import VerifyReport

LINES = [f"record {number:03} of some".encode() for number in range(300)]


def write_lines(path: Path, lines: list[bytes]) -> Path:
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def compare_lines(folder: Path, given: list[bytes], made: list[bytes], **options: Any) -> VerifyReport:
    return recshuf.verify(
        write_lines(folder / "in.txt", given), write_lines(folder / "out.txt", made), **options
    )


def append(path: Path, data: bytes) -> None:
    path.write_bytes(path.read_bytes() + data)
