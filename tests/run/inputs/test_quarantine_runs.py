"""Records that do not parse are set aside, exactly those, in the order of the inputs, all or nothing."""

import base64
import io
import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import recshuf
from recshuf.errors import DiskFullError, InputError, OutputError, PileError, UsageError
from tests.conftest import Run
from tests.support.effort import examples
from tests.support.processes.killed_runs import strike_renames
from tests.support.small_runs import Listener, read_files

GOOD = (b'{"a": 1}', b'{"a": 22, "b": "x"}', b'{"b": "\xc3\xa9"}', b"{}")
BAD = (b"{", b'{"a": 1', b'{"a": 1}}', b"\xff", b'{"b": "\xff"}', b"[1]", b'{"a" 1}', b"17", b'{"a": tru}')


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def is_good(line: bytes) -> bool:
    """Tell by the standard library whether a line is an object."""
    try:
        return isinstance(json.loads(line.decode()), dict)
    except ValueError:
        return False


def canonical(row: dict[str, Any]) -> str:
    return json.dumps(row, sort_keys=True)


def expect(files: dict[str, list[bytes]]) -> list[tuple[str, int, bytes]]:
    """Return input, line number and content of every bad line."""
    return [
        (name, number, line)
        for name, lines in files.items()
        for number, line in enumerate(lines, 1)
        if not is_good(line)
    ]


def found_in(path: Path) -> list[tuple[str, int, bytes]]:
    def content_of(one: dict[str, Any]) -> bytes:
        return one["record"].encode() if "record" in one else base64.b64decode(one["record_base64"])

    return [(one["input"], one["line"], content_of(one)) for one in read_lines(path)]


def write_inputs(folder: Path, parts: list[list[bytes]]) -> dict[str, list[bytes]]:
    """Write files and return their lines by name."""
    folder.mkdir(exist_ok=True)
    files = {str(folder / f"in{index}.jsonl"): lines for index, lines in enumerate(parts)}
    for name, lines in files.items():
        with open(name, "wb") as file:  # noqa: PTH123 - a name
            file.write(b"".join(line + b"\n" for line in lines))
    return files


@settings(max_examples=examples(80), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parts=st.lists(st.lists(st.sampled_from([*GOOD, *GOOD, *BAD]), max_size=40), min_size=1, max_size=3)
    | st.lists(st.lists(st.sampled_from([*GOOD, *BAD]), max_size=3), min_size=20, max_size=40),
    workers=st.integers(1, 3),
    number=st.integers(0, 10**9),
)
def test_exactly_the_bad_lines_are_set_aside(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[bytes]], workers: int, number: int
):
    """Also those of many small inputs, which are read together."""
    kept = [line for lines in parts for line in lines if is_good(line)]
    assume(not kept or any(line != b"{}" for line in kept))  # Parquet has no rows without columns
    folder = tmp_path_factory.mktemp("quarantine")
    files = write_inputs(folder / "in", parts)
    report = recshuf.shuffle(
        list(files),
        folder / "out.parquet",
        seed=number,
        workers=workers,
        on_bad_record=f"quarantine:{folder}/bad.jsonl",
    )
    assert found_in(folder / "bad.jsonl") == expect(files)
    good = [json.loads(line) for lines in files.values() for line in lines if is_good(line)]
    rows = [
        {key: value for key, value in row.items() if value is not None}
        for row in pq.read_table(folder / "out.parquet").to_pylist()
    ]
    assert sorted(map(canonical, rows)) == sorted(map(canonical, good))
    assert report.records == sum(map(len, parts))
    assert report.records_written == len(good)
    assert report.quarantined == len(expect(files)) == sum(one.quarantined for one in report.inputs)
    for one, lines in zip(report.inputs, parts, strict=True):
        assert (one.records, one.quarantined) == (len(lines), sum(not is_good(line) for line in lines))
    assert sorted(os.listdir(folder)) == ["bad.jsonl", "in", "out.parquet"]


