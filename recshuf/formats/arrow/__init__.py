"""Arrow IPC: record batches in the stream format or the file format, also called Feather version 2, in files and in saved data sets.

A data set that `save_to_disk` of Hugging Face made is a folder of Arrow files, and of documents that say which, and how to open them::

    data-00000-of-00002.arrow  data-00001-of-00002.arrow  state.json  dataset_info.json

A folder of splits holds such folders, and ``dataset_dict.json``. The columns with their features stand in the schema of
each file, from where they are read if ``dataset_info.json`` says nothing of them.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import xxhash

from recshuf.errors import InputError
from recshuf.formats.files import LazyFormat
from recshuf.interfaces import Traits
from recshuf.storage.reading.local import read_head

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from recshuf.interfaces import InputFile, ShardFile


MAGIC = b"ARROW1"
_PADDED_MAGIC = b"ARROW1\0\0"
MAGIC_FEATHER = b"FEA1"
_MARK = b"\xff\xff\xff\xff"
"""Begins every message, with its length behind it, so also a file in the stream format."""
STATE, INFO, SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"
_FILES, _SUFFIX = "_data_files", ".arrow"
_MOST_BYTES = 64 << 20
_ABOUT = ("description", "citation", "homepage", "license", "builder_name", "dataset_name", "config_name", "version")  # fmt: skip
"""What ``dataset_info.json`` says and a shuffle leaves true."""
_FORMAT: dict[str, Any] = {
    "_format_columns": None, "_format_kwargs": {}, "_format_type": None, "_output_all_columns": False, "_split": None
}  # fmt: skip
"""What ``state.json`` says of how rows are handed out, and of the split."""


class SavedSet(NamedTuple):
    """The files in the folder of a saved data set."""

    folder: str
    listed: list[InputFile]
    """Those with its rows, in the order of its list, each with the documents."""
    others: list[InputFile]
    """Further files of Arrow, mostly caches."""


def find_sets(files: Sequence[InputFile]) -> tuple[list[SavedSet], dict[str, list[str]]]:
    """Return the saved data sets among the files of a folder, and the names of the files of each split that a document tells."""
    if not any(file.name.endswith(STATE) for file in files):
        return [], {}
    by_folder: dict[str, dict[str, InputFile]] = {}
    for file in files:
        folder, _, name = file.name.rpartition("/")
        by_folder.setdefault(folder, {})[name] = file
    sets, splits = [], dict[str, list[str]]()
    for folder, named in by_folder.items():
        listed = _list_files(named[STATE]) if STATE in named else None
        if listed is None:
            continue
        if missing := [name for name in listed if name not in named]:
            problem = f"lists {missing[0]}, and its folder has no such file"
            raise InputError(named[STATE].name, problem, remedy="fetch the folder again")
        documents = tuple(named[name] for name in sorted(named.keys() & {STATE, INFO}))
        others = [file for name, file in named.items() if file.suffix.kind == _SUFFIX and name not in listed]
        sets.append(SavedSet(folder, [named[name]._replace(documents=documents) for name in listed], others))
        above, _, split = folder.rpartition("/")
        if SPLITS in by_folder.get(above, {}):
            splits[split] = [file.name for file in sets[-1].listed]
    return sets, splits if len(splits) > 1 else {}


def _list_files(state: InputFile) -> list[str] | None:
    """Return the names that a ``state.json`` lists, in their order; None if it is of no saved data set."""
    content = _read(state)
    entries = content.get(_FILES)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        return None
    if content.get("_indices_data_files") or any(entry.keys() != {"filename"} for entry in entries):
        remedy = (
            "open it with datasets.load_from_disk, and save what flatten_indices() gives with save_to_disk"
        )
        raise InputError(state.name, "lists a choice of the rows of its files", remedy=remedy)
    return [str(entry["filename"]) for entry in entries]


def _read(file: InputFile) -> dict[str, Any]:
    """Return what a document says; nothing if it is none."""
    with suppress(ValueError, RecursionError):
        content = json.loads(read_head(file, _MOST_BYTES))
        if isinstance(content, dict):
            return content
    return {}


def read_documents(files: Iterable[InputFile]) -> dict[str, str]:
    """Return what the documents of the inputs agree on, by the names of documents; nothing unless all inputs have some.

    Each input has the documents of its folder.
    """
    folders = dict.fromkeys(file.documents for file in files)
    states, infos = [], []
    for documents in folders:
        read = {document.name.rpartition("/")[2]: _read(document) for document in documents}
        if STATE not in read:
            return {}
        states.append({key: read[STATE].get(key, value) for key, value in _FORMAT.items()})
        infos.append({key: value for key in _ABOUT if (value := read.get(INFO, {}).get(key)) is not None})
    return {STATE: json.dumps(_agree(states)), INFO: json.dumps(_agree(infos))}


def _agree(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first, *others = documents
    return {key: value for key, value in first.items() if all(other.get(key) == value for other in others)}


def make_documents(
    kept: Mapping[str, str], columns: Collection[str], shards: Sequence[ShardFile]
) -> dict[str, bytes]:
    """Return the documents with which `load_from_disk` opens shards of these columns, given what `read_documents` did."""
    state = _FORMAT | json.loads(kept[STATE])
    if state["_format_columns"] is not None:
        # No name at all would leave rows without a column.
        state["_format_columns"] = [name for name in state["_format_columns"] if name in columns] or None
    state[_FILES] = [{"filename": shard.name} for shard in shards]
    # Caches of what is made of a data set are found by its fingerprint.
    state["_fingerprint"] = f"{xxhash.xxh3_64_intdigest(repr([*map(tuple, shards)]).encode()):016x}"
    documents = {STATE: state, INFO: json.loads(kept[INFO])}
    return {
        name: json.dumps(content, indent=2, sort_keys=True).encode() for name, content in documents.items()
    }


def make_parts_document(names: Sequence[str]) -> dict[str, bytes]:
    """Return the document with which `load_from_disk` opens folders of these names as the splits of one data set."""
    return {SPLITS: json.dumps({"splits": list(names)}).encode()}


class ArrowFormat(LazyFormat):
    """The Arrow format."""

    source = "recshuf.formats.arrow.files:ArrowSource"
    target = "recshuf.formats.arrow.files:ArrowTarget"
    layouts = ("recshuf.formats.arrow.files:ArrowLayout",)
    traits = Traits(
        "arrow",
        (".arrow", ".feather", ".ipc", ".arrows"),
        ("none", "zstd", "lz4"),
        read_options=frozenset({"columns", "widens", "first_metadata"}),
        libraries=("pyarrow",),
        native_is_table=True,
        takes_tables=True,
        content_rank=2,
    )

    def recognises(self, head: bytes) -> bool:
        length = int.from_bytes(head[4:8], "little")
        return head.startswith(_PADDED_MAGIC) or (
            head[:4] == _MARK and 0 < length < 1 << 31 and length % 8 == 0
        )

    def grow_layout(self, layout: Any) -> Any:
        """Return the layout with plain columns in place of dictionaries, which may lack values of further inputs."""
        schema = layout.schema
        for index in layout.dictionaries:
            field = schema.field(index)
            schema = schema.set(index, field.with_type(field.type.value_type))
        return replace(layout, schema=schema, dictionaries={})


FORMAT = ArrowFormat()
