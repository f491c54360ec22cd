"""What belongs to an output: names of its shards, its manifest beside them, and checksums to compare both with."""

from __future__ import annotations

import hashlib
import json
import os
import re
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import xxhash

from recshuf.dataclass import dataclass
from recshuf.errors import UsageError
from recshuf.formats import list_owners
from recshuf.formats.compression import split_suffix
from recshuf.job.job import Epoch
from recshuf.job.plan import Cut, count_shards, sum_known
from recshuf.job.report import FileReport
from recshuf.records.keys import ORDER_VERSION
from recshuf.storage.reading.local import MANIFEST_SUFFIX
from recshuf.system.files import sync
from recshuf.system.paths import real_path, shorten_name
from recshuf.version import __version__

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import pyarrow as pa

    from recshuf.output.run_log import Entry


def find_checksum(path: Path) -> str:
    """Return the xxh3 checksum of a file, 128 bits as hexadecimal digits."""
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()


SHARD_PREFIX = "shard-"
_SHARD = re.compile(SHARD_PREFIX + r"\d{5,}[.\w]*")


def name_shard(number: int, suffix: str) -> str:
    """Return the name of a shard in a directory.

    >>> name_shard(7, ".jsonl.zst")
    'shard-00007.jsonl.zst'
    """
    return f"{SHARD_PREFIX}{number:05d}{suffix}"


def is_shard_name(name: str) -> bool:
    return _SHARD.fullmatch(name) is not None


SAVED_LIST = "state.json"
"""The document that lists the files of a saved data set."""
_CACHE = re.compile(r"cache-.*\.arrow")
"""Names of files that `datasets.Dataset.map` and its like write beside those of a saved data set, whose readers pass them over."""


class WrittenFile(NamedTuple):
    """A file of a shard."""

    name: str
    byte_count: int = 0
    """Known once it is durable, as is the next."""
    checksum: str = ""
    """xxh3 of 128 bits, as hexadecimal digits."""


def name_companion(name: str, suffix: str) -> str:
    """Return the name of the file of a suffix beside that of a shard.

    >>> name_companion("a.b.bin", ".idx")
    'a.b.idx'
    """
    return str(PurePath(name).with_suffix(suffix))


def name_manifest(output: str) -> str:
    """Return the name of the manifest, which lies beside an output of this name.

    Readers of the folder that holds both pass over names with a dot first.
    """
    return f".{shorten_name(output)}{MANIFEST_SUFFIX}"


def name_work_folder(output: str) -> str:
    """Return the name of the work folder, beside the output, too; in a bucket, of the journal."""
    return f".{shorten_name(output)}.recshuf"


def manifest_path(folder: Path) -> Path:
    """Return the path of the manifest of a folder of shards: beside it, so that the folder holds shards only."""
    folder = real_path(folder)
    return folder.parent / name_manifest(folder.name)


def work_folder_path(output: Path) -> Path:
    """Return the path of the work folder of an output: beside it, too."""
    target = real_path(output)
    return target.parent / name_work_folder(target.name)


def check_beside(option: str, name: str | Path, output: str | Path | None) -> None:
    """Refuse a file of an option whose folder is missing, or that runs or stores replace or delete."""
    from recshuf.piles.kept.folder import find_store_around  # most runs write no such file

    path, problem = real_path(name), None
    own = {path, *path.parents}
    if output is not None and real_path(output) in own:
        problem = f"is or lies in the output {output}"
    elif output is not None and work_folder_path(Path(output)) in own:
        problem = f"is or lies in the work folder of {output}"
    elif store := find_store_around(path):
        problem = f"lies in the pile store {store}, which may hold nothing else"
    elif path.name.endswith(MANIFEST_SUFFIX):
        problem = f"ends in {MANIFEST_SUFFIX}, as manifests do"
    elif path.is_dir():
        problem = "is a directory"
    if problem is not None:
        raise UsageError(f"{option} {problem}; name another file")
    if not path.parent.is_dir():
        raise UsageError(f"{option}: folder {path.parent} does not exist; create it first")


_FEATURES = ("group_by", "dedup", "split", "sources")


def list_shards(folder: Path, folders: Collection[str]) -> dict[str, os.DirEntry[str]]:
    """Return what is in a folder of shards, by name, and in place of some folders in it, which may be there, what these hold."""
    found: dict[str, os.DirEntry[str]] = {}
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for one in entries:
            if one.name in folders and one.is_dir(follow_symlinks=False):
                with os.scandir(one) as inner:
                    found |= {f"{one.name}/{file.name}": file for file in inner}
            else:
                found[one.name] = one
    return found


class WrittenShards(Protocol):
    """The shards of an output, as they lie there."""

    @property
    def manifest(self) -> str: ...

    def show(self, name: str) -> str: ...

    def find_sizes(self, folders: Collection[str]) -> dict[str, int]:
        """Return the size of each file in the folder, and in these folders in it, and that of others as -1."""
        ...

    def find_checksum(self, name: str) -> str: ...