@pytest.mark.parametrize("separator", [b"\n", b"||", rb"\n"])
def test_lines_are_numbered_with_those_of_the_header(tmp_path: Path, separator: bytes):
    """Names that need escapes are those of the inputs."""
    lines = [b"first", b"\xffsecond", b"third\r", b"", b"\xfelast\r"]
    names = [str(tmp_path / name) for name in ("0.txt", '"\n\udcff.txt')]
    for index, name in enumerate(names):
        content = separator.join([b"one", b"two", *lines[index:], b""])
        Path(name).write_bytes(content)
    given = {"header": 2, "on_bad_record": f"quarantine:{tmp_path}/bad", "format": "text"}
    given |= {} if separator == b"\n" else {"separator": separator}
    report = recshuf.shuffle(names, tmp_path / "out.parquet", seed=1, **given)
    assert found_in(tmp_path / "bad") == [
        (name, number, line)
        for index, name in enumerate(names)
        for number, line in enumerate(lines[index:], 3)
        if line[:1] > b"~"
    ]
    assert {line["reason"] for line in read_lines(tmp_path / "bad")} == {"is not UTF-8"}
    assert (report.records, report.records_written, report.quarantined) == (9, 5, 4)
    kept = sorted(pq.read_table(tmp_path / "out.parquet")["text"].to_pylist())
    assert kept == ["", "", "first", "third\r", "third\r"]


def test_no_bad_record_is_too_long_to_be_set_aside(tmp_path: Path):
    """One takes more than a piece of the file that holds them."""
    files = write_inputs(tmp_path / "in", [[b"{", b"{" * (5 << 20), b"[", b'{"a": 1}']])
    recshuf.shuffle(
        list(files), tmp_path / "out.parquet", on_bad_record=f"quarantine:{tmp_path}/bad", memory="300MB"
    )
    assert found_in(tmp_path / "bad") == expect(files)


def test_records_that_only_disagree_with_others_remain_an_error(tmp_path: Path):
    (name,) = write_inputs(tmp_path / "in", [[b'{"a": 1}', b'{"a": "x"}']])
    with pytest.raises(InputError, match="schema"):
        recshuf.shuffle(name, tmp_path / "out.parquet", on_bad_record=f"quarantine:{tmp_path}/bad")
    assert sorted(os.listdir(tmp_path)) == ["in"]


@pytest.mark.parametrize(("overwrite", "links"), [(True, True), (True, False), (False, True)])
def test_a_run_that_fails_leaves_the_file_as_it_was(
    tmp_path: Path, overwrite: bool, links: bool, monkeypatch: pytest.MonkeyPatch
):
    """The shards cannot be put in place after the bad records were; the file system may have one name for each file."""
    files = write_inputs(tmp_path / "in", [[*GOOD, *BAD]])
    if overwrite:
        (tmp_path / "bad").write_text("old")
    before = sorted(os.listdir(tmp_path))

    def fail() -> None:
        assert found_in(tmp_path / "bad") == expect(files)
        raise OSError(5, "Input/output error")

    def refuse(*_: object) -> None:
        raise PermissionError(1, "no links")

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    strike_renames(monkeypatch, 1 if links else 2, fail, late=False)
    with pytest.raises(OutputError, match=r"out\.parquet"):
        shuffle(files, tmp_path, overwrite=overwrite)
    shutil.rmtree(tmp_path / ".out.parquet.recshuf", ignore_errors=True)
    assert sorted(os.listdir(tmp_path)) == before
    if overwrite:
        assert (tmp_path / "bad").read_text() == "old"


def shuffle(files: dict[str, list[bytes]], folder: Path, **options: Any) -> recshuf.ShuffleReport:
    given = {"on_bad_record": f"quarantine:{folder}/bad"} | options
    return recshuf.shuffle(list(files), folder / "out.parquet", seed=1, **given)


class AtUnnamed(Listener):
    """Does something to the file without a name that holds the bad records, when a pass begins."""

    def __init__(self, folder: Path, name: str, act: Callable[[int], object]) -> None:
        super().__init__()
        self._folder, self._name, self._act = folder, name, act

    def start(self, name: str, *_: Any) -> None:
        if name == self._name:
            for link in Path("/proc/self/fd").iterdir():
                with suppress(FileNotFoundError):
                    path = str(link.readlink())
                    if path.startswith(f"{self._folder}/") and path.endswith(" (deleted)"):
                        self._act(int(link.name))


def test_records_that_a_disk_has_damaged_are_found(tmp_path: Path):
    files = write_inputs(tmp_path / "in", [[*GOOD, *BAD]])
    for place, size in ((0, None), (40, None), (-1, None), (0, 5)):

        def damage(file: int, place: int = place, size: int | None = size) -> None:
            end = os.fstat(file).st_size
            at = place % end
            os.pwrite(file, bytes([os.pread(file, 1, at)[0] ^ 1]), at)
            if size is not None:
                os.ftruncate(file, end - size)

        with pytest.raises(PileError, match="do not read back"):
            shuffle(files, tmp_path, progress=AtUnnamed(tmp_path, "gather", damage))
        assert not (tmp_path / "bad").exists()
        shutil.rmtree(tmp_path / ".out.parquet.recshuf", ignore_errors=True)


