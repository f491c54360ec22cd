"""Formats are found by name, suffix and content; packages add some, and nothing outside of the formats knows one by name."""

import ast
import importlib.metadata
import io
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf import formats
from recshuf.errors import CheckError, InputError, UsageError
from recshuf.formats import OWN_FORMATS, list_names
from recshuf.interfaces import FormatOption, Fragment, InputFile, Traits, open_input
from recshuf.testing import FormatSuite
from tests.conftest import Run
from tests.support.formats import sample_folders
from tests.support.formats.foreign_rows import END, FORMAT, MAGIC, RowsFormat, RowsSource
from tests.support.other_packages import ROWS_FORMAT, forget_formats

ROWS = 1500
SCHEMA = pa.schema([("id", pa.int64()), ("tag", pa.string())], metadata={"made by": "the tests"})


def make_table(first: int = 0, rows: int = ROWS, tag: str = "tag") -> pa.Table:
    return pa.table(
        {"id": range(first, first + rows), "tag": [f"{tag} {n % 7}" for n in range(rows)]}, SCHEMA
    )


def write_foreign(path: Path, table: pa.Table) -> Path:
    with path.open("wb") as file:
        file.write(MAGIC)
        with pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=700)
        file.write(END)
    return path


def read_rows(path: Path) -> list[dict[str, Any]]:
    with pa.ipc.open_stream(pa.py_buffer(path.read_bytes()[len(MAGIC) :])) as reader:
        return reader.read_all().to_pylist()


@pytest.fixture
def foreign(add_package: Any) -> None:
    """Let a package be installed that reads and writes files of rows."""
    add_package("recshuf-rows", rows=ROWS_FORMAT)


def make_format(name: str, *suffixes: str, **traits: Any) -> RowsFormat:
    """Return the format of rows by another name."""
    made = RowsFormat()
    made.traits = Traits(name, suffixes, **traits)
    return made


CLASH, TWIN, NOTHING = make_format("clash", ".x", ".pq"), make_format("twin", ".rows"), object()
FAULTY = make_format("faulty", ".faulty", libraries=("no_such_library",))
BARE, UPPER = make_format("bare", "x"), make_format("upper", ".X")
COMMA = make_format("comma", ".x", options=FormatOption("a_b", "It has an effect."))
DASH = make_format("dash", ".x", options=(FormatOption("a-b", "It has an effect."),))
HERE = "tests.formats.test_registry"


