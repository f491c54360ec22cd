"""What the error for a damaged file advises: it depends on whose file it is."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from recshuf.errors import PileError
from recshuf.piles.pile_set import GrowingPileSet
from recshuf.piles.set_folder import RUN_REMEDY, Scratch, remake_store
from recshuf.piles.slices import Origin

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("options", "remedy"),
    [({}, RUN_REMEDY), ({"of_store": True}, RUN_REMEDY), ({"remedy": "do this"}, "do this")],
)
def test_a_new_file_has_the_remedy_of_its_maker(tmp_path: Path, options: dict[str, Any], remedy: str):
    """Also one that a gather from a store makes."""
    with closing(Scratch(tmp_path, kept=tmp_path, **options)) as scratch:
        made = GrowingPileSet.create(scratch, np.array([1000]), "none", ())
        made.write([0], [[memoryview(b"record")]], [1], Origin(0, 0), np.zeros((0, 1), np.int64))
        made.check()
        (descriptor,) = scratch._open
        os.pwrite(descriptor, b"\xff" * 100, 0)
        with pytest.raises(PileError, match=f"; {remedy}$"):
            made.check()


@pytest.mark.parametrize("of_store", [True, False])
def test_a_kept_file_has_that_of_its_owner(tmp_path: Path, of_store: bool):
    remedy = f"{remake_store(tmp_path.parent)} on another disk" if of_store else RUN_REMEDY
    (tmp_path / "set").touch()
    with closing(Scratch(tmp_path, kept=tmp_path, of_store=of_store)) as scratch:
        assert scratch.reopen("set").remedy == remedy
