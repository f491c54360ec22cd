"""The header of a run that begins: its job, its options, and how it is divided into tasks."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from recshuf.formats import find_packages, find_versions
from recshuf.formats.stored import pack
from recshuf.interfaces import Stamp
from recshuf.job.options import LOCAL, describe_options
from recshuf.job.parts import divide, find_large_inputs
from recshuf.records.keys import ORDER_VERSION
from recshuf.run.header import Header
from recshuf.version import __version__

if TYPE_CHECKING:
    from recshuf.interfaces import InputFile
    from recshuf.job.job import Job
    from recshuf.job.parts import TaskPlan
    from recshuf.output.run_log import Entry
    from recshuf.run.resolve import Run


def make_header(run: Run, sets: str | None = None, tasks: TaskPlan | None = None) -> Header:
    """Return the header of a run.

    Parameters
    ----------
    sets
        Folder of its pile sets, or URL of their prefix; None if they are not kept.
    """
    job = run.job
    return Header(
        secrets.token_hex(8),
        _describe_job(run),
        job.inputs,
        job.output or "",
        "{}" if tasks is None else _pack_options(job, run.seed),
        str(Path.cwd()),
        sets,
        tasks,
        job.storage,
    )


def _describe_job(run: Run) -> Entry:
    """Return everything that the output depends on."""
    job, write, cut = run.job, run.output.write, run.output.cut
    options = {
        "--format": run.inputs.format,
        "--to": run.output.format,
        "--seed": str(run.seed),
        "--compression": write.compression,
        "compression level": write.compression_level,
        "--shards": cut.shards,
        "--shard-records": cut.shard_records,
        "--shard-bytes": cut.shard_bytes,
        "--head-count": job.options["head_count"],
    } | describe_options(job)
    if job.epoch is not None:
        options |= {"--epoch": job.epoch.number, "--reshuffle": job.epoch.reshuffle, "--mix": job.epoch.mix}
    formats = (run.inputs.format, run.output.format)
    packages = find_packages(formats)
    companions = [_describe_input(one) for file in run.inputs.files for one in file.companions]
    decided = {
        "packages": packages or None,
        "companions": companions or None,
        "processes": job.processes or None,
        "record_counts": run.inputs.counts,
        "part_bounds": None if run.split is None else run.split.to_json(),
    }
    return {
        "recshuf": __version__,
        "order": ORDER_VERSION,
        "libraries": find_versions(formats),
        "options": options,
        "inputs": [_describe_input(file) for file in run.inputs.files],
        "pile_count": run.plan.pile_count,
        "region_piles": run.plan.region_piles,
        "set_of_input": list(run.plan.set_of_input),
    } | {key: value for key, value in decided.items() if value is not None}


def _describe_input(file: InputFile) -> list[object]:
    """Return name, size, time and, if it has one, ETag of an input."""
    size, modified_ns, _, etag = file.stamp or Stamp()
    return [file.name, size, modified_ns, *filter(None, [etag])]


_LEFT_OUT = ("stdin", "stdout", "resume", "ray_address", "endpoint_url", "storage_options")
"""Options that tasks do not need, and those of `storage`."""


def _pack_options(job: Job, seed: int) -> str:
    """Return the options of a job as JSON; those that depend on the machine or the working folder are fixed."""
    given = {name: value for name, value in job.options.items() if name not in _LEFT_OUT}
    temp_dir = job.options["temp_dir"] if job.temp_dir is None else job.temp_dir.absolute()
    parsed = {
        "seed": seed,
        "engine": LOCAL if job.options["engine"] in (None, LOCAL) else "tasks",
        "memory": job.memory_bytes,
        "workers": job.workers,
        "columns": job.read.columns,
        "schema": job.read.schema,
        "temp_dir": None if temp_dir is None else os.fspath(temp_dir),
    }
    return json.dumps({name: pack(value) for name, value in (given | parsed).items()})


def divide_job(run: Run) -> TaskPlan:
    """Return the tasks of a run; large inputs that can be read in parts are."""
    plan, source = run.plan, run.inputs.source
    byte_counts = run.inputs.sizes.byte_counts.tolist()
    fragments = {
        index: [one.record_count for one in source.fragments(index, plan.block_bytes, plan.max_record_bytes)]
        for index in find_large_inputs(plan, byte_counts)
        if source.skips_fragments(index)
    }
    return divide(plan, byte_counts, fragments)


def fit_plan(run: Run, tasks: TaskPlan) -> Run:
    """Return a run that cuts inputs into fragments as its tasks do."""
    return replace(run, plan=replace(run.plan, block_bytes=tasks.block_bytes))