class LocalError(Exception):
    """Cannot be unpickled."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


class StraySource(RowsSource):
    """Fails as a generator, or with an error of its own, in the process that reads."""

    def fragments(self, input_index: int, block_bytes: int, max_record_bytes: int) -> Iterator[Fragment]:
        if self._files[0].name.endswith("own.stray"):
            raise LocalError(1, 2)
        yield next(iter(()))


STRAY = make_format("stray", ".stray")
STRAY.open_source = StraySource  # type: ignore[method-assign]


@pytest.mark.usefixtures("foreign")
class TestForeignFormat(FormatSuite):
    """A format that is not part of recshuf keeps the same promises."""

    format, field = FORMAT, "id"

    def make_inputs(self, folder: Path, row_counts: Sequence[int]) -> list[InputFile]:
        paths = [
            write_foreign(folder / f"{k}.rows", make_table(0, count, f"input {k}"))
            for k, count in enumerate(row_counts)
        ]
        return [InputFile(name=str(path), path=path) for path in paths]

    def read_back(self, path: Path) -> list[str]:
        return [repr(row) for row in read_rows(path)]

    def records_of(self, batch: pa.RecordBatch) -> list[str]:
        return [repr(row) for row in batch.to_pylist()]


def test_a_store_of_a_format_needs_its_package_and_tables_without_metadata_take_its_rows(
    tmp_path: Path, foreign: None, monkeypatch: pytest.MonkeyPatch
):
    store = tmp_path / "store"
    recshuf.scatter(write_foreign(tmp_path / "in.rows", make_table()), store, seed=1)
    with recshuf.PileWriter(store, "program") as writer:
        writer.write(make_table(ROWS))
    recshuf.gather(store, tmp_path / "out.rows", verify=True)
    assert sorted(row["id"] for row in read_rows(tmp_path / "out.rows")) == list(range(2 * ROWS))
    with monkeypatch.context() as patch:
        patch.setattr(formats, "_list_others", dict)
        said = r"of the format 'rows' of the package recshuf-rows 1\.0; install it"
        with pytest.raises(UsageError, match=said):
            recshuf.gather(store, tmp_path / "gone.parquet")
        with pytest.raises(UsageError, match="install it"):
            recshuf.PileLoader(store, 1)
    with recshuf.PileWriter(tmp_path / "tables", "program") as writer:
        writer.write(make_table().replace_schema_metadata())
    with recshuf.PileStore(tmp_path / "tables").update() as update:
        update.append([write_foreign(tmp_path / "plain.rows", make_table(ROWS).replace_schema_metadata())])
    assert recshuf.PileStore(tmp_path / "tables").num_records == 2 * ROWS


def test_a_foreign_format_is_found_by_name_suffix_and_content(tmp_path: Path, foreign: None, call: Run):
    sources = [
        write_foreign(tmp_path / name, make_table())
        for name in ("by suffix.rws", "by content", "by name.dat")
    ]
    output = tmp_path / "out.dat"
    for source in sources[:2]:
        recshuf.shuffle(source, output, seed=1, overwrite=True)
        assert len(read_rows(output)) == ROWS
    options = ["--format", "rows", "--to", "rows", "--overwrite"]
    assert call(*options, sources[2], "-o", output).returncode == 0
    assert len(read_rows(output)) == ROWS
    assert list_names() == (*OWN_FORMATS, "rows")
    with pytest.raises(UsageError, match=r"columns: for inputs of .*parquet.* only; here: rows"):
        recshuf.shuffle(sources[0], output, columns="id", overwrite=True)


@pytest.mark.parametrize("kind", ["arrow", "arrow stream", "npy", "npz", "tfrecord", "webdataset"])
def test_files_without_a_suffix_are_found_by_content(tmp_path: Path, kind: str):
    _, write, options = sample_folders.KINDS[kind]
    write(tmp_path / f"in{sample_folders.KINDS[kind][0]}", 0, 20)
    [path] = tmp_path.iterdir()
    path.rename(tmp_path / "in")
    options = {name: value for name, value in options.items() if name != "format"}
    report = recshuf.shuffle(tmp_path / "in", f"{tmp_path}/out/", seed=1, verify=True, **options)
    assert (report.format, report.records) == (kind.split()[0], 20)


def test_without_the_package_its_files_are_foreign(tmp_path: Path):
    source = write_foreign(tmp_path / "in.rows", make_table())
    with pytest.raises(InputError, match="begins like binary data"):
        recshuf.shuffle(source, tmp_path / "out.parquet")
    with pytest.raises(
        UsageError,
        match=r"there is no format 'rows'; choose one of jsonl, json, csv, text, tfrecord, parquet, hdf5, arrow, npy, npz, binary, webdataset, megatron$",
    ):
        recshuf.shuffle(source, tmp_path / "out.parquet", format="rows")


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ({"parquet": ROWS_FORMAT}, "the format 'parquet' of the package other has the name of one of recshuf"),
        ({"clash": f"{HERE}:CLASH"}, "the format 'clash' of the package other has the suffix .pq of parquet"),
        ({"other": ROWS_FORMAT}, "the format 'other' of the package other calls itself 'rows'"),
        ({"clash": f"{HERE}:NOTHING"}, "the format 'clash' of the package other is no instance of recshuf.interfaces.Format"),
        ({"bare": f"{HERE}:BARE"}, "the format 'bare' of the package other has the suffixes ('x',), which must begin with a dot and be in lower case; mend"),
        ({"upper": f"{HERE}:UPPER"}, "the format 'upper' of the package other has the suffixes ('.X',), which must begin with a dot and be in lower case"),
        ({"comma": f"{HERE}:COMMA"}, "the format 'comma' of the package other has options that are no tuple"),
        ({"dash": f"{HERE}:DASH"}, "the format 'dash' of the package other has an option 'a-b', which is no name in Python"),
        ({"gone": "no_such_module:FORMAT"}, "the format 'gone' of the package other cannot be imported: No module named"),
        ({"rows": ROWS_FORMAT, "twin": f"{HERE}:TWIN"}, "the formats rows and twin have the suffix .rows; name one with format='rows', that of an output with to"),
        ({"first": ROWS_FORMAT}, "the format 'first' of the package other has the name of one of another; mend"),
    ],
)  # fmt: skip
def test_packages_that_are_not_possible_are_refused_in_a_line(
    tmp_path: Path, add_package: Any, entries: dict[str, str], problem: str
):
    add_package("other", **entries)
    if "first" in entries:
        add_package("another", **entries)
    source = write_foreign(tmp_path / "in.rows", make_table())
    with pytest.raises(UsageError) as caught:
        recshuf.shuffle(source, tmp_path / "out.jsonl")
    assert str(caught.value).startswith(problem)
    assert "\n" not in str(caught.value)
    (tmp_path / "in.jsonl").write_text('{"a": 1}\n')  # the formats of recshuf need none of it
    recshuf.shuffle(tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    if "twin" in entries:
        recshuf.shuffle(source, tmp_path / "out.rows", format="rows", to="rows", seed=1)
        assert sorted(map(repr, read_rows(tmp_path / "out.rows"))) == sorted(map(repr, read_rows(source)))
        with pytest.raises(UsageError, match=r"have the suffix \.rows; name one"):
            recshuf.shuffle(source, tmp_path / "more.rows", format="rows")


def test_packages_are_looked_up_only_when_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(**_: object) -> None:
        raise RuntimeError("looked up")

    forget_formats()
    monkeypatch.setattr(importlib.metadata, "entry_points", fail)
    pq.write_table(make_table(), tmp_path / "content of its own")
    (tmp_path / "in.csv").write_text("a,b\n1,2\n")
    recshuf.shuffle(tmp_path / "content of its own", tmp_path / "out.jsonl.zst")
    recshuf.shuffle(tmp_path / "in.csv", tmp_path / "out", format="csv", to="parquet")
    with pytest.raises(RuntimeError, match="looked up"):
        recshuf.shuffle(tmp_path / "in.csv", tmp_path / "out.unknown")


def test_traits_import_no_library_of_a_format_and_no_format_imports_pandas():
    code = (
        "import sys; from recshuf.formats import OWN_FORMATS, load_format\n"
        "assert [load_format(name).traits.name for name in OWN_FORMATS] == [*OWN_FORMATS]\n"
        "print({'h5py', 'hdf5plugin', 'pyarrow.parquet', 'pyarrow.csv', 'pyarrow.json', 'deflate'} & {*sys.modules})\n"
        "import recshuf.formats.csv.source, recshuf.formats.jsonl.source, recshuf.formats.parquet.source\n"
        "print('pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\nFalse\n"


def raise_os_error(*_: object) -> None:
    raise OSError("odd")


def test_a_fault_of_a_package_is_said_with_its_name(
    tmp_path: Path, add_package: Any, call: Run, monkeypatch: pytest.MonkeyPatch
):
    add_package("other", faulty=f"{HERE}:FAULTY")
    command = [write_foreign(tmp_path / "in.faulty", make_table()), "-o", tmp_path / "out.jsonl"]
    who = "the format 'faulty' of the package other 1.0"
    with monkeypatch.context() as patch:
        patch.setattr(FAULTY, "open_source", lambda *_: [].pop(), raising=True)
        said = call(*command).stderr.decode()
        assert said.startswith(
            f"recshuf: {who} has failed: IndexError: pop from empty list (test_registry.py"
        )
        patch.setattr(FAULTY, "open_source", raise_os_error)
        assert f"{who} has failed: OSError: odd (" in call(*command).stderr.decode()
    assert f"{who} needs the library no_such_library" in call(*command).stderr.decode()


@pytest.mark.parametrize("engine", ["local", "processes"])
def test_a_fault_of_a_package_in_another_process_is_said_with_its_name(
    tmp_path: Path, add_package: Any, call: Run, engine: str
):
    add_package("other", stray=f"{HERE}:STRAY")
    who = "the format 'stray' of the package other 1.0 has failed"
    for name, said in (("in", "RuntimeError: generator raised"), ("own", "LocalError: 1 and 2")):
        source = write_foreign(tmp_path / f"{name}.stray", make_table())
        done = call(source, "-o", tmp_path / "out.jsonl", "--engine", engine)
        assert f"{who}: {said}" in done.stderr.decode()


def test_a_format_that_leaves_out_inputs_or_records_loses_none_in_silence(
    tmp_path: Path, foreign: None, monkeypatch: pytest.MonkeyPatch
):
    paths = [write_foreign(tmp_path / f"{k}.rows", make_table()) for k in range(2)]
    with monkeypatch.context() as patch:
        patch.setattr(FORMAT, "open_source", lambda inputs, options: RowsSource(inputs[1:], options))
        with pytest.raises(
            CheckError, match=r"'rows' of the package recshuf-rows 1\.0 has opened 1 of 2 inputs"
        ):
            recshuf.shuffle(paths, tmp_path / "out.rows")
    monkeypatch.setattr(RowsSource, "fragments", lambda *_: iter(()))
    for run in (recshuf.shuffle, recshuf.scatter):
        with pytest.raises(CheckError, match=r"\.rows: 0 records read, 1,500 counted before"):
            run(paths, tmp_path / "out")
    with pytest.raises(CheckError, match="0 records read"):
        recshuf.verify(paths[0], paths[1])


def test_every_kind_of_input_is_opened_alike(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"content")
    handle = open_input(InputFile("file", tmp_path / "file"))
    assert (handle.read_at(2, 3), handle.take_stream(), handle.stamp.size) == (b"nte", None, 7)
    handle.close()
    stream = io.BytesIO(b"content")
    handle = open_input(InputFile("standard input", None, stream))
    taken = handle.take_stream()
    assert taken is not None
    assert taken.read() == b"content"
    taken.close()
    handle.close()
    assert not stream.closed
    with pytest.raises(InputError, match="standard input: is a stream"):
        handle.read_at(0, 1)


PLAIN_WORDS = {"text", "arrow", "binary", "json"}
"""Names that are words with other meanings, too: only texts of one alone are looked at."""
FORMAT_WORD = re.compile(
    rf"\b(?:{'|'.join(OWN_FORMATS.keys() - PLAIN_WORDS)})\b|^(?:{'|'.join(PLAIN_WORDS)})$"
)
WORDS = {
    "cli/audit_commands.py": 5,  # examples; an input; a kind of report
    "cli/options.py": 1,  # examples
    "cli/store_commands.py": 1,  # an example
    "job/arguments.py": 1,  # what a str is called
    "job/options.py": 2,  # the list of formats; the name of a flag
    "job/schema_file.py": 2,  # types
    "output/local/stage.py": 2,  # journal.jsonl
    "run/decoding.py": 3,  # advice
    "run/features.py": 1,  # advice
    "run/resolve.py": 2,  # advice
    "run/scatter_pass.py": 1,  # a file of quarantined lines
    "testing/runs.py": 5,  # what formats are converted to, and a form of batches
    "train/blocks.py": 2,  # a form of batches
}
"""Texts with the name of a format in help, advice and names of files, by module."""


def test_nothing_outside_of_the_formats_names_one():
    package = Path(recshuf.__file__).parent
    named = {}
    for path in sorted(package.rglob("*.py")):
        module = path.relative_to(package).as_posix()
        if not module.startswith("formats/") and (texts := find_format_words(path)):
            named[module] = texts
    assert {module: len(texts) for module, texts in named.items()} == WORDS, named


def find_format_words(path: Path) -> list[str]:
    """Return the texts of a module that hold the name of a format, but for docstrings."""
    source = path.read_text()
    if not re.search(FORMAT_WORD.pattern.replace("^", "[\"']").replace("$", "[\"']"), source):
        return []  # most modules need no parsing
    nodes = list(ast.walk(ast.parse(source)))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and id(node) not in docstrings]
    return [text for text in texts if isinstance(text, str) and FORMAT_WORD.search(text)]
