"""Which tests of formats are slow, packages of formats that are installed for a test, and the process that reads what would do harm."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from recshuf.testing import FormatSuite
from tests.support.other_packages import forget_formats, install, use
from tests.support.processes.command_line import GB
from tests.support.processes.command_server import Server

WITH_RUNS_ELSEWHERE = ("text", "jsonl", "csv", "parquet", "hdf5")
"""Formats that tests/run crosses with all else."""
OF_VARIANTS = (
    "test_fragments_hold_the_records_in_order[1000]",
    "test_inputs_without_records",
    "test_a_round_trip_keeps_every_record",
    "test_shard_bytes_do_not_depend_on_cuts_or_threads[few]",
    "test_table_form_does_not_depend_on_cuts_or_order",
    "test_a_damaged_file_is_named_or_read_right",
    "test_a_shuffle_has_every_record_in_the_order_of_its_seed",
    "test_a_conversion_and_back_has_every_record",
)
"""What is tried by default of a variant of a form, whose class inherits the tests of that form."""


NEEDS = {
    "test_bad_records_are_refused_or_told_wherever_batches_are_cut": "make_bad_input",
    "test_other_records_are_not_appended_to_a_store": "make_other_input",
    "test_a_field_tells_groups_parts_and_repeats": "field",
}
"""What a class must have of its own for a test of the suite to try anything."""


def tries_nothing(item: pytest.Item) -> bool:
    needed, kind = NEEDS.get(item.name), getattr(item, "cls", None)
    return needed is not None and getattr(kind, needed) is getattr(FormatSuite, needed)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what tries nothing; mark as slow what other tests run the same: whole runs of formats, and most of the suite of variants."""
    items[:] = [item for item in items if not tries_nothing(item)]
    for item in items:
        module = getattr(getattr(item, "function", None), "__module__", "")
        is_variant = any(
            base.__name__.startswith("Test")
            for base in getattr(getattr(item, "cls", None) or object, "__bases__", ())
        )
        if module == "recshuf.testing.runs" and item.path.parent.name in WITH_RUNS_ELSEWHERE:
            item.add_marker(pytest.mark.slow)
        if module.startswith("recshuf.testing.") and is_variant and item.name not in OF_VARIANTS:
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def add_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """Return a function that installs a package of formats, given their entry points, and returns its folder."""

    def add(package: str, **entries: str) -> Path:
        folder = install(tmp_path / f"site of {package}", package, **entries)
        use(folder, monkeypatch)
        return folder

    yield add
    monkeypatch.undo()
    forget_formats()


@pytest.fixture(scope="session")
def child() -> Iterator[Server]:
    """Return what runs the command line in a process with 3 GB of address space and two minutes of time."""
    with Server(seconds=120, memory_bytes=3 * GB) as server:
        yield server
