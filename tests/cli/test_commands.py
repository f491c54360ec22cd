"""A command is chosen by its name as first argument; anything else is the shuffle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from recshuf.cli import main
from tests.support.processes.command_line import numbers

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.conftest import Run


class TestCommands:
    def test_dummy_beside_the_default(self, call: Run, monkeypatch: pytest.MonkeyPatch, lines: Path) -> None:
        @click.command
        @click.option("--loud", is_flag=True)
        @click.argument("name")
        def greet(name: str, loud: bool) -> None:
            click.echo(f"hello {name}{'!' if loud else ''}")

        monkeypatch.setitem(main.commands.commands, "greet", greet)
        assert call("greet", "you", "--loud").stdout == b"hello you!\n"
        assert call("greet").returncode == 2
        assert sorted(call(lines).stdout.splitlines()) == sorted(numbers(1000).splitlines())

    def test_file_named_like_a_command(
        self, call: Run, monkeypatch: pytest.MonkeyPatch, lines: Path, tmp_path: Path
    ) -> None:
        monkeypatch.setitem(main.commands.commands, "greet", click.Command("greet", callback=lambda: None))
        monkeypatch.chdir(tmp_path)
        lines.rename(tmp_path / "greet")
        assert call("greet").stdout == b""
        assert len(call("--format", "text", "./greet").stdout) == len(numbers(1000))
