"""Archives as people have them: names, headers, what belongs to no record, keys that come twice, damage, conversions."""

import gc
import gzip
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import ConversionError, InputError, RecshufWarning, UsageError
from recshuf.formats.webdataset import cutting
from recshuf.formats.webdataset.archives import TarTarget
from recshuf.run import driver
from tests.formats.webdataset.test_suite import Sample, list_members, make_tar, read_samples, read_tar
from tests.support.effort import mostly_slow
from tests.support.formats.file_suite import refused
from tests.support.small_runs import change_plans

END = bytes(1024)
FORMATS = {"gnu": tarfile.GNU_FORMAT, "ustar": tarfile.USTAR_FORMAT, "pax": tarfile.PAX_FORMAT}
PAIR = [("a.jpg", b"1"), ("a.txt", b"2")]


def shuffle(tmp_path: Path, content: bytes, output: str = "out.tar", **options: Any) -> list[Sample]:
    (tmp_path / "in.tar").write_bytes(content)
    recshuf.shuffle(tmp_path / "in.tar", tmp_path / output, seed=3, verify=True, **options)
    return read_tar(tmp_path / output) if output.endswith(".tar") else []


@pytest.mark.parametrize("name", FORMATS)
def test_members_are_kept_byte_for_byte_in_a_new_order(tmp_path: Path, name: str) -> None:
    tag = "x" * 60 + "/" + "y" * 60 + "/" if name != "gnu" else "z" * 150
    # Keys that differ at their begin alone.
    members = [*list_members(0, 60, "A" + tag[1:]), *list_members(0, 60, tag)]
    content = make_tar(members, FORMATS[name], mtime=1.5e9 + (name == "pax") / 4)
    found = shuffle(tmp_path, content)
    assert found != read_samples(content)
    assert sorted(found) == read_samples(content)
    output = (tmp_path / "out.tar").read_bytes()
    assert len(output) % 10240 == 0
    # Records have their headers, too: those of long names, and of pax.
    sizes = [len(one.rstrip(bytes(1))) for one in (output, content)]
    assert abs(sizes[0] - sizes[1]) < 512 * 3
    assert sorted(output[at : at + 512] for at in range(0, len(output), 512)) == sorted(
        content[at : at + 512] for at in range(0, len(content), 512)
    )


def test_a_conversion_keeps_nothing_in_memory(tmp_path: Path) -> None:
    content = make_tar([(f"{number}.bin", bytes(100_000)) for number in range(30)])
    before = pa.total_allocated_bytes()
    shuffle(tmp_path, content, "out.parquet")
    gc.collect()
    assert pa.total_allocated_bytes() - before < 100_000


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # webdataset closes no file
def test_readers_of_others_see_the_same_samples(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    for number in range(2):
        (tmp_path / f"{number}.tar").write_bytes(make_tar(list_members(100 * number, 100)))
    recshuf.shuffle(f"{tmp_path}/*.tar", f"{tmp_path}/out/", shards=3)
    found, given = (
        sorted(
            (sample["__key__"], sample.get("txt"), sample["img.jpg"])
            for path in sorted(folder.glob("*.tar"))
            for sample in webdataset.WebDataset(str(path), shardshuffle=False)
        )
        for folder in (tmp_path / "out", tmp_path)
    )
    assert found == given
    assert len(found) == 200


def test_what_readers_leave_out_stays_with_its_neighbour(tmp_path: Path) -> None:
    lone = [("__meta__/info.json", b"{}"), ("README", b"read"), (".hidden.txt", b"x")]
    members = list_members(0, 20)
    content = make_tar([lone[0], *members[:2], lone[1], *members[2:], lone[2]])
    folder = tarfile.TarInfo("d.x/")
    folder.type = tarfile.DIRTYPE
    content = folder.tobuf(tarfile.GNU_FORMAT) + content
    with pytest.warns(RecshufWarning, match="'__meta__/info.json' is of no record"):
        found = shuffle(tmp_path, content)
    assert sorted(found) == read_samples(make_tar(members))
    with tarfile.open(tmp_path / "out.tar") as archive:
        names = archive.getnames()
    assert sorted(names) == sorted(["d.x", *(name for name, _ in [*lone, *members])])


def test_ends_of_archives(tmp_path: Path) -> None:
    """An end may be missing, long, cut, or in the middle; compression is told by content."""
    content = make_tar(list_members(0, 100))
    unended = content.rstrip(b"\0")
    for changed, count in (
        (unended + bytes(-len(unended) % 512), 100),
        (content + bytes(100_000), 100),
        (content[:-700], 100),
        (content + make_tar(list_members(500, 9)), 109),
        (gzip.compress(content[:40960]) + gzip.compress(content[40960:]), 100),
    ):
        assert len(shuffle(tmp_path, changed, compression="none", overwrite=True)) == count


def edit(content: bytes, at: int, new: bytes, *, sums: bool = True) -> bytes:
    """Return an archive with other bytes in its first header."""
    head = bytearray(content[:512])
    head[at : at + len(new)] = new
    if sums:
        head[148:156] = b" " * 8
        head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head) + content[512:]