class LocalShards:
    """The shards in a local folder; `WrittenShards`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.manifest = str(manifest_path(folder))

    def show(self, name: str) -> str:
        return str(self._folder / name)

    def find_sizes(self, folders: Collection[str]) -> dict[str, int]:
        return {
            name: one.stat().st_size if one.is_file() else -1
            for name, one in list_shards(self._folder, folders).items()
        }

    def find_checksum(self, name: str) -> str:
        return find_checksum(self._folder / name)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of a folder of shards.

    `read` and `parse` set the fields without a default, `added`, `format`, `seed`, `epoch`, `features`, `documents` and
    `companions`.
    """

    folder: Path
    to: str
    inputs: tuple[FileReport, ...]
    shards: tuple[FileReport, ...]
    added: tuple[str, ...] = ()
    """Provenance columns of the shards, which the inputs do not have."""
    format: str = ""
    seed: int = 0
    epoch: Epoch | None = None
    """The later epoch of a pile store whose order this is; None for the order of the seed."""
    schema: pa.Schema | None = None
    """Schema of the records, in table form if there is one."""
    counts_quarantined: bool = False
    """Whether to write the number of quarantined records of each input."""
    notes: tuple[str, ...] = ()
    """What differs from the inputs, besides the order."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Versions of the packages, by name, that the formats are from, if not from recshuf."""
    features: Mapping[str, Any] = field(default_factory=dict)
    """What the run did besides the order, by the names of `_FEATURES`, as JSON values."""
    documents: tuple[str, ...] = ()
    """Names of the files beside the shards that describe them."""
    companions: tuple[WrittenFile, ...] = ()
    written: WrittenShards | None = None
    """The shards, if they do not lie in a local folder."""

    @property
    def _written(self) -> WrittenShards:
        return self.written or LocalShards(self.folder)

    @property
    def names(self) -> set[str]:
        return {*(file.name for file in self._files), *self.documents}

    @property
    def _files(self) -> list[WrittenFile]:
        shards = [WrittenFile(one.name, one.file_bytes or 0, one.checksum or "") for one in self.shards]
        return [*self.companions, *shards]

    @property
    def split(self) -> Entry | None:
        """Shares of the parts of the output, by what they are split, their names and numbers of records; None without parts."""
        return self.features.get("split")

    @property
    def folders(self) -> set[str]:
        """Names of the folders of parts, which hold the shards; none if there are no parts."""
        return {shard.name.partition("/")[0] for shard in self.shards if "/" in shard.name}

    @property
    def path(self) -> Path:
        return manifest_path(self.folder)

    @classmethod
    def read(cls, folder: Path) -> Manifest | None:
        try:
            text = manifest_path(folder).read_text(encoding="utf-8-sig")
        except (FileNotFoundError, NotADirectoryError):
            return None
        return cls.parse(folder, text)

    @classmethod
    def parse(cls, folder: Path, text: str) -> Manifest:
        try:
            content = json.loads(text)
            inputs = [
                FileReport(_parse_name(one), int(one["records"]), one.get("bytes"), one.get("quarantined", 0))
                for one in content["inputs"]
            ]
            shards = map(_parse_shard, content["shards"])
            added = map(str, content.get("provenance", ()))
            return cls(
                folder,
                str(content["to"]),
                tuple(inputs),
                tuple(shards),
                tuple(added),
                format=str(content.get("format", "")),
                seed=int(content.get("seed", 0)),
                epoch=_parse_epoch(content) if "epoch" in content else None,
                features={name: content[name] for name in _FEATURES if name in content},
                documents=tuple(map(str, content.get("documents", ()))),
                companions=tuple(map(_parse_file, content.get("companions", ()))),
            )
        except (TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"not a manifest: {error}") from error

    def write(self) -> None:
        self.path.unlink(missing_ok=True)
        self.path.write_text(self.render(), encoding="utf-8")
        sync(self.path)

    def render(self) -> str:
        content = {
            "recshuf": __version__,
            "order": ORDER_VERSION,
            "seed": str(self.seed),
            "format": self.format,
            "to": self.to,
            "records": sum(one.records for one in self.shards),
            "inputs": [
                _describe_file(one) | ({"quarantined": one.quarantined} if self.counts_quarantined else {})
                for one in self.inputs
            ],
            "shards": [_describe_file(one) for one in self.shards],
            "schema": [
                {"name": one.name, "type": str(one.type), "nullable": one.nullable}
                for one in self.schema or ()
            ],
        }
        if self.epoch is not None:
            number, reshuffle, mix = self.epoch
            content |= {"epoch": number, "reshuffle": reshuffle, "mix": mix}
        content |= {"provenance": list(self.added)} if self.added else {}
        content |= {"documents": list(self.documents)} if self.documents else {}
        content |= self.features
        companions = [
            {"name": name, "bytes": size, "xxh3": checksum} for name, size, checksum in self.companions
        ]
        content |= {"companions": companions} if companions else {}
        content |= {"notes": list(self.notes)} if self.notes else {}
        content |= {"packages": dict(self.packages)} if self.packages else {}
        return json.dumps(content, indent=2, ensure_ascii=False) + "\n"

    def count_planned(self, cut: Cut) -> int | None:
        """Return the number of shards that a cut of its records gives; None if it depends on their bytes."""
        if cut.shards is not None:
            return cut.shards
        parts = self.split["parts"] if self.split else [{"records": sum(one.records for one in self.shards)}]
        return sum_known(count_shards(replace(cut, shares=()), part["records"], None) for part in parts)

    def find_present(self) -> list[str]:
        """Return the paths, or URLs, of the shards that exist."""
        sizes = self._written.find_sizes(self.folders)
        return [self._written.show(one.name) for one in self.shards if sizes.get(one.name, -1) >= 0]

    def fits_sizes(self) -> bool:
        paths = [(self.folder / file.name, file.byte_count) for file in self._files]
        return all(path.is_file() and path.stat().st_size == size for path, size in paths)

    def compare_files(self) -> list[str]:
        """Describe differences between the record files of the folder and the manifest."""
        written, sizes = self._written, self._written.find_sizes(self.folders)
        found = []
        for file in self._files:
            shown, size = written.show(file.name), sizes.pop(file.name, -1)
            if size < 0:
                found.append(f"{shown}: is missing, and the manifest names it")
            elif size != file.byte_count:
                found.append(f"{shown}: has {size:,} bytes, and {file.byte_count:,} in the manifest")
            elif file.checksum and written.find_checksum(file.name) != file.checksum:
                found.append(f"{shown}: has another checksum in the manifest")
        foreign = [name for name in sorted(sizes) if not name.startswith(".") and not self._is_cache(name)]
        foreign = [name for name in foreign if list_owners(split_suffix(name).kind)]
        return found + [f"{written.show(name)}: is not named in the manifest" for name in foreign]

    def _is_cache(self, name: str) -> bool:
        """Tell whether a file is a cache of what was made of a saved data set, whose `state.json` lists its files."""
        folder, slash, own = name.rpartition("/")
        return _CACHE.fullmatch(own) is not None and f"{folder}{slash}{SAVED_LIST}" in self.documents

    def compare_format(self, to: str) -> list[str]:
        difference = (
            f"{self._written.manifest}: says that the shards are {self.to}, and they are read as {to}"
        )
        return [difference] if to != self.to else []

    def compare_counts(self, names: Sequence[str], records: Sequence[int], input_records: int) -> list[str]:
        depth = 2 if self.folders else 1
        found = dict(zip(("/".join(Path(name).parts[-depth:]) for name in names), records, strict=True))
        differences = [
            f"{self._written.show(shard.name)}: has {found[shard.name]:,} records, and {shard.records:,} in the manifest"
            for shard in self.shards
            if found.get(shard.name, shard.records) != shard.records
        ]
        named = sum(one.records for one in self.inputs)
        if input_records != named:
            differences.append(
                f"{self._written.manifest}: names inputs of {named:,} records, and these have {input_records:,}"
            )
        return differences


