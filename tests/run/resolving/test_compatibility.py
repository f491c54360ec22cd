"""Options that would have no effect are refused."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pytest

from recshuf.errors import UsageError
from recshuf.job.arguments import make_job
from recshuf.run.decoding import check_options

FORMATS = ("jsonl", "csv", "text", "parquet", "hdf5")
PAIRS = [(given, to) for given in FORMATS for to in FORMATS]
FITTING = {
    "separator": ("|", "--separator and -z: for records of text only", lambda given, to: "text" in (given, to)),
    "zero_terminated": (True, "--separator and -z: for records of text", lambda given, to: "text" in (given, to)),
    "header": (1, "--header: for inputs of text or csv only", lambda given, _: given in ("text", "csv")),
    "datasets": ("a", "--datasets: for inputs of hdf5 only", lambda given, _: given == "hdf5"),
    "columns": ("a", "--columns: for inputs of parquet only", lambda given, _: given == "parquet"),
    "nan_as_null": (True, "--nan-as-null: ", lambda given, to: to == "jsonl" != given),
    "provenance": (True, "--provenance: ", lambda given, to: to != "text" and (given, to) != ("hdf5", "hdf5")),
    "delimiter": (";", "--delimiter: for records of csv only", lambda given, to: "csv" in (given, to)),
    "quote": ("'", "--quote: for inputs of csv only", lambda given, _: given == "csv"),
}  # fmt: skip


@pytest.mark.parametrize(("given", "to"), PAIRS)
@pytest.mark.parametrize("name", FITTING)
def test_an_option_that_does_not_fit_the_formats_is_named(name: str, given: str, to: str):
    value, message, fits = FITTING[name]
    job = make_job("in", "out", {name: value})  # type: ignore[misc]
    if fits(given, to):
        check_options(job, given, to)
    else:
        with pytest.raises(UsageError, match=re.escape(message)):
            check_options(job, given, to)


@pytest.mark.parametrize(("given", "to"), PAIRS)
def test_what_is_the_default_fits_all_formats(given: str, to: str):
    options: dict[str, Any] = {"separator": "\n", "header": None, "datasets": None, "nan_as_null": False}
    check_options(make_job("in", "out", options), given, to)


def test_nan_as_null_is_for_conversions_to_jsonl():
    for given, to, reason in (
        ("parquet", "hdf5", "for output of jsonl only"),
        ("jsonl", "jsonl", "jsonl to jsonl is no conversion"),
    ):
        with pytest.raises(UsageError, match=f"--nan-as-null: {reason}"):
            check_options(make_job("in", "out", {"nan_as_null": True}), given, to)


@pytest.mark.parametrize(("given", "to"), PAIRS)
def test_a_schema_is_for_conversions_from_lines(given: str, to: str):
    job = make_job("in", "out", {"schema": pa.schema([("a", pa.int64())])})
    if given in ("jsonl", "csv", "text") and to != given:
        check_options(job, given, to)
    else:
        with pytest.raises(UsageError, match="--schema: "):
            check_options(job, given, to)
