"""Help, version and completion name every option and command, and import nothing heavy."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from recshuf.cli.commands import commands
from recshuf.records.keys import MAX_PILES
from recshuf.version import __version__
from tests.support import options_page

if TYPE_CHECKING:
    from tests.conftest import Run


class TestHelp:
    def test_headings_and_examples(self, call: Run) -> None:
        text = call("--help").stdout.decode()
        places = [text.index(f"\n{name}:\n") for name in ("Input", "Output", "Order", "Resources", "General")]
        assert places == sorted(places)
        assert text.startswith("Usage: recshuf [OPTIONS] INPUT... -o OUTPUT\n")
        assert text.count("\n  recshuf ") + text.count("| recshuf ") >= 2
        assert "_RECSHUF_COMPLETE=bash_source recshuf" in text
        assert " -h, --help " in text

    def test_version_and_help_import_nothing_heavy(self) -> None:
        code = (
            "import sys; from recshuf.cli import main;"
            "sys.argv = ['recshuf', '--version']; main(); sys.argv = ['recshuf', '--help']; main();"
            "print(*{'numpy', 'pyarrow', 'rich', 'psutil', 'h5py'} & set(sys.modules), file=sys.stderr)"
        )
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
        assert result.stdout.startswith(f"recshuf {__version__}\nUsage: recshuf ".encode())
        assert result.stderr.split() == []

    def test_completion(self, run: Run) -> None:
        result = run(env=os.environ | {"_RECSHUF_COMPLETE": "zsh_source"})
        assert result.returncode == 0
        assert b"_RECSHUF_COMPLETE=zsh_complete" in result.stdout
        asked = {"_RECSHUF_COMPLETE": "bash_complete", "COMP_WORDS": "recshuf --shard-r", "COMP_CWORD": "1"}
        assert run(env=os.environ | asked).stdout.split() == [b"plain,--shard-records"]


def test_help_names_every_command_and_says_in_words_what_an_option_takes(call: Run) -> None:
    shown = call("--help").stdout.decode()
    assert all(f"recshuf {name} " in shown for name in commands.commands)
    for words in ((), ("scatter",)):
        text = " ".join(call(*words, "--help").stdout.decode().split())
        assert f"Number of piles, 1 to {MAX_PILES:,}" in text
    for words in ((), *((name,) for name in sorted(commands.commands))):
        shown = call(*words, "--help").stdout.decode()
        assert "Usage: recshuf" in shown
        assert call(*words, "-h").stdout.decode() == shown
        assert not [line for line in shown.splitlines() if line.endswith("]") and "  [" in line]


def test_help_is_whole_without_docstrings(call: Run, run: Run) -> None:
    for words in (("store",), ("store", "compact")):
        shown = run(*words, "--help", env=os.environ | {"PYTHONOPTIMIZE": "2"}).stdout
        assert shown == call(*words, "--help").stdout


def test_commands_that_write_no_shards_promise_nothing_of_shards(call: Run) -> None:
    for command in ("scatter", "window", "check", "picture", "verify"):
        text = " ".join(call(command, "--help").stdout.decode().split())
        for words in ("at the top of each shard", "CSV that is made", "HDF5 to HDF5", "Print details"):
            assert words not in text
        assert ("for a conversion" in text) == (command == "verify")
    assert "at the top of each shard" in " ".join(call("--help").stdout.decode().split())


def test_the_page_of_options_is_that_of_the_declarations() -> None:
    assert options_page.PATH.read_text(encoding="utf-8") == options_page.make_page(), (
        "run python -m tests.support.options_page --write"
    )
