"""Fixtures of the HDF5 tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.formats.hostile_tools import GB
from tests.support.processes.command_server import Server

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="package")
def child() -> Iterator[Server]:
    """Return what runs the command line in a process with 2 GB of address space and half a minute of time."""
    with Server(seconds=30, memory_bytes=2 * GB) as server:
        yield server
