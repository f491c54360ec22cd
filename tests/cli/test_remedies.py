"""What an error proposes, the running command has."""

import re
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.cli.commands import commands
from tests.conftest import Run
from tests.formats.tfrecord.test_suite import frame

_FLAG = re.compile(r"(?<![\w./-])--[a-z][a-z-]*|(?<!\S)-[a-z]\b")
_OTHER_COMMAND = re.compile(r"recshuf [a-z]|GNU tar")
"""What follows is for another command."""
_OTHER_RUN = "; then scatter the inputs anew"
"""Says that options are those of another command."""
_TEXTS = {
    "line.jsonl": b'{"a":1}\n{"a":\n',
    "empty.jsonl": b'{"a":1}\n\n',
    "types.jsonl": b'{"a":1}\n{"a":"x"}\n',
    "nan.jsonl": b'{"a":1}\n{"a":NaN}\n',
    "width.csv": b"a,b\n1,2\n3\n",
    "quote.csv": b'a,b\n3,"x"y\n4,5\n',
    "headers/1.csv": b"a,b\n1,2\n",
    "headers/2.csv": b"a,b,c\n1,2,3\n",
    "bytes.txt": b"a\n\xff\n",
    "long.txt": b"a" * 2000 + b"\n",
    "bad.tfrecord": frame(b"abc") + frame(b"defg")[:-1] + b"?",
}
_LINES = [
    "verify {} {}", "verify {} good.parquet", "verify good.parquet {}", "verify --dedup a {} {}",
    "check {} --column a", "check {} --against {}", "check {} --provenance", "picture {} --column a -o p.png",
    "scatter {} -o {}.store", "window store --append {}", "{} -o out.parquet --overwrite", "{} -o out.npy --overwrite",
    *(f"gather {{}}.store -o out/ --overwrite --to {to}" for to in ("text", "npy", "csv", "megatron", "tfrecord")),
]  # fmt: skip


def _fill(folder: Path) -> list[str]:
    """Write inputs with common errors, a good one and a store, and return the names of those with errors."""
    for name, content in _TEXTS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    tables = {
        "kinds": [{"a": [1]}, {"a": [1.5]}],
        "names": [{"a": [1]}, {"b": [1]}],
        "two": [{"a": [1], "b": [None]}],
    }
    for name, files in tables.items():
        (folder / name).mkdir()
        for index, columns in enumerate(files):
            pq.write_table(pa.table(columns), folder / name / f"{index}.parquet")
    with h5py.File(folder / "lengths.h5", "w") as file:
        file["a"], file["b"] = np.arange(3), np.arange(5)
    np.savez(folder / "lengths.npz", a=np.arange(3), b=np.arange(5))
    pq.write_table(pa.table({"a": [1]}), folder / "good.parquet")
    recshuf.scatter(folder / "good.parquet", folder / "store")
    return [*dict.fromkeys(name.split("/")[0] for name in _TEXTS), *tables, "lengths.h5", "lengths.npz"]


def _list_flags(line: str) -> set[str]:
    command = commands.commands.get(line.split()[0], commands.default)
    own = command.list_own().values()
    return {flag for one in (command.params, *own) for option in one for flag in option.opts} | {"--help"}


@pytest.mark.usefixtures("folder")
def test_errors_propose_options_of_their_command(call: Run, tmp_path: Path):
    proposed = set()
    for name in _fill(tmp_path):
        for line in _LINES:
            result = call(*line.format(name, name).split())
            message = _OTHER_COMMAND.split(result.stderr.decode())[0]
            if _OTHER_RUN in message:
                continue
            named = {flag for flag in _FLAG.findall(message) if f" {flag}" not in line}
            assert named <= _list_flags(line), (line.format(name, name), message)
            proposed |= {(line.split()[0], flag) for flag in named}
    assert {("{}", "--on-bad-record"), ("scatter", "--on-bad-record"), ("verify", "--widen")} <= proposed
    assert len(proposed) > 10


@pytest.mark.usefixtures("folder")
def test_functions_propose_their_arguments(tmp_path: Path):
    (tmp_path / "a.csv").write_bytes(_TEXTS["width.csv"])
    with pytest.raises(
        recshuf.errors.InputError, match=r"has 2; correct it, or set .* on_bad_record="
    ) as caught:
        recshuf.shuffle("a.csv", "out.parquet")
    whole = str(caught.value)
    with pytest.raises(recshuf.errors.InputError) as caught:
        recshuf.check("a.csv", column="a")
    assert str(caught.value) == whole.partition(", or set")[0]