def test_headers_of_other_writers_are_read(tmp_path: Path) -> None:
    """Sizes in base 256 and of pax, sums of signed bytes; times of GNU, which are no names."""
    plain = make_tar([("é.jpg", b"1"), ("é.txt", b"2")])
    others = sum(plain[:148]) + sum(plain[156:512])
    signed = others + 8 * 32 - 256 * sum(byte > 127 for byte in plain[:512])
    pax = make_tar(PAIR, tarfile.PAX_FORMAT, pax_headers={"size": "1"})
    for key, content in (
        ("é", edit(plain, 124, b"\x80" + bytes(10) + b"\1")),
        ("é", edit(plain, 148, b"%06o\0 " % signed, sums=False)),
        ("a", pax[:1024] + edit(pax[1024:], 124, b"00000000000\0")),
        ("a", edit(make_tar(PAIR), 345, b"14512345670\0")),
    ):
        assert shuffle(tmp_path, content, overwrite=True) == read_samples(content)
        shuffle(tmp_path, content, "out.parquet", overwrite=True)
        assert pq.read_table(tmp_path / "out.parquet")["__key__"].to_pylist() == [key]


def make_odd(kind: bytes, **fields: Any) -> bytes:
    return make_tar([("a.jpg", b"")], type=kind, linkname="b.jpg", **fields)


LONG = ([("é" * 90 + ".jpg", b"")], tarfile.PAX_FORMAT)
SPARSE = make_tar(PAIR, tarfile.PAX_FORMAT, pax_headers={"GNU.sparse.name": "a.jpg", "GNU.sparse.major": "1"})


DAMAGE = {
    "empty": (b"", r"in\.tar: is empty"),
    "text": (b"no archive" * 100, "byte 0: is no header of a tar archive"),
    "cut behind a member": (make_tar(PAIR)[:1025], "byte 1024: is truncated"),
    "cut in a member": (make_tar([("a.jpg", bytes(5000))])[:3000], "byte 0: is truncated"),
    "checksum": (edit(make_tar(PAIR), 10, b"x", sums=False), "byte 0: is no header"),
    "size in octal": (edit(make_tar(PAIR), 124, b"77777777777\0"), "byte 0: the record that starts here is longer than"),
    "size in base 256": (edit(make_tar(PAIR), 124, b"\x80" + b"\x7f" * 11), "byte 0: the record that starts here is longer than"),
    "negative size in base 256": (edit(make_tar(PAIR), 124, b"\xff" * 12), "byte 0: is no header"),
    "negative size": (edit(make_tar(PAIR), 124, b"-0000000100\0"), "byte 0: is no header"),
    "type": (edit(make_tar(PAIR), 156, b"Z"), r"'a\.jpg' is of type b'Z', which is no file"),
    "symbolic link": (make_odd(tarfile.SYMTYPE), "symbolic link; write it again with GNU tar --.* --dereference --hard"),
    "hard link": (make_odd(tarfile.LNKTYPE), "hard link; write it again with GNU tar --.* --dereference --hard"),
    "pipe": (make_odd(tarfile.FIFOTYPE), "which is no file; write the archive again without it"),
    "sparse": (SPARSE, "sparse file; write it again with GNU tar .* without --sparse"),
    "suffix twice": (make_tar([*PAIR, ("A.jpg", b""), ("A.JPG", b"")]), "byte 2560: the record 'A' has the suffix 'jpg' twice"),
    "no records": (make_tar([("README", b"only")]), "byte 0: holds only members that readers leave out"),
    "global header": (tarfile.TarInfo.create_pax_global_header({"comment": "x"}) + make_tar(PAIR), "global header of pax"),
    "long name alone": (make_tar([("a" * 120 + ".jpg", b"1")])[:1024] + END, "byte 1024: is no header"),
    "cut header of pax": (edit(make_tar(*LONG), 124, b"00000000003\0"), "header of pax that is damaged"),
    "long header of pax": (edit(make_tar(*LONG), 124, b"77777777777\0"), "byte 0: is truncated"),
    "size in pax": (make_tar(PAIR, tarfile.PAX_FORMAT, pax_headers={"size": "9" * 5000}), "header of pax that is damaged"),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGE)