def _parse_epoch(given: dict[str, object]) -> Epoch:
    number, reshuffle, mix = given["epoch"], given["reshuffle"], given["mix"]
    if not isinstance(number, int) or not isinstance(reshuffle, str) or not isinstance(mix, int):
        raise TypeError(number)
    return Epoch(number, reshuffle, mix)


def _parse_shard(given: dict[str, object]) -> FileReport:
    records = given["records"]
    if not isinstance(records, int):
        raise TypeError(records)
    name, size, checksum = _parse_file(given)
    return FileReport(name, records, size, checksum=checksum or None)


def _parse_file(given: dict[str, object]) -> WrittenFile:
    name, size, checksum = given["name"], given["bytes"], given.get("xxh3")
    if not isinstance(name, str) or not isinstance(size, int):
        raise TypeError(name)
    parts = name.split("/")
    if len(parts) > 2 or not {"", ".", ".."}.isdisjoint(parts) or "\0" in name:
        raise ValueError(name)
    if not isinstance(checksum, str | None):
        raise TypeError(checksum)
    return WrittenFile(name, size, checksum or "")


def _describe_file(file: FileReport) -> dict[str, object]:
    return (
        _describe_name(file.name)
        | {"records": file.records, "bytes": file.file_bytes}
        | ({"xxh3": file.checksum} if file.checksum else {})
    )


def _describe_name(name: str) -> dict[str, object]:
    """Return a name as JSON can hold it; of one that is no UTF-8, the bytes, too."""
    raw = os.fsencode(name)
    text = raw.decode(errors="replace")
    described: dict[str, object] = {"name": text}
    return described if text.encode() == raw else described | {"name_hex": raw.hex()}


def _parse_name(given: dict[str, object]) -> str:
    raw = given.get("name_hex")
    return str(given.get("name")) if raw is None else os.fsdecode(bytes.fromhex(str(raw)))
