"""Some hundred mutated files of every format; ``python -m tests.fuzzing`` makes thousands."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.fuzzing import campaign
from tests.fuzzing.mutate import mutate
from tests.fuzzing.oracle import compare
from tests.fuzzing.seeds import FORMATS, make_seeds
from tests.support.effort import examples
from tests.support.processes.command_server import Server
from tests.support.tally import Tally, format_table


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(**campaign.LIMITS) as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_a_damaged_file_gives_the_right_records_or_a_clean_error(
    tmp_path: Path, server: Server, name: str
) -> None:
    tally = Tally(name)
    for attempt in campaign.fuzz(name, range(max(25, examples(50))), 0, tmp_path, server):
        tally.add(attempt.outcome, str(attempt))
    assert tally.is_clean, "\n".join([format_table([tally]), *tally.failures])
    assert tally.right
    assert tally.detected


def test_a_mutant_can_be_made_again(tmp_path: Path) -> None:
    files = make_seeds("text")
    made = [mutate(np.random.default_rng(number), files[number % 3], files) for number in range(50)]
    assert made == [mutate(np.random.default_rng(number), files[number % 3], files) for number in range(50)]
    assert sum(data != files[number % 3].data for number, (data, _) in enumerate(made)) > 45


@pytest.mark.parametrize("name", FORMATS)
def test_readers_of_their_own_tell_files_apart(tmp_path: Path, name: str) -> None:
    seed = make_seeds(name)[0]
    first, second = (tmp_path / f"{number}-{seed.name}" for number in range(2))
    first.write_bytes(seed.data)
    second.write_bytes(seed.data)
    assert compare(name, [str(first)], [str(second)]) == ""
    told = compare(name, [str(first), str(second)], [str(second)])
    assert told.startswith("40 records are missing, 0 extra")
    second.write_bytes(seed.data[: len(seed.data) // 2])
    assert compare(name, [str(first)], [str(second)]) != ""


@pytest.mark.slow
def test_what_a_broken_program_does_is_noticed(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records lost, files left behind, a wrong exit code: each is found out."""
    monkeypatch.setattr(campaign, "_choose_role", lambda case: campaign._alone)
    real = Server.run

    def lose(self: Server, arguments: list[str], folder: Path, stdin: str | None = None):
        return real(self, [*arguments, "-n", "3"], folder, stdin)

    def leave(self: Server, arguments: list[str], folder: Path, stdin: str | None = None):
        (folder / ".left").touch()
        return real(self, arguments, folder, stdin)

    def refuse(self: Server, arguments: list[str], folder: Path, stdin: str | None = None):
        return real(self, ["--no-such-option"], folder, stdin)

    for broken, outcome in ((lose, "silent"), (leave, "silent"), (refuse, "crashed")):
        monkeypatch.setattr(Server, "run", broken)
        outcomes = {attempt.outcome for attempt in campaign.fuzz("text", range(8), 0, tmp_path, server)}
        assert outcome in outcomes