def test_what_is_wrong_is_named_with_its_place(tmp_path: Path, kind: str) -> None:
    content, said = DAMAGE[kind]
    (tmp_path / "in.tar").write_bytes(content)
    refused(InputError, said, tmp_path / "in.tar", tmp_path / "out.tar", format="webdataset")
    assert [path.name for path in tmp_path.iterdir()] == ["in.tar"]


@pytest.mark.parametrize("run_keys", [cutting.RUN_KEYS, 7])
def test_a_key_that_occurs_twice_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_keys: int
) -> None:
    """Keys that do not fit in memory are compared in a file."""
    monkeypatch.setattr(cutting, "RUN_KEYS", run_keys)
    members = [member for member in list_members(0, 60) if member[0].endswith("JPG")]
    contents = {
        "in": make_tar(members),
        "torn": make_tar([*members, ("d.x/000050.cls", b"5")]),
        "more": make_tar([("d.x/000050.Img.JPG", b"6"), *list_members(100, 30)]),
    }
    for name, content in contents.items():
        (tmp_path / f"{name}.tar").write_bytes(content)
    recshuf.shuffle(tmp_path / "in.tar", tmp_path / "out.tar", verify=True)
    said = r"byte \d+: the key 'd.x/000050' comes again.*GNU tar --sort=name"
    for output in ("new.tar", "new.parquet"):
        refused(InputError, said, tmp_path / "torn.tar", tmp_path / output)
    both = [tmp_path / "in.tar", tmp_path / "more.tar"]
    recshuf.shuffle(both, tmp_path / "both.parquet")  # rows of a table may share a key
    said = r"is that of several records \(in .*/in\.tar and .*/more\.tar\).*; give rename_keys=True"
    for output, options in ((tmp_path / "twice.tar", {}), (f"{tmp_path}/twice/", {"shards": 5})):
        refused(ConversionError, f"key.* {said}", both, output, **options)
    assert not (tmp_path / "twice.tar").exists()