def test_a_full_disk_is_named(tmp_path: Path):
    files = write_inputs(tmp_path / "in", [[*GOOD, *BAD]])

    def fill(file: int) -> None:
        full = os.open("/dev/full", os.O_RDWR)
        os.dup2(full, file)
        os.close(full)

    with pytest.raises(DiskFullError, match="/bad: "):
        shuffle(files, tmp_path, progress=AtUnnamed(tmp_path, "scatter", fill))
    assert os.listdir(tmp_path) == ["in"]


def test_streams_have_bad_lines_too(tmp_path: Path):
    out = io.BytesIO()
    report = recshuf.shuffle(
        "-",
        "-",
        format="jsonl",
        to="text",
        schema={"t": "string"},
        on_bad_record=f"quarantine:{tmp_path / 'bad'}",
        stdin=io.BytesIO(b'{"t":"a"}\n{"t":"b"\n{"u":"c"}\n'),
        stdout=out,
    )
    assert out.getvalue() == b"a\n"
    assert found_in(tmp_path / "bad") == [
        ("standard input", 2, b'{"t":"b"'),
        ("standard input", 3, b'{"u":"c"}'),
    ]
    assert report.quarantined == 2
    assert os.listdir(tmp_path) == ["bad"]


def test_the_command_says_how_many_and_where(tmp_path: Path, call: Run):
    (name,) = write_inputs(tmp_path / "in", [[*GOOD, *BAD]])
    given = (name, "-o", f"{tmp_path}/out/", "--to=parquet", f"--on-bad-record=quarantine:{tmp_path}/bad")
    done = call(*given, "--report", tmp_path / "report")
    assert done.returncode == 0
    assert f", {len(BAD)} bad records set aside in {tmp_path}/bad, seed ".encode() in done.stderr
    report = json.loads((tmp_path / "report").read_text())
    assert (report["quarantined"], report["quarantine"]) == (len(BAD), f"{tmp_path}/bad")
    manifest = json.loads((tmp_path / ".out.recshuf.json").read_text())
    assert [(one["records"], one["quarantined"]) for one in manifest["inputs"]] == [
        (len(GOOD) + len(BAD), len(BAD))
    ]
    assert manifest["records"] == len(GOOD)
    assert call(*given, "--overwrite").returncode == 0
    assert len(found_in(tmp_path / "bad")) == len(BAD)
    assert b"--overwrite" in call(*given).stderr


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("out.jsonl", {}, "for a conversion"),
    ("out.parquet", {"on_bad_record": "quarantine:"}, "neither fail nor quarantine:FILE"),
    ("out.parquet", {"on_bad_record": "skip"}, "neither fail nor quarantine:FILE"),
    ("out.parquet", {"verify": True}, "verify=True"),
    ("out.parquet", {"format": "text", "schema": {"text": "binary"}}, "on_bad_record"),
    *(
        (output, {"on_bad_record": f"quarantine:{path}", "overwrite": True}, problem)
        for output, path, problem in (
            ("out.parquet", "in/in0.jsonl", "is one of the inputs"),
            ("out.parquet", "link", "is one of the inputs"),
            ("out.parquet", "none/bad", "does not exist"),
            ("out.parquet", "in", "is a directory"),
            ("out.parquet", "out.parquet", "is or lies in the output"),
            ("out/", "out/bad", "is or lies in the output"),
            ("out/", "in/../out/bad", "is or lies in the output"),
            ("out/", "./.out.recshuf.json", "as manifests do"),
            ("out/", ".out.recshuf", "is or lies in the work folder of"),
        )
    ),
    ("out.parquet", {"on_bad_record": "quarantine:there"}, "exists already; .*overwrite"),
    ("out.parquet", {"on_bad_record": "quarantine:there", "resume": True}, "exists already; .*overwrite"),
]


def test_what_cannot_be_meant_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_inputs(tmp_path / "in", [list(GOOD)])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("in/in0.jsonl")
    (tmp_path / "there").touch()
    before = read_files(tmp_path)
    for output, options, words in REFUSED:
        to = "jsonl" if output == "out.jsonl" else "parquet"
        with pytest.raises(UsageError, match=words):
            recshuf.shuffle("in/in0.jsonl", output, to=to, **{"on_bad_record": "quarantine:bad"} | options)
        assert read_files(tmp_path) == before
