"""Text of which a line is not a record, and pointers in place of files, are refused under any name; other text is not."""

from __future__ import annotations

import gzip
import io
from itertools import product
from typing import TYPE_CHECKING

import pytest

import recshuf
from recshuf.errors import InputError
from tests.support.effort import some
from tests.support.formats.format_tools import OneWayReader

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.processes.command_line import Run

KINDS = {
    "FASTQ": b"@r0\nACGT\n+\nIIII\n@r1\nNNA\n+\nIII\n",
    "FASTQ ": b"@long read\r\n" + b"ACGTN" * 3000 + b"\r\n+\r\n" + b"I" * 15000 + b"\r\n",
    "FASTA": b">chr1 of a genome\nACGTNNacgt\nACG\n>chr2\nA\n",
    "FASTA ": b">sp|P1|X\nMKVLAAGIVGLCAKAYW*\n",
    "PGN": b'\n[Event "a"]\n[Site "b"]\n\n1. e4 e5 1-0\n',
    "CoNLL": b"-DOCSTART- -X- O O\n\nEU NNP B-NP B-ORG\n",
    "CoNLL ": b"EU B-ORG\nrejects O\n. O\n\nPeter B-PER\n\n",
    "CoNLL  ": b"# sent_id = 1\n1\tA\ta\tDET\t_\t_\t2\tdet\t_\t_\n",
    "CoNLL   ": b"1\tA\ta\tDET\t2\n2\tcat\tcat\tN\t0\n\n1\tB\tb\tX\t0\n",
    "subtitles": b"1\r\n00:00:01,000 --> 00:00:02,000\r\nHello\r\n\r\n",
    "XML": b'<?xml version="1.0"?>\n<a>\n</a>\n',
    "HTML": b"<!DOCTYPE html>\n<html>\n",
    "a mailbox": b"From a@b Thu Jan  1 00:00:00 1970\nFrom: a\n\nx\n",
    "VCF": b"##fileformat=VCFv4.2\n#CHROM\tPOS\n1\t2\n",
}
MARK = b"\xef\xbb\xbf"
LINES = [
    b"@user hello\nfoo\n+1\n", b"> quoted text\nanswer\n", b">50K\nabc def\n", b"1\ta\tb\n2\tc\td\n", b"1\ta\n\n2\tb\n",
    b'["Event", "a"]\n["x", "y"]\n', b"# sent from home\nx\n", b"A O\nB O\n", b"From here to 2024\nnot a header\n",
    b"1\n2\n00:00\n", b"[section]\nkey\n", b"<a>\n<b>\n", b"##x\n", b"LOCUS,id\n", b"version https://example.org\n",
]  # fmt: skip


@pytest.mark.parametrize(
    ("what", "name"), [*some(product(KINDS, ["in", "in.txt", "in.csv", "in.txt.gz"]), 3)]
)
def test_text_whose_lines_are_no_records_is_refused(tmp_path: Path, what: str, name: str) -> None:
    content, out = KINDS[what], tmp_path / "out.txt"
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    problem = rf"begins like {what.strip()}, of which a line is not a record; .*; format='text' takes"
    with pytest.raises(InputError, match=rf"{name}: {problem}"):
        recshuf.shuffle(path, out, header="none")
    with pytest.raises(InputError, match=f"standard input: {problem}"):
        recshuf.shuffle("-", out, stdin=OneWayReader(MARK + content))
    assert not out.exists()
    recshuf.shuffle(path, out, format="text")
    assert sorted(out.read_bytes().splitlines()) == sorted(content.splitlines())


def test_other_text_is_lines(tmp_path: Path) -> None:
    for content in LINES:
        for name in ("in", "in.txt"):
            (tmp_path / name).write_bytes(content)
            recshuf.shuffle(tmp_path / name, tmp_path / "out.txt", overwrite=True)
            assert sorted((tmp_path / "out.txt").read_bytes().splitlines()) == sorted(content.splitlines())


def test_whoever_says_what_the_records_are_is_not_refused(tmp_path: Path) -> None:
    """The remedies of the messages work."""
    (tmp_path / "a").write_bytes(KINDS["CoNLL "])
    recshuf.shuffle(tmp_path / "a", tmp_path / "a.txt", separator="\n\n")
    assert sorted((tmp_path / "a.txt").read_bytes().split(b"\n\n"))[1:] == [
        b"EU B-ORG\nrejects O\n. O",
        b"Peter B-PER",
    ]
    (tmp_path / "b.conll").write_bytes(KINDS["CoNLL "])
    recshuf.shuffle(tmp_path / "b.conll", tmp_path / "b.out.conll", separator="\n\n")
    (tmp_path / "c").write_bytes(KINDS["VCF"])
    recshuf.shuffle(tmp_path / "c", tmp_path / "c.txt", header=2)
    assert (tmp_path / "c.txt").read_bytes() == KINDS["VCF"]


@pytest.mark.parametrize("suffix", [".fastq", ".fq.gz", ".fasta", ".pgn", ".conllu"])
def test_a_name_is_enough_and_may_be_that_of_an_output(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"in{suffix}"
    path.write_bytes(gzip.compress(b"a\nb\n") if suffix.endswith(".gz") else b"a\nb\n")
    with pytest.raises(InputError, match=f"in{suffix}: is .* by its name, of which a line is not a record"):
        recshuf.shuffle(path, tmp_path / "out.txt")
    assert recshuf.shuffle(path, tmp_path / f"out{suffix}", format="text").records == 2


SUFFIXES = ["", ".jsonl", ".csv", ".txt", ".json", ".parquet", ".h5", ".jsonl.gz", ".csv.zst", ".xyz"]
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize 12345\n" % (b"4d" * 32)


@pytest.mark.parametrize(("suffix", "is_named"), [*some(product(SUFFIXES, [True, False]), 3)])
def test_a_pointer_is_refused_in_place_of_any_file(
    tmp_path: Path, suffix: str, is_named: bool, call: Run
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / f"in{suffix}").write_bytes(POINTER)
    given = folder / f"in{suffix}" if is_named or suffix == ".xyz" else folder
    done = call(str(given), "-o", str(tmp_path / f"out{suffix}"))
    assert done.returncode == 1
    assert f"in{suffix}: is a pointer of Git LFS, and not the file" in done.stderr.decode()
    assert "git lfs pull" in done.stderr.decode()


def test_a_pointer_among_other_files_is_refused(tmp_path: Path) -> None:
    for index in range(600):  # of so many, some are not looked into closely
        (tmp_path / f"{index}.jsonl").write_bytes(POINTER if index == 321 else b'{"a": 1}\n')
    with pytest.raises(InputError, match=r"321\.jsonl: is a pointer of Git LFS"):
        recshuf.shuffle(tmp_path, tmp_path / "out.jsonl")
    with pytest.raises(InputError, match="standard input: is a pointer of Git LFS"):
        recshuf.shuffle("-", "-", stdin=io.BytesIO(POINTER), stdout=io.BytesIO())