def test_a_hash_that_comes_again_is_found_whatever_it_begins_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes are compared by ranges of their first byte."""
    monkeypatch.setattr(cutting, "RUN_KEYS", 7)
    hashes = [bytes([first]) * 16 for first in range(256)]
    for first in (None, 0, 1, 254, 255):
        keys, twice = cutting.KeySet(), [] if first is None else [hashes[first]]
        added = [*hashes[:128], *twice, *hashes[128:]]
        assert not any(keys.add(added[at : at + 7]) for at in range(0, len(added), 7))
        assert keys.finish() == (twice[0] if twice else None)


def test_a_run_that_goes_on_compares_the_keys_of_finished_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in (1, 2):
        (tmp_path / f"{part}.tar").write_bytes(make_tar(list_members(0, 20)))

    def die(*_: object) -> None:
        raise InterruptedError

    command = (f"{tmp_path}/?.tar", f"{tmp_path}/out/")
    with monkeypatch.context() as patch:
        patch.setattr(TarTarget, "check_shards", lambda _: None)
        patch.setattr(driver, "_commit", die)
        with pytest.raises(InterruptedError):
            recshuf.shuffle(*command, shards=5)
    said = r"is that of several records \(in .*/1\.tar and .*/2\.tar\)"
    refused(ConversionError, said, *command, shards=5, resume=True)
    assert not list((tmp_path / "out").glob("*.tar"))


@pytest.mark.parametrize("name", mostly_slow(FORMATS, "ustar"))
def test_keys_are_made_anew(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change_plans(monkeypatch, pile_bytes=600, units_in_flight=1)  # shards of several batches
    tag = "é" * 80 if name != "ustar" else "e" * 80 + "/"
    twice = make_tar([*list_members(0, 50, tag), *list_members(0, 50, tag)], FORMATS[name])
    for part in (1, 2):
        (tmp_path / f"{part}.tar").write_bytes(twice)
    inputs = f"{tmp_path}/[12].tar"
    recshuf.shuffle(inputs, f"{tmp_path}/out/", shards=3, piles=8, seed=1, rename_keys=True, verify=True)
    found = [sample for path in sorted((tmp_path / "out").glob("*.tar")) for sample in read_tar(path)]
    assert len({sample.key for sample in found}) == 200
    assert found[0].key == "/shard-00000_000000000"
    given = read_samples(twice)
    assert sorted(sample.members for sample in found) == sorted(4 * [s.members for s in given][:50])
    assert recshuf.verify(inputs, tmp_path / "out", rename_keys=True)
    assert not recshuf.verify(f"{tmp_path}/1.tar", tmp_path / "out", rename_keys=True)
    said = "rename_keys=True: for webdataset to webdataset only"
    refused(UsageError, said, inputs, tmp_path / "out.parquet", rename_keys=True)


def test_keys_of_stores_are_compared_and_tasks_need_new_ones(tmp_path: Path) -> None:
    (tmp_path / "in.tar").write_bytes(make_tar(list_members(0, 20)))
    recshuf.scatter(tmp_path / "in.tar", tmp_path / "store", seed=1)
    with recshuf.PileStore(tmp_path / "store").update() as update:
        update.append([tmp_path / "in.tar"])
    with pytest.raises(ConversionError, match=r"is that of several records.*; give rename_keys=True"):
        recshuf.gather(tmp_path / "store", tmp_path / "two.tar")
    for seed in (None, 2):
        with pytest.raises(
            UsageError, match=r"^verify=True: .*rename_keys=True changes; leave it out, .*recshuf verify"
        ):
            recshuf.gather(tmp_path / "store", tmp_path / "two.tar", rename_keys=True, verify=True, seed=seed)
    recshuf.gather(tmp_path / "store", tmp_path / "two.tar", rename_keys=True)
    assert len({sample.key for sample in read_tar(tmp_path / "two.tar")}) == 40
    assert recshuf.verify(2 * [tmp_path / "in.tar"], tmp_path / "two.tar", rename_keys=True)
    inputs = [tmp_path / "in.tar", tmp_path / "two.tar"]
    recshuf.scatter(inputs, tmp_path / "both", seed=2)
    recshuf.gather(tmp_path / "both", f"{tmp_path}/gathered/", shards=3, rename_keys=True)
    recshuf.shuffle(inputs, f"{tmp_path}/shuffled/", shards=3, rename_keys=True, seed=2)
    shards = [sorted((tmp_path / way).glob("*.tar")) for way in ("gathered", "shuffled")]
    assert [one.read_bytes() for one in shards[0]] == [one.read_bytes() for one in shards[1]]
    said = "engine tasks: no task sees the keys of all records of webdataset; .*rename_keys=True"
    with pytest.raises(UsageError, match=said):
        recshuf.plan(tmp_path / "in.tar", f"{tmp_path}/out/", engine="tasks")


def test_a_table_has_a_column_for_each_suffix_and_comes_back(tmp_path: Path) -> None:
    content = make_tar(list_members(0, 60))
    shuffle(tmp_path, content, "out.parquet")
    table = pq.read_table(tmp_path / "out.parquet").sort_by("__key__")
    assert table.column_names == ["__key__", "img.jpg", "txt"]
    samples = read_samples(content)
    assert table["__key__"].to_pylist() == [sample.key for sample in samples]
    assert table["txt"].to_pylist() == [{m[0]: m[3] for m in one.members}.get("txt") for one in samples]
    recshuf.shuffle(tmp_path / "out.parquet", tmp_path / "back.tar", verify=True)
    back = [(one.key, [(m[0], m[3]) for m in one.members]) for one in sorted(read_tar(tmp_path / "back.tar"))]
    assert back == [(one.key, [(m[0].lower(), m[3]) for m in one.members]) for one in samples]


def test_archives_are_compared_with_tables_of_columns_that_they_do_not_show(tmp_path: Path) -> None:
    """A column of nulls alone, in all records or those of a sample, has no member."""
    texts, keys = pa.array([None] * 40, pa.string()), [f"k{at}" for at in range(40)]
    table = pa.table({"__key__": keys, "jpg": [b"x"] * 40, "txt": texts})
    recshuf.shuffle(table, tmp_path / "out.tar", verify=True)
    recshuf.shuffle(table, tmp_path / "sample.tar", head_count=3, verify=True)
    assert recshuf.verify(table, tmp_path / "sample.tar", head_count=3)
    other = table.set_column(2, "txt", pa.array(["a", *[None] * 39], pa.string()))
    found = recshuf.verify(other, tmp_path / "out.tar")
    assert (found.missing, found.extra, found.differences) == (1, 1, ())
    recshuf.shuffle(other, tmp_path / "more.tar", verify=True)
    assert recshuf.verify(table, tmp_path / "more.tar").missing == 1
    found = recshuf.verify(table.drop_columns("txt"), tmp_path / "more.tar")
    assert "'txt' is in the output only" in str(found.differences)


TABLES: dict[str, tuple[dict[str, Any], str]] = {
    "no keys": ({"key": ["a"], "txt": ["x"]}, "webdataset needs a column __key__"),
    "numbers": ({"__key__": ["a"], "cls": [5]}, "'cls': members of webdataset hold bytes or text, not int64"),
    "capitals": ({"__key__": ["a"], "Txt": ["x"]}, "'Txt': is no suffix that readers see"),
    "a dot": ({"__key__": ["a.b"], "txt": ["x"]}, r"'a\.b' is no key that readers see"),
    "left out": ({"__key__": ["__a__/x"], "txt": ["x"]}, "'__a__/x' is no key that readers see"),
    "an empty name": ({"__key__": ["__b__/"], "txt": ["x"]}, "'__b__/' is no key that readers see"),
    "a null key": ({"__key__": pa.array([None], pa.string()), "txt": ["x"]}, "is no key that readers see"),
    "a null key, no suffix": ({"__key__": pa.array([None], pa.string()), "": ["x"]}, "is no key that readers"),
    "no members": ({"__key__": ["a"], "txt": pa.array([None], pa.string())}, "'a' has no members"),
    "twice": ({"__key__": ["a", "b", "a"], "txt": ["x"] * 3}, "'a' is that of several .*; give each record a __key__ of its own"),
    "all the same": ({"__key__": ["a", "a"], "txt": ["x"] * 2}, "the key 'a' is that of several .*; give each record a __key__ of its own"),
}  # fmt: skip


@pytest.mark.parametrize("kind", TABLES)
def test_tables_that_are_no_records_are_refused(tmp_path: Path, kind: str) -> None:
    columns, said = TABLES[kind]
    refused(ConversionError, said, pa.table(columns), tmp_path / "out.tar")


def test_a_suffix_that_is_the_name_of_the_column_of_keys_is_no_column(tmp_path: Path) -> None:
    content = make_tar([*PAIR, ("b.__key__", b"3")])
    assert len(shuffle(tmp_path, content)) == 2
    with pytest.raises(ConversionError, match=r"__key__.* is a suffix, and the name of the column of keys"):
        shuffle(tmp_path, content, "out.parquet")


def test_what_is_easily_mistaken_is_said(tmp_path: Path) -> None:
    (tmp_path / "in.tar.idx").write_bytes(b"x")
    with pytest.warns(RecshufWarning) as said:
        shuffle(tmp_path, make_tar([("train.jsonl", b'{"a": 1}\n')]))
    assert "'train.jsonl' is one record; unpack the archive" in str(said[0].message)
    assert "energon prepare FOLDER" in str(said[1].message)
