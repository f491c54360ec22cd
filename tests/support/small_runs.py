"""Small runs that are planned like large ones: all that tests change inside a run, as no option does, is changed here."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import recshuf.run.saved_plan
import recshuf.run.stores.scatter_store  # noqa: F401
from recshuf.job import planner
from recshuf.job.plan import Plan
from recshuf.job.report import SilentProgress
from recshuf.output.manifest import manifest_path
from recshuf.records import keys

# Modules that are imported later would keep what is put in the place of a function.

Draw = Any
"""See `draw_keys`."""


def put_in_place(patch: pytest.MonkeyPatch, function: Callable[..., Any], other: Callable[..., Any]) -> None:
    """Have every module of recshuf that knows a function know another one in its place."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "recshuf" and getattr(module, function.__name__, None) is function:
            patch.setattr(module, function.__name__, other)


def change_plans(patch: pytest.MonkeyPatch, **numbers: Any) -> None:
    """Overrule numbers of every plan; one may be a function of the plan."""
    whole = planner.make_plan

    def make_plan(*given: Any) -> Plan:
        plan = whole(*given)
        chosen = {name: one(plan) if callable(one) else one for name, one in numbers.items()}
        return replace(plan, **chosen)

    put_in_place(patch, whole, make_plan)


def spill(patch: pytest.MonkeyPatch, **numbers: Any) -> None:
    """Have all records go to disk, in a pile set for each input, one after the other."""

    def own_sets(plan: Plan) -> tuple[int, ...]:
        return tuple(range(len(plan.set_of_input)))

    change_plans(patch, **{"resident_bytes": 0, "set_of_input": own_sets, "scatter_workers": 1} | numbers)


def infer_from_few(patch: pytest.MonkeyPatch) -> None:
    """Have types inferred from the first inputs of some 100 bytes, if the others are as well."""
    for module in ("recshuf.run.decoding", "recshuf.audit.verify.comparison"):
        patch.setattr(f"{module}.PREFIX_BYTES", 100)


def forge_keys(patch: pytest.MonkeyPatch, bits: int, place: int) -> Draw:
    """Have keys differ in few bits only, which begin `place` bits from the top; return what draws them."""

    def draw_keys(
        seed: int, ranges: Sequence[tuple[int, int, int]], stream: tuple[int, ...] = ()
    ) -> NDArray[np.uint64]:
        drawn = real(seed, ranges, stream)
        if not bits:
            return drawn * np.uint64(0)
        return (drawn >> np.uint64(64 - bits)) << np.uint64(64 - place - bits)

    real = keys.draw_keys
    put_in_place(patch, real, draw_keys)
    return draw_keys


def sort_places(counts: Sequence[int], seed: int, draw: Draw = keys.draw_keys) -> list[tuple[int, int]]:
    """Return input and row of all records in the order of a seed: sorted by key, input and row."""
    drawn = draw(seed, [(index, 0, count) for index, count in enumerate(counts)])
    inputs = np.repeat(np.arange(len(counts)), counts)
    rows = np.concatenate([np.arange(count) for count in counts])
    order = np.lexsort((rows, inputs, drawn))
    return list(zip(inputs[order].tolist(), rows[order].tolist(), strict=True))


class Listener(SilentProgress):
    """Notes the passes, warnings and ends of a run, and calls a function whenever records are added."""

    def __init__(self, on_advance: Callable[[], object] = lambda: None) -> None:
        self.passes: list[str] = []
        self.warnings: list[str] = []
        self.stops = 0
        self._on_advance = on_advance

    def start(self, name: str, record_total: int | None, byte_total: int | None) -> None:
        self.passes.append(name)

    def advance(self, records: int, byte_count: int) -> None:
        self._on_advance()

    def warn(self, message: str) -> None:
        self.warnings.append(message)

    def stop(self) -> None:
        self.stops += 1


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the content of all files below a folder, by path; None of a file that is no folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# What lies in output folders, around the code under test


def list_shards(folder: Path) -> list[Path]:
    return [folder / shard["name"] for shard in json.loads(manifest_path(folder).read_text())["shards"]]


def list_tree(folder: Path) -> dict[str, bytes]:
    """Return the content of all files below a folder by path; folders have none, and a slash at the end."""
    return {
        f"{path.relative_to(folder)}{'/' * path.is_dir()}": path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
    }
