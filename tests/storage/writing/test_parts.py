"""Files that are sent in parts."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from recshuf.storage.writing import parts
from recshuf.storage.writing.bucket import Part

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MIB = 1 << 20


class LazyPool:
    """Does what is submitted when its result is asked for."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def submit(self, function: Callable[..., Part], number: int, start: int) -> Any:
        self.log.append(f"submit {number}")
        return LazyFuture(partial(function, number, start))


class LazyFuture:
    def __init__(self, function: Callable[[], Part]) -> None:
        self.function = function
        self.part: Part | None = None

    def result(self) -> Part:
        self.part = self.part or self.function()
        return self.part

    def cancel(self) -> None: ...


@pytest.mark.parametrize("in_order", [True, False])
def test_a_part_is_sent_after_the_one_before_where_the_store_wants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_order: bool
):
    monkeypatch.setattr(parts, "PART_BYTES", MIB)
    content = bytes(range(256)) * (5 * MIB // 512)
    (tmp_path / "a").write_bytes(content)
    log: list[str] = []
    sent: dict[int, bytes] = {}

    def send(number: int, body: bytes) -> Part:
        log.append(f"send {number}")
        sent[number] = body
        return Part(str(number), "")

    made: list[Part] = parts.send_file(tmp_path / "a", send, LazyPool(log), in_order=in_order)  # type: ignore[arg-type]
    assert [part.etag for part in made] == ["1", "2", "3"]
    assert (list(sent), b"".join(sent.values())) == ([1, 2, 3], content)
    expected = [f"{verb} {number}" for number in (1, 2, 3) for verb in ("submit", "send")]
    assert log == (expected if in_order else [*expected[::2], *expected[1::2]])
