"""What a gather compares and refuses; see `test_golden_outputs` for the bytes."""

import os
import shutil
import tempfile
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

import recshuf
from recshuf.errors import CheckError, ConversionError, InputError, RecshufWarning, UsageError
from tests.support.processes.deaths import fork, join
from tests.support.small_runs import Listener, list_tree, read_files


def test_records_without_a_table_form_can_be_gathered_in_their_own_format(tmp_path: Path) -> None:
    """A conversion names the first file and line that has none."""
    path = tmp_path / "mixed.jsonl"
    path.write_text('{"a": 1}\n{"a": {"b": 2}}\n{"a": 3}\n')
    with pytest.warns(RecshufWarning, match="loaders cannot read .*line 2, field 'a': holds"):
        recshuf.scatter(path, tmp_path / "store", seed=1)
    recshuf.gather(tmp_path / "store", tmp_path / "out.jsonl")
    found = (tmp_path / "out.jsonl").read_text().splitlines()
    assert sorted(found) == sorted(path.read_text().splitlines())
    with pytest.raises(
        ConversionError, match=r"no table form: .*mixed.jsonl.*line.* json .* scatter .* anew$"
    ):
        recshuf.gather(tmp_path / "store", tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()
    recshuf.scatter(path, tmp_path / "other", schema={"a": "json"})
    assert recshuf.gather(tmp_path / "other", tmp_path / "out.parquet", verify=True).records == 3


def test_a_line_that_is_no_json_is_an_error_also_behind_records_without_a_table_form(tmp_path: Path) -> None:
    contents = {"a": '{"c": 1}\n', "b": '{"c": "x"}\n', "z": '{"c" 3}\n'}
    paths = {name: tmp_path / f"{name}.jsonl" for name in contents}
    for name, content in contents.items():
        paths[name].write_text(content)
    for order in permutations(paths.values()):
        with pytest.raises(InputError, match=r"z\.jsonl: line 1: is not valid JSON"):
            recshuf.scatter(order, tmp_path / "store", workers=1)


def test_a_gather_gives_records_another_delimiter_and_keeps_their_separator(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("a,b\n1,x;y\n")
    recshuf.scatter(tmp_path / "in.csv", tmp_path / "csv")
    with pytest.warns(RecshufWarning, match="';' takes the place of ','"):
        recshuf.gather(tmp_path / "csv", tmp_path / "out.csv", delimiter=";", verify=True)
    assert (tmp_path / "out.csv").read_text() == 'a;b\n1;"x;y"\n'
    recshuf.gather(tmp_path / "csv", tmp_path / "out.tsv", verify=True)
    assert (tmp_path / "out.tsv").read_text() == "a\tb\n1\tx;y\n"
    (tmp_path / "in.txt").write_text("a\0b\0")
    recshuf.scatter(tmp_path / "in.txt", tmp_path / "text", zero_terminated=True)
    recshuf.gather(tmp_path / "text", tmp_path / "same.txt", zero_terminated=True, verify=True)
    with pytest.raises(
        UsageError, match=r"^separator \(or zero_terminated=True\): records keep their end, b'.x00'; leave"
    ):
        recshuf.gather(tmp_path / "text", tmp_path / "out.txt", separator="|")


def test_a_record_that_cannot_get_provenance_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n' * 50)
    (tmp_path / "b.jsonl").write_text('{"a": 1}\n{"a": 2}\n{"c": {"source_row": 1}}\n')
    recshuf.scatter([tmp_path / "a.jsonl", tmp_path / "b.jsonl"], tmp_path / "store", seed=1)
    with pytest.raises(InputError, match=r"b\.jsonl: line 3: may already have.*leave out provenance"):
        recshuf.gather(tmp_path / "store", tmp_path / "out.jsonl", provenance=True)
    assert not (tmp_path / "out.jsonl").exists()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "in.txt").write_text("".join(f"{row}\n" for row in range(1000)))
    recshuf.scatter(tmp_path / "in.txt", tmp_path / "store", seed=1, piles=4)
    return tmp_path / "store"


def test_a_shard_that_differs_from_the_store_is_not_put_in_place(store: Path, tmp_path: Path) -> None:
    class Damage(Listener):
        """Changes a shard before it is compared, as a bad disk would."""

        def start(self, name: str, *_: Any) -> None:
            if name not in ("scatter", "gather"):
                for path in tmp_path.rglob("shard-*.txt"):
                    content, found = path.read_bytes(), path.stat()
                    path.write_bytes(content.replace(b"\n17\n", b"\n71\n"))
                    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))

    with pytest.raises(CheckError, match="1 record missing, 1 extra"):
        recshuf.gather(store, tmp_path / "out/", shards=2, verify=True, progress=Damage())
    assert not (tmp_path / "out").exists()


def test_a_user_who_may_only_read_a_store_can_gather_and_load_it(store: Path) -> None:
    if os.getuid():
        pytest.skip("only root can become another user")
    nobody = 65534

    def gather(name: str) -> None:
        recshuf.gather(kept, f"{folder}/{name}/", shards=3, workers=1)

    def read() -> None:
        os.setuid(nobody)
        gather("out")
        loader = recshuf.PileLoader(kept, 100, columns=["_id"])
        assert sum(len(batch["_id"]) for batch in loader) == 1000

    # pytest makes its own folders private whenever it starts, also beside this one.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        kept = Path(shutil.copytree(store, folder / "store"))
        for path in (kept, *kept.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        gather("expected")
        files = list_tree(kept)
        assert join(fork(read)) == 0
        assert read_files(folder / "out") == read_files(folder / "expected")
        assert list_tree(kept) == files
